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

OPTIONAL = ("loss", "calibration")
"""Sections that count only where something in them is given, so that a config from before them has the same
hash."""

PLACES = ("data.train", "data.calibration", "data.dev", "glove.path")
"""Locations of data, replaced by fingerprints of their content once these are known."""


def config_hash(config: Mapping[str, Any], data_fingerprints: Mapping[str, str] | None = None) -> str:
    """Hex SHA-256 of the resolved config without ``NEUTRAL``; fingerprints, if given, replace ``PLACES``."""
    relevant = _without(config, "", NEUTRAL if data_fingerprints is None else (*NEUTRAL, *PLACES))
    relevant = {key: value for key, value in relevant.items() if key not in OPTIONAL or _is_given(value)}
    text = json.dumps([relevant, dict(data_fingerprints or {})], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _is_given(section: Any) -> bool:
    if isinstance(section, Mapping):
        return any(value is not None for value in section.values())
    return section is not None


def _without(value: Any, path: str, dropped: Collection[str]) -> Any:
    if not isinstance(value, Mapping):
        return value
    named = ((key, f"{path}.{key}" if path else str(key)) for key in value)
    return {str(key): _without(value[key], full, dropped) for key, full in named if full not in dropped}
