"""What makes two runs the same: a hash over the settings that can change a result."""

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
"""Settings that say where and how a run is watched, not what it computes."""

OPTIONAL = ("loss",)
"""Sections that count only where they are given, so that a config from before them has the same hash."""

PLACES = ("data.train", "data.calibration", "data.dev", "glove.path")
"""Where the data lies: neutral once the fingerprints of what was read there are known."""


def config_hash(config: Mapping[str, Any], data_fingerprints: Mapping[str, str] | None = None) -> str:
    """Hex SHA-256 of the resolved config less ``NEUTRAL``; given fingerprints stand for ``PLACES``."""
    counted = _without(config, "", NEUTRAL if data_fingerprints is None else (*NEUTRAL, *PLACES))
    counted = {key: value for key, value in counted.items() if value is not None or key not in OPTIONAL}
    text = json.dumps([counted, dict(data_fingerprints or {})], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _without(value: Any, path: str, dropped: Collection[str]) -> Any:
    if not isinstance(value, Mapping):
        return value
    named = ((key, f"{path}.{key}" if path else str(key)) for key in value)
    return {str(key): _without(value[key], full, dropped) for key, full in named if full not in dropped}
