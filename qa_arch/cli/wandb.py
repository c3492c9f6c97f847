"""``qa-arch wandb sync``: send runs that were logged offline to wandb, with wandb's own program."""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from qa_arch.errors import RunError, UnavailableError

OFFLINE = "wandb/offline-run-*"
SENT = ".synced"
"""Suffix of the file that wandb writes beside the log of a sent run."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    sync = actions.add_parser("sync", help="send what was logged offline (needs wandb login)")
    add = sync.add_argument
    add(
        "runs",
        nargs="*",
        default=["runs"],
        metavar="RUNS",
        help="run folders or folders of runs (default: runs)",
    )
    add("--project", metavar="NAME", help="default: the one that each run was logged for")
    add("--entity", metavar="NAME", help="the user or team (default: yours)")
    add("--again", action="store_true", help="also send runs that were sent before")
    add("--dry-run", action="store_true", help="print the folders that would be sent, and send nothing")


def run(args: argparse.Namespace) -> int:
    """Send every offline run below ``args.runs``."""
    folders = offline_folders(args.runs)
    due = [folder for folder in folders if args.again or not sent(folder)]
    if args.dry_run:
        print("".join(f"{folder}\n" for folder in due), end="")
        return 0
    if not due:
        print(f"nothing to send: {len(folders)} runs were sent before (--again sends them once more)")
        return 0
    if importlib.util.find_spec("wandb") is None:
        raise UnavailableError("wandb is not installed: pip install wandb")
    options = [
        word for key in ("project", "entity") if (value := getattr(args, key)) for word in (f"--{key}", value)
    ]
    again = ["--include-synced"] if args.again else []
    command = [sys.executable, "-m", "wandb", "sync", *options, *again, *map(str, due)]
    code = subprocess.run(command, check=False).returncode
    if code:
        raise UnavailableError(f"wandb sync ended with {code}; see its output above (to log in: wandb login)")
    print(f"{len(due)} runs sent")
    return 0


def offline_folders(runs: Sequence[str]) -> list[Path]:
    """The folders of offline runs at or below ``runs``, in path order; RunError where there are none."""
    folders: list[Path] = []
    for root in map(Path, runs):
        if not root.is_dir():
            raise RunError(f"{root}: no such run or folder")
        folders += sorted(root.rglob(OFFLINE))
    if not folders:
        raise RunError(
            f"{', '.join(map(str, runs))}: no {OFFLINE} below; runs are logged so with logger=wandb and no"
            " login"
        )
    return list(dict.fromkeys(folders))


def sent(folder: Path) -> bool:
    """Whether wandb has marked the run as sent."""
    return any(folder.glob(f"*{SENT}"))
