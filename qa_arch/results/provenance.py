"""Where a result comes from: commit, versions and machine, and every access to a closed dev set.

``experiments/<name>/dev_openings.jsonl`` holds one JSON object an access and only ever grows: who opened the
dev set when is part of a result.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from qa_arch.config.files import parse_json
from qa_arch.errors import RunError

PACKAGES = (
    *("qa-arch", "torch", "transformers", "tokenizers", "datasets"),
    *("pytorch-lightning", "hydra-core", "wandb", "numpy", "pyarrow"),
)


def now() -> str:
    """UTC, to the second, ISO 8601."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def commit() -> tuple[str | None, bool | None]:
    """The checkout's commit and whether it has uncommitted changes; (None, None) outside one."""
    where = Path(__file__).resolve().parents[2]

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=where, capture_output=True, text=True, check=True, timeout=20
        )
        return done.stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")) != where:
            return None, None
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return None, None


def versions(more: Sequence[str] = ()) -> dict[str, str]:
    """Installed versions of what can change a number, and of ``more`` packages."""
    installed = {"python": platform.python_version()}
    for name in (*PACKAGES, *more):
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return installed


def processor() -> str:
    """The processor's name as the system tells it."""
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


EXPERIMENTS = Path("experiments")
"""In the root of a checkout, from where the commands are called; a folder for each experiment's name."""
DEV_ACCESS_LOG = "dev_openings.jsonl"
_NAMED = 4
"""So many accesses are named one by one below a table; of more the days are counted."""


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

    @classmethod
    def of(cls, run: str, config_hash: str, questions: Any) -> DevAccess:
        """The access that is about to be made to ``questions``."""
        about = {"data": questions.name, "fingerprint": questions.fingerprint}
        return cls(date=now(), commit=commit()[0], config_hash=config_hash, run=run, **about)


def log_dev_access(folder: str | Path, opening: DevAccess) -> Path:
    """Add one line to the folder's file in a single write, so that lines of two processes never mix."""
    path = Path(folder) / DEV_ACCESS_LOG
    line = (json.dumps(asdict(opening), ensure_ascii=False) + "\n").encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab", buffering=0) as file:
            file.write(line)
            os.fsync(file.fileno())
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
            accesses.append(DevAccess(**parse_json(line)))
        except (ValueError, TypeError) as error:
            raise RunError(f"{path}: line {number} is no opening ({error}); restore the file") from error
    return tuple(accesses)


def dev_access_note(experiment: str | Path, fingerprints: Collection[str | None]) -> str | None:
    """One sentence for below a table: how often the sets were opened, by what, and how often elsewhere.

    ``experiment`` is its folder, beside those of the other experiments; None where no set was opened for it.
    """
    folder = Path(experiment)

    def accesses(place: Path) -> list[DevAccess]:
        return [access for access in read_dev_accesses(place) if access.fingerprint in fingerprints]

    def times(count: int) -> str:
        return "once" if count == 1 else f"{count} times"

    if not (here := accesses(folder)):
        return None
    commits = [(access.commit or "none")[:7] for access in here]
    entries = [
        f"{access.run} on {access.date[:10]} (commit {commit}, config {access.config_hash[:8]})"
        for access, commit in zip(here, commits, strict=True)
    ]
    if len(here) > _NAMED:
        days = Counter((access.date[:10], commit) for access, commit in zip(here, commits, strict=True))
        entries = [f"{times(count)} on {date} (commit {commit})" for (date, commit), count in days.items()]
    others = sorted(log.parent for log in folder.parent.glob(f"*/{DEV_ACCESS_LOG}"))
    counts = {other.name: len(accesses(other)) for other in others if other != folder}
    elsewhere = ", ".join(f"{times(count)} for {name}" for name, count in counts.items() if count)
    more = f"; the same set was opened {elsewhere}" if elsewhere else ""
    return f"dev was opened {times(len(here))}: {', '.join(entries)}{more}"
