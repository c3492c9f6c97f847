"""Peak memory of bulk prediction in a process of its own: ``python -m benchmarks.memory QUESTIONS``.

Prints the MiB of private memory that reading and writing took at most, beyond model and questions.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.growth import generated_set
from benchmarks.small import small_predictor
from benchmarks.targets import Measure, Measurement, NotMeasuredError
from qa_arch.decode import formats

STATUS = Path("/proc/self/status")
INTERVAL = 0.01


def flat(quick: bool) -> Measurement:
    """The largest set against the smallest, as ``qa-arch predict`` reads and writes them."""
    if not STATUS.exists():
        raise NotMeasuredError("private memory is read from /proc, which this system has not")
    low_count, high_count = (1_000, 3_000) if quick else (1_000, 100_000)
    generated_set(low_count), generated_set(high_count)
    low, high = _peak(low_count), _peak(high_count)
    return Measurement(
        high / low, note=f"{low:.0f} MiB at {low_count:,} questions, {high:.0f} at {high_count:,}"
    )


def _peak(count: int) -> float:
    command = [sys.executable, "-m", "benchmarks.memory", str(count)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    questions, predictor = generated_set(int(sys.argv[1])), small_predictor()
    with tempfile.TemporaryDirectory() as folder:
        predictor("Who built it?", "The bridge was built by Ada Stone.")
        before = private_memory()
        with watched_memory() as seen:
            formats.write_parts(folder, predictor.read_parts(questions), 0.0)
    print(max(seen) - before)


@contextmanager
def watched_memory() -> Iterator[list[float]]:
    """``private_memory`` at the beginning of the block and again and again until its end."""
    seen, finished = [private_memory()], threading.Event()

    def look() -> None:
        while not finished.wait(INTERVAL):
            seen.append(private_memory())

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield seen
    finally:
        finished.set()
        watcher.join()


def private_memory() -> float:
    """MiB of this process that are not pages of files."""
    return status_bytes("RssAnon") / 2**20


def status_bytes(name: str) -> int:
    """A figure of this process that Linux keeps: ``RssAnon``, or ``VmHWM``, the peak of what was resident."""
    line = next(line for line in STATUS.read_text(encoding="utf-8").splitlines() if name in line)
    return int(line.split()[1]) * 1024


ROWS: dict[str, Measure] = {"memory-flat": flat}

if __name__ == "__main__":
    main()
