"""Pre-registered experiments: which runs may be scored on a closed dev set, fixed before they are trained.

``experiments/NAME/registered.json`` holds the identity of each planned run: a hash over its settings and over
the content of its training, calibration and dev set, and a hash of the code. ``qa-arch evaluate --final``
scores no other run of that experiment on dev, and none that was trained, or would be scored, by other code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qa_arch.config.check import read
from qa_arch.config.files import read_json
from qa_arch.config.identity import config_hash
from qa_arch.errors import ConfigError, RunError
from qa_arch.records import CALIBRATION, DEV, TRAIN, RunRecord
from qa_arch.results.provenance import code_hash

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
    code: str | None = None
    """Hash of the code that trains and scores (``provenance.code_hash``); None in the first registrations."""


def identity(config: Mapping[str, Any], fingerprints: Mapping[str, str | None]) -> str:
    """Hex SHA-256 over the settings and the content of the sets, regardless of file paths."""
    return config_hash(config, {split: str(fingerprints[split]) for split in (TRAIN, CALIBRATION, DEV)})


def read_registration(folder: Path) -> Registration | None:
    """Read the registration of the experiment in ``folder``, if any; RunError for a damaged file."""
    path = folder / REGISTERED
    if not path.is_file():
        return None
    try:
        return read(Registration, read_json(path, "restore the file"))
    except ConfigError as error:
        raise RunError(f"{path}: not a registration ({error}); restore the file") from error


def require_registered(folder: Path, record: RunRecord, dev: str | None) -> None:
    """Raise ConfigError if the experiment in ``folder`` has a registration, but not of this run and code.

    ``dev`` is the fingerprint of the set to score. The message says what differs.
    """
    registration = read_registration(folder)
    if registration is None:
        return
    fingerprints = {TRAIN: record.fingerprint(TRAIN), CALIBRATION: record.fingerprint(CALIBRATION), DEV: dev}
    planned = {value for seeds in registration.runs.values() for value in seeds.values()}
    if identity(record.config, fingerprints) in planned:
        for code, does in ((record.code, "was trained by"), (code_hash(), "would be scored by")):
            if registration.code not in (None, code):
                raise ConfigError(
                    f"--final: the run {does} other code than {folder / REGISTERED} pins; train and score in"
                    f" a checkout of commit {registration.commit}"
                )
        return
    sets = registration.sets.items()
    others = [split for split, facts in sets if facts.get("fingerprint") != fingerprints[split]]
    what = f"other data: {' and '.join(others)}" if others else "other settings or another seed"
    raise ConfigError(
        f"--final: the run is not registered in {folder / REGISTERED} ({what}); give it another name= to make"
        " it an experiment of its own"
    )
