"""A run whose other rank is gone ends, where it would wait for it for half an hour.

In the middle of a step rank 0 notices by itself that a connection is closed. While the ranks are still
meeting there is no connection, and the wait is inside torch, out of reach of an exception.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from qa_arch.results.record import Status, read_record

NOTICE = 20.0
"""Seconds that rank 0 has to notice by itself."""


class Process(Protocol):
    def poll(self) -> int | None: ...
    def kill(self) -> None: ...


@contextmanager
def ended_when_lost(others: Sequence[Process], folder: Path, notice: float = NOTICE) -> Iterator[None]:
    """End this process, with a word in the record, where one of ``others`` fails and the body hangs on."""
    over = threading.Event()
    watch = threading.Thread(target=_watch, args=(others, folder, notice, over), daemon=True)
    watch.start()
    try:
        yield
    finally:
        over.set()
        watch.join()


def _watch(others: Sequence[Process], folder: Path, notice: float, over: threading.Event) -> None:
    while not over.wait(0.5):
        codes = {rank: process.poll() for rank, process in enumerate(others, 1)}
        lost = {rank: code for rank, code in codes.items() if code}
        if not lost or over.wait(notice):
            continue
        rank, code = next(iter(lost.items()))
        said = (
            f"rank {rank} was killed by signal {-code}"
            if code < 0
            else f"rank {rank} failed (exit code {code})"
        )
        status: Status = "killed" if code < 0 else "failed"
        replace(read_record(folder), status=status, error=f"{said} and rank 0 waited for it").write(folder)
        for process in others:
            process.kill()
        os._exit(1)
