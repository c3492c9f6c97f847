"""Where a result comes from: commit, versions, machine. No torch here."""

from __future__ import annotations

import datetime
import platform
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

PACKAGES = (
    "qa-arch",
    "torch",
    "transformers",
    "tokenizers",
    "datasets",
    "pytorch-lightning",
    "hydra-core",
    "wandb",
    "numpy",
    "pyarrow",
)


def now() -> str:
    """UTC, to the second, ISO 8601."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def commit(folder: Path | None = None) -> tuple[str | None, bool | None]:
    """The checkout's commit and whether it has uncommitted changes; (None, None) outside one."""
    where = folder or Path(__file__).resolve().parents[2]

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
