"""Processes that a row starts; where such a process fails, the row is not measured and says why."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.targets import NotMeasuredError

QA_ARCH = str(Path(sys.executable).with_name("qa-arch"))


def output_of(command: Sequence[str]) -> str:
    """What ``command`` writes to standard output. Raises NotMeasuredError with its last line of errors."""
    try:
        process = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise NotMeasuredError(f"there is no {command[0]} (make setup)") from error
    if process.returncode:
        reason = (process.stderr.strip().splitlines() or ["it gives no reason"])[-1]
        name = " ".join([Path(command[0]).name, *command[1:3]])
        raise NotMeasuredError(f"{name} ended with {process.returncode}: {reason}")
    return process.stdout
