"""Identity of a run: a hash over the settings that can change a result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any

NEUTRAL = (
    "runs_dir",
    "name",
    "logger",
    "features.cache_dir",
    "model.kernel",
    "trainer.workers",
    "trainer.progress",
    "trainer.checkpoint_minutes",
    "trainer.eval_batch_size",
    "trainer.log_every",
)
"""Settings that do not affect results: where a run is stored and how it is displayed."""

OPTIONAL: Mapping[str, Any] = {
    "loss": None,
    "calibration": {"prior": None},
    "pretraining": {
        "mask_share": 0.15,
        "masked": 0.8,
        "replaced": 0.1,
        "whole_words": False,
        "span_length": 3.0,
        "permute_sentences": True,
    },
    "data.made_up_share": 0.0,
    "data.made_up_kinds": None,
    "decode.null_odds": "best",
    "encoder.positions": None,
    "encoder.pre_norm": None,
    "encoder.tokenizer": None,
}
"""Setting -> the value at which it does not count, so that a config from before it has the same hash."""

PLACES = ("data.train", "data.calibration", "data.dev", "glove.path")
"""Locations of data, replaced by fingerprints of their content once these are known."""
ENCODER = "encoder"
"""Among the fingerprints: the pre-training run that the encoder is taken from."""


def config_hash(config: Mapping[str, Any], data_fingerprints: Mapping[str, str] | None = None) -> str:
    """Hex SHA-256 of the resolved config without ``NEUTRAL``; fingerprints, if given, replace ``PLACES``, and
    that of an ``encoder`` its name."""
    places = () if data_fingerprints is None else PLACES
    if data_fingerprints and ENCODER in data_fingerprints:
        places = (*places, "encoder.name")
    relevant = _without(config, "", (*NEUTRAL, *places))
    text = json.dumps([relevant, dict(data_fingerprints or {})], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _without(value: Any, path: str, dropped: Collection[str]) -> Any:
    if not isinstance(value, Mapping):
        return value
    named = ((key, f"{path}.{key}" if path else str(key)) for key in value)
    counting = ((key, full) for key, full in named if full not in dropped and not _unset(full, value[key]))
    return {str(key): _without(value[key], full, dropped) for key, full in counting}


def _unset(setting: str, value: Any) -> bool:
    return setting in OPTIONAL and value == OPTIONAL[setting]
