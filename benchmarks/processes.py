"""Child processes of the benchmarks; if one fails, the row is not measured and says why."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.targets import NotMeasuredError

QA_ARCH = str(Path(sys.executable).with_name("qa-arch"))


def output_of(command: Sequence[str]) -> str:
    """Standard output of ``command``; NotMeasuredError with the last line of standard error if it fails."""
    try:
        process = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise NotMeasuredError(f"{command[0]} not found (make setup)") from error
    if process.returncode:
        reason = (process.stderr.strip().splitlines() or ["no reason given"])[-1]
        name = " ".join([Path(command[0]).name, *command[1:3]])
        raise NotMeasuredError(f"{name} exited with {process.returncode}: {reason}")
    return process.stdout
