"""Whole processes of the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.targets import Measure, Measurement
from benchmarks.timing import middle, repeat


def help_text(quick: bool) -> Measurement:
    command = [str(Path(sys.executable).with_name("qa-arch")), "--help"]
    runs = repeat(lambda: subprocess.run(command, capture_output=True, check=True), 3 if quick else 9)
    times = middle(runs)
    return Measurement(times.wall, times.cpu, times)


ROWS: dict[str, Measure] = {"cli-help": help_text}
