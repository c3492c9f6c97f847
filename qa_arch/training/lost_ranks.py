"""Ends a run that has lost a rank, instead of waiting for that rank for half an hour.

In the middle of a step rank 0 notices by itself that a connection is closed. While the ranks are still
meeting there is no connection, and the wait is inside torch, out of reach of an exception.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from qa_arch.results.record import read_record, write_record
from qa_arch.types.records import Status

NOTICE = 20.0
"""Seconds that rank 0 has to notice by itself."""
OUT_OF_MEMORY = 99
"""Exit code of a rank that had no memory left: rank 0 sees no more of it than a closed connection."""
ENDING = 5.0
"""Seconds between the closing of a rank's connections and its end."""


class Process(Protocol):
    def poll(self) -> int | None: ...
    def kill(self) -> None: ...


@contextmanager
def ended_when_lost(others: Sequence[Process], folder: Path, notice: float = NOTICE) -> Iterator[None]:
    """End this process, its status recorded, where a process of ``others`` fails and the body hangs."""
    over = threading.Event()
    watch = threading.Thread(target=_watch, args=(others, folder, notice, over), daemon=True)
    watch.start()
    try:
        yield
    finally:
        over.set()
        watch.join()


def rank_out_of_memory(others: Sequence[Process], patience: float = ENDING) -> int | None:
    """The rank, of ``others`` (1 and on), that ran out of memory; waits while some of them are ending."""
    until = time.monotonic() + patience
    while True:
        codes = [process.poll() for process in others]
        if OUT_OF_MEMORY in codes:
            return codes.index(OUT_OF_MEMORY) + 1
        if None not in codes or time.monotonic() > until:
            return None
        time.sleep(0.05)


def _watch(others: Sequence[Process], folder: Path, notice: float, over: threading.Event) -> None:
    while not over.wait(0.5):
        codes = {rank: process.poll() for rank, process in enumerate(others, 1)}
        lost = {rank: code for rank, code in codes.items() if code}
        if not lost or over.wait(notice):
            continue
        status, reason = _explain(lost)
        error = f"{reason} and rank 0 waited for it"
        write_record(folder, replace(read_record(folder), status=status, error=error))
        for process in others:
            process.kill()
        os._exit(1)


def _explain(lost: Mapping[int, int]) -> tuple[Status, str]:
    """The run's status and error; ``lost``: exit codes by rank. A rank may be lost by another's end."""
    for rank, code in lost.items():
        if code == OUT_OF_MEMORY:
            return "oom", f"rank {rank} ran out of memory"
    rank, code = next(iter(lost.items()))
    if code < 0:
        return "killed", f"rank {rank} was killed by signal {-code}"
    return "failed", f"rank {rank} failed (exit code {code})"
