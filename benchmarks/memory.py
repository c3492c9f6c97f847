"""Memory of bulk prediction in a process of its own: ``python -m benchmarks.memory QUESTIONS WHAT``.

Prints the most that reading and writing took beyond model and questions. ``resident``: MiB of private memory,
with blocks that were freed and that the allocator holds. ``alive``: MB of Python's and numpy's objects that
had not been freed; torch's tensors, of a batch each, are not among them.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import inputs
from benchmarks.growth import generated_set
from benchmarks.processes import output_of
from benchmarks.small import small_predictor
from benchmarks.targets import Measure, Measurement, NotMeasuredError
from qa_arch.spans import files as formats

STATUS = Path("/proc/self/status")
INTERVAL = 0.01


def flat(quick: bool) -> Measurement:
    """The largest set against the smallest, as ``qa-arch predict`` reads and writes them.

    By design nothing lives but a part of 1,000 questions, so the difference is what the largest part has more
    than the first. A float held for each question would be 32 bytes with its place in a list, 3.2 MB in all,
    so that a bound of 2 notices it.
    """
    if not STATUS.exists():
        raise NotMeasuredError("private memory is read from /proc, which this system has not")
    inputs.require_minilm()
    counts = (1_000, 3_000) if quick else (1_000, 100_000)
    for count in counts:
        generated_set(count)  # written before a process reads it
    low, high = (_most(count, "alive") for count in counts)
    resident = [_most(count, "resident") for count in counts]
    return Measurement(
        high - low,
        note=f"{low:.2f} MB at {counts[0]:,} questions, {high:.2f} at {counts[1]:,}; "
        f"resident {resident[0]:.0f} and {resident[1]:.0f} MiB, with freed blocks that the allocator holds",
    )


def _most(count: int, what: str) -> float:
    return float(output_of([sys.executable, "-m", "benchmarks.memory", str(count), what]))


def main() -> None:
    questions, predictor = generated_set(int(sys.argv[1])), small_predictor()
    most = {"alive": most_alive, "resident": most_resident}[sys.argv[2]]
    with tempfile.TemporaryDirectory() as folder:
        predictor("Who built it?", "The bridge was built by Ada Stone.")
        print(most(lambda: formats.write_parts(folder, predictor.read_parts(questions), 0.0)))


def most_alive(run: Callable[[], object]) -> float:
    """MB of what ``run`` allocated and had not freed, at its highest."""
    tracemalloc.start()
    run()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most / 1e6


def most_resident(run: Callable[[], object]) -> float:
    """MiB of private memory beyond that of before ``run``, at its highest."""
    before = private_memory()
    with watched_memory() as seen:
        run()
    return max(seen) - before


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
