"""Command line processes from start to finish."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.processes import QA_ARCH, output_of
from benchmarks.targets import Measure, Measurement
from benchmarks.timing import Timed, alternate, median_time, repeat
from qa_arch.training.progress import FIRST_STEP


def help_text(quick: bool) -> Measurement:
    times = median_time(repeat(lambda: output_of([QA_ARCH, "--help"]), 3 if quick else 9))
    return Measurement(times.wall, times.cpu, times)


def first_step(quick: bool) -> Measurement:
    """A new process without cached features, until it reports the first optimizer step."""
    times = _to_first_step()
    return Measurement(times.wall, times.cpu, times, note="model=bert experiment=demo, nothing cached")


def _to_first_step() -> Timed:
    with tempfile.TemporaryDirectory() as folder:
        folders = [f"runs_dir={folder}/runs", f"features.cache_dir={folder}/cache"]
        command = [QA_ARCH, "train", "model=bert", "experiment=demo", *folders]
        started, output = time.perf_counter(), []
        with subprocess.Popen(
            command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stderr is not None
            for line in process.stderr:
                output.append(line)
                if FIRST_STEP in line:
                    elapsed = Timed(time.perf_counter() - started, _cpu_of(process.pid))
                    process.kill()  # an interrupt would be ignored in a shell's background job
                    process.communicate()
                    return elapsed
        raise RuntimeError(f"the demo ended without a step: {' '.join(''.join(output).split())[-200:]}")


def sweep_overhead(quick: bool) -> Measurement:
    """A sweep of one point minus the same single run, each a new process."""
    return _difference(lambda: _train_tiny("-m"), _train_tiny)


def further_point(quick: bool) -> Measurement:
    """A sweep of two points minus one of a single point."""
    return _difference(lambda: _train_tiny("-m", seeds="1,2"), lambda: _train_tiny("-m"))


def _difference(ours: Callable[[], None], theirs: Callable[[], None]) -> Measurement:
    pairs = alternate(ours, theirs, 1, warm=False)
    wall, cpu = (getattr(pairs.ours[0], clock) - getattr(pairs.theirs[0], clock) for clock in ("wall", "cpu"))
    return Measurement(wall, cpu, pairs.ours[0], pairs.theirs[0], "model=bert debug=fast")


def _train_tiny(*options: str, seeds: str = "1") -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = ["model=bert", "debug=fast", f"runs_dir={folder}", "features.cache_dir=null"]
        output_of([QA_ARCH, "train", *options, *settings, f"seed={seeds}"])


def _cpu_of(process: int) -> float:
    """CPU seconds used so far by a running process (0 except on Linux)."""
    stat = Path(f"/proc/{process}/stat")
    if not stat.exists():
        return 0.0
    fields = stat.read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


ROWS: dict[str, Measure] = {
    "cli-help": help_text,
    "demo-first-step": first_step,
    "sweep-overhead": sweep_overhead,
    "sweep-point": further_point,
}
