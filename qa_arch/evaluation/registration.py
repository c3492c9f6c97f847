"""Pre-registered experiments: which runs may be scored on a closed dev set, fixed before they are trained.

``experiments/NAME/registered.json`` holds the identity of each planned run: a hash over its settings and over
the content of its training, calibration and dev set. ``qa-arch evaluate --final`` scores no other run of
that experiment on dev.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qa_arch.config.files import parse_json
from qa_arch.config.identity import config_hash
from qa_arch.errors import ConfigError, RunError
from qa_arch.records import CALIBRATION, DEV, TRAIN

REGISTERED = "registered.json"


@dataclass(frozen=True, kw_only=True)
class Registration:
    date: str
    """UTC, ISO 8601."""
    commit: str | None
    sets: dict[str, dict[str, Any]]
    """Split -> name, number of questions, fingerprint."""
    runs: dict[str, dict[str, str]]
    """Name of an arm -> seed -> identity of the run."""


def identity(config: Mapping[str, Any], fingerprints: Mapping[str, str | None]) -> str:
    """Hex SHA-256 over settings and content of the sets; wherever the files lie."""
    return config_hash(config, {split: str(fingerprints[split]) for split in (TRAIN, CALIBRATION, DEV)})


def read_registration(folder: Path) -> Registration | None:
    """The registration of the experiment in ``folder``, if there is one; RunError for a damaged file."""
    path = folder / REGISTERED
    if not path.is_file():
        return None
    try:
        return Registration(**parse_json(path.read_text(encoding="utf-8")))
    except (TypeError, ValueError) as error:
        raise RunError(f"{path}: is no registration ({error}); restore the file") from error


def require_registered(
    folder: Path, config: Mapping[str, Any], fingerprints: Mapping[str, str | None]
) -> None:
    """Raise ConfigError for a run that the experiment in ``folder`` did not register, if it registered any;
    the message says which set is another, or that it is the settings."""
    registration = read_registration(folder)
    if registration is None:
        return
    planned = {value for seeds in registration.runs.values() for value in seeds.values()}
    if identity(config, fingerprints) in planned:
        return
    sets = registration.sets.items()
    others = [split for split, facts in sets if facts["fingerprint"] != fingerprints[split]]
    what = f"other data: {' and '.join(others)}" if others else "other settings or another seed"
    raise ConfigError(
        f"--final: the run is none of those that {folder / REGISTERED} lists ({what}); under another name= it"
        " is an experiment of its own"
    )
