"""Ctrl-C in training: the first ends the run once a checkpoint is saved, the second at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

PROMISE = (
    b"\nCtrl-C: a checkpoint is saved after this step (or validation), then the run stops;"
    b"\n        Ctrl-C again leaves at once\n"
)


class Interrupt:
    """Whether Ctrl-C was pressed, and after which optimizer step the run stopped for it, its state saved."""

    def __init__(self) -> None:
        self.pressed = False
        self.step: int | None = None


@contextmanager
def deferred(interrupt: Interrupt, *, announce: bool) -> Iterator[None]:
    """Note the first SIGINT of the body and leave the next to whom it went before; ``announce`` says so.

    Only where the main thread would be interrupted: elsewhere, and where SIGINT is ignored, nothing changes.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return

    def note(number: int, frame: FrameType | None) -> None:
        interrupt.pressed = True
        signal.signal(signal.SIGINT, before)
        if announce:
            os.write(2, PROMISE)  # a signal may come while Python's own stream is being written to

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
