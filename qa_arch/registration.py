"""Pre-registered experiments: which runs may be scored on a closed dev set, fixed before they are trained.

``experiments/NAME/registered.json`` holds a hash of the settings of each planned run, the hashes of the sets,
and a hash of the code. ``qa-arch evaluate --final`` scores no other run of that experiment on dev, and none
that was trained, or would be scored, by other code. Hashes are compared as they are stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qa_arch.config.check import read
from qa_arch.config.files import read_json
from qa_arch.errors import ConfigError, RunError
from qa_arch.provenance import code_hash
from qa_arch.records import CALIBRATION, DEV, TRAIN, RunRecord

REGISTERED = "registered.json"


@dataclass(frozen=True, kw_only=True)
class Registration:
    date: str
    """UTC, ISO 8601."""
    commit: str | None
    sets: dict[str, dict[str, Any]]
    """Split -> name, number of questions, fingerprint."""
    runs: dict[str, dict[str, str]]
    """Name of an arm -> seed -> the run's ``settings_hash``."""
    code: str | None = None
    """Hash of the code that trains and scores (``provenance.code_hash``); None in the first registrations."""


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
    read = {TRAIN: record.fingerprint(TRAIN), CALIBRATION: record.fingerprint(CALIBRATION), DEV: dev}
    others = [split for split, facts in registration.sets.items() if facts.get("fingerprint") != read[split]]
    if not others and any(record.settings_hash in seeds.values() for seeds in registration.runs.values()):
        for code, does in ((record.code, "was trained by"), (code_hash(), "would be scored by")):
            if registration.code not in (None, code):
                raise ConfigError(
                    f"--final: the run {does} other code than {folder / REGISTERED} pins; train and score in"
                    f" a checkout of commit {registration.commit}"
                )
        return
    what = f"other data: {' and '.join(others)}" if others else "other settings or another seed"
    raise ConfigError(
        f"--final: the run is not registered in {folder / REGISTERED} ({what}); give it another name= to make"
        " it an experiment of its own"
    )
