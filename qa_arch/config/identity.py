"""Identity of a run: a hash of the settings that can change results, and a hash of its files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from qa_arch.config.retired import RETIRED, SECTIONS, with_retired
from qa_arch.config.schema import Distillation
from qa_arch.manifest import from_extras

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
    "compression": None,
    "calibration": {"prior": None, "fit": "exact"},
    "calibration.fit": "exact",
    **SECTIONS,
    "data.language": "en",
    "data.made_up_share": RETIRED["data.made_up_share"],
    "data.made_up_kinds": RETIRED["data.made_up_kinds"],
    "decode.null_odds": RETIRED["decode.null_odds"],
    "encoder.positions": None,
    "encoder.pre_norm": None,
    "encoder.tokenizer": None,
    "trainer.global_batch": None,
    "distillation": with_retired({"distillation": asdict(Distillation())})["distillation"],
}
"""Setting -> value at which the hash omits it, so that configs that predate the setting keep their hash."""

PLACES = ("data.train", "data.calibration", "data.dev", "glove.path", "distillation.teacher")
"""Locations of input files, replaced by fingerprints of their content once these are known."""
ENCODER = "encoder"
"""Key of the fingerprint of the pre-training run that the encoder is loaded from."""


def config_hash(config: Mapping[str, Any], data_fingerprints: Mapping[str, str] | None = None) -> str:
    """Hex SHA-256 of the resolved config without ``NEUTRAL``; fingerprints, if given, replace ``PLACES``, and
    the ``ENCODER`` fingerprint replaces ``encoder.name``."""
    places = () if data_fingerprints is None else PLACES
    if data_fingerprints and ENCODER in data_fingerprints:
        places = (*places, "encoder.name")
    relevant = _without(with_retired(config), "", (*NEUTRAL, *places))
    text = json.dumps([relevant, dict(data_fingerprints or {})], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def file_hash(path: Path) -> str:
    """Hex SHA-256 of the content of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_hash(folder: Path, files: Iterable[Path]) -> str:
    """Hex SHA-256 of the contents of ``files`` and their paths relative to ``folder``."""
    total = hashlib.sha256()
    for path in sorted(files):
        total.update(f"{path.relative_to(folder).as_posix()} {file_hash(path)}\n".encode())
    return total.hexdigest()


def within(key: str, sections: Collection[str]) -> bool:
    """Whether the dotted ``key`` is one of ``sections`` or a setting or choice within them."""
    return any(key == section or key.startswith((f"{section}.", f"{section}/")) for section in sections)


def _without(value: Any, path: str, dropped: Collection[str]) -> Any:
    if not isinstance(value, Mapping):
        return value
    named = ((key, f"{path}.{key}" if path else str(key)) for key in value)
    return {
        str(key): _without(value[key], full, dropped)
        for key, full in named
        if full not in dropped and not _is_default(full, value[key])
    }


def _is_default(path: str, value: Any) -> bool:
    """Whether the hash omits it; keys that a section lacks count as their defaults."""
    if value is None and path in from_extras("sections"):
        return True
    if path not in OPTIONAL:
        return False
    default = OPTIONAL[path]
    sections = isinstance(default, Mapping) and isinstance(value, Mapping)
    return default == ({**default, **value} if sections else value)
