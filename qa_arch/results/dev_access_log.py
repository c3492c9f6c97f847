"""Every look at a closed dev set, on file: who opened it when is part of a result.

``experiments/<name>/dev_openings.jsonl`` holds one JSON object a line and only ever grows.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from qa_arch.errors import RunError

EXPERIMENTS = Path("experiments")
"""In the root of a checkout, from where the commands are called; a folder for each experiment's name."""
DEV_ACCESS_LOG = "dev_openings.jsonl"
_NAMED = 4
"""As many openings are named one by one below a table; of more their days are, and the file has the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevAccess:
    """One run scored once on a closed set."""

    date: str
    """UTC, ISO 8601."""
    commit: str | None
    config_hash: str
    run: str
    """Name of the run folder."""
    data: str
    fingerprint: str


def log_dev_access(folder: str | Path, opening: DevAccess) -> Path:
    """Add one line to the folder's file in a single write, so that lines of two processes never mix."""
    path = Path(folder) / DEV_ACCESS_LOG
    line = (json.dumps(asdict(opening), ensure_ascii=False) + "\n").encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, line)
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error.strerror}); the set was not opened") from error
    return path


def read_dev_accesses(folder: str | Path) -> tuple[DevAccess, ...]:
    """The accesses in file order; none where there is no file. RunError names an unreadable line."""
    path = Path(folder) / DEV_ACCESS_LOG
    if not path.is_file():
        return ()
    accesses = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            accesses.append(DevAccess(**json.loads(line)))
        except (ValueError, TypeError) as error:
            raise RunError(f"{path}: line {number} is no opening ({error}); restore the file") from error
    return tuple(accesses)


def dev_access_note(experiment: str | Path, fingerprints: Collection[str | None]) -> str | None:
    """One sentence for below a table: how often the sets were opened, by what, and how often elsewhere.

    ``experiment`` is its folder, beside those of the other experiments; None where no set was opened for it.
    """
    folder = Path(experiment)
    here = [access for access in read_dev_accesses(folder) if access.fingerprint in fingerprints]
    if not here:
        return None
    entries = _single(here) if len(here) <= _NAMED else _by_day(here)
    others = {
        other.parent.name: sum(
            access.fingerprint in fingerprints for access in read_dev_accesses(other.parent)
        )
        for other in sorted(folder.parent.glob(f"*/{DEV_ACCESS_LOG}"))
        if other.parent != folder
    }
    elsewhere = ", ".join(f"{_times(count)} for {name}" for name, count in others.items() if count)
    more = f"; the same set was opened {elsewhere}" if elsewhere else ""
    return f"dev was opened {_times(len(here))}: {', '.join(entries)}{more}"


def _single(accesses: Sequence[DevAccess]) -> list[str]:
    return [
        f"{access.run} on {access.date[:10]} (commit {_short(access)}, config {access.config_hash[:8]})"
        for access in accesses
    ]


def _by_day(accesses: Sequence[DevAccess]) -> list[str]:
    counts = Counter((access.date[:10], _short(access)) for access in accesses)
    return [f"{_times(count)} on {date} (commit {commit})" for (date, commit), count in counts.items()]


def _short(access: DevAccess) -> str:
    return (access.commit or "none")[:7]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
