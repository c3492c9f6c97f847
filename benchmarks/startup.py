"""Whole processes of the command line."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.processes import QA_ARCH, output_of
from benchmarks.targets import Measure, Measurement
from benchmarks.timing import Timed, alternate, middle, repeat
from qa_arch.training.progress import FIRST_STEP


def help_text(quick: bool) -> Measurement:
    times = middle(repeat(lambda: output_of([QA_ARCH, "--help"]), 3 if quick else 9))
    return Measurement(times.wall, times.cpu, times)


def first_step(quick: bool) -> Measurement:
    """A new process, features made anew, until it says that the first optimizer step is done."""
    times = middle([_to_first_step() for _ in range(1 if quick else 3)])
    return Measurement(times.wall, times.cpu, times, note="model=bert experiment=demo, nothing cached")


def _to_first_step() -> Timed:
    with tempfile.TemporaryDirectory() as folder:
        folders = [f"runs_dir={folder}/runs", f"features.cache_dir={folder}/cache"]
        command = [QA_ARCH, "train", "model=bert", "experiment=demo", *folders]
        began, output = time.perf_counter(), []
        with subprocess.Popen(
            command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stderr is not None
            for line in process.stderr:
                output.append(line)
                if FIRST_STEP in line:
                    took = Timed(time.perf_counter() - began, _cpu_of(process.pid))
                    process.kill()  # an interrupt is ignored where a shell started us in the background
                    process.communicate()
                    return took
        raise RuntimeError(f"the demo ended without a step: {' '.join(''.join(output).split())[-200:]}")


def sweep_overhead(quick: bool) -> Measurement:
    """A sweep of one point against the same run without it, each a new process; the median difference."""
    pairs = alternate(lambda: _tiny("-m"), _tiny, 1 if quick else 5, warm=not quick)
    wall, cpu = (
        median(getattr(a, clock) - getattr(b, clock) for a, b in zip(pairs.ours, pairs.theirs, strict=True))
        for clock in ("wall", "cpu")
    )
    return Measurement(wall, cpu, middle(pairs.ours), middle(pairs.theirs), "model=bert debug=fast")


def _tiny(*options: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = ["model=bert", "debug=fast", f"runs_dir={folder}", "features.cache_dir=null"]
        output_of([QA_ARCH, "train", *options, *settings, "seed=1"])


def _cpu_of(process: int) -> float:
    """CPU seconds of a running process so far (Linux; else 0)."""
    stat = Path(f"/proc/{process}/stat")
    if not stat.exists():
        return 0.0
    fields = stat.read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


ROWS: dict[str, Measure] = {
    "cli-help": help_text,
    "demo-first-step": first_step,
    "sweep-overhead": sweep_overhead,
}
