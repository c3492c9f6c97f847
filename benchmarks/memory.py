"""Memory of bulk prediction, measured in a separate process: ``python -m benchmarks.memory QUESTIONS``.

Prints the peak of reading and writing beyond model and questions, in MB of live Python and numpy objects,
without torch's tensors, of which there is one batch at a time.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.growth import generated_set
from benchmarks.processes import output_of
from benchmarks.small import small_predictor
from benchmarks.targets import Measure, Measurement
from qa_arch.qa.files import write_parts

STATUS = Path("/proc/self/status")
INTERVAL = 0.01


def growth(quick: bool) -> Measurement:
    """Peak for the largest set minus the smallest, read and written as in ``qa-arch predict``.

    By design only a part of 1,000 questions is alive at a time, so the difference is how much the largest
    part exceeds the first. One float kept per question would take 32 bytes with its list slot, 0.93 MB in
    total, which the bound catches.
    """
    counts = (1_000, 3_000) if quick else (1_000, 30_000)
    for count in counts:
        generated_set(count)  # written before the child process reads it
    low, high = (
        float(output_of([sys.executable, "-m", "benchmarks.memory", str(count)])) for count in counts
    )
    return Measurement(
        high - low, note=f"{low:.2f} MB at {counts[0]:,} questions, {high:.2f} at {counts[1]:,}"
    )


def main() -> None:
    questions, predictor = generated_set(int(sys.argv[1])), small_predictor()
    with tempfile.TemporaryDirectory() as folder:
        predictor("Who built it?", "The bridge was built by Ada Stone.")
        print(peak_alive(lambda: write_parts(folder, predictor.rank_parts(questions), 0.0)))


def peak_alive(run: Callable[[], object]) -> float:
    """Peak MB of live allocations during ``run``."""
    tracemalloc.start()
    run()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 1e6


def peak_resident(run: Callable[[], object]) -> float:
    """Peak MiB of private memory during ``run`` beyond that before it."""
    before = private_memory()
    with sample_memory() as samples:
        run()
    return max(samples) - before


@contextmanager
def sample_memory() -> Iterator[list[float]]:
    """Samples of ``private_memory``, taken from a thread every ``INTERVAL`` seconds during the block."""
    samples, finished = [private_memory()], threading.Event()

    def sample() -> None:
        while not finished.wait(INTERVAL):
            samples.append(private_memory())

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield samples
    finally:
        finished.set()
        sampler.join()


def private_memory() -> float:
    """Anonymous resident memory of this process, in MiB."""
    return status_bytes("RssAnon") / 2**20


def status_bytes(name: str) -> int:
    """A field of ``STATUS`` in bytes, such as ``RssAnon`` or ``VmHWM``, the peak resident size."""
    line = next(line for line in STATUS.read_text(encoding="utf-8").splitlines() if name in line)
    return int(line.split()[1]) * 1024


ROWS: dict[str, Measure] = {"memory-flat": growth}

if __name__ == "__main__":
    main()
