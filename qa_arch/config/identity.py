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
    "data.made_up_share": 0.0,
    "data.made_up_kinds": None,
    "decode.null_odds": "best",
    "encoder.positions": None,
    "encoder.pre_norm": None,
}
"""Setting -> the value at which it does not count, so that a config from before it has the same hash."""

PLACES = ("data.train", "data.calibration", "data.dev", "glove.path")
"""Locations of data, replaced by fingerprints of their content once these are known."""


def config_hash(config: Mapping[str, Any], data_fingerprints: Mapping[str, str] | None = None) -> str:
    """Hex SHA-256 of the resolved config without ``NEUTRAL``; fingerprints, if given, replace ``PLACES``."""
    relevant = _without(config, "", NEUTRAL if data_fingerprints is None else (*NEUTRAL, *PLACES))
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
