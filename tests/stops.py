"""Stop runs on purpose, and compare runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from qa_arch.records import RunRecord
from qa_arch.training.checkpoint import KeepLast

CLOCKS = ("train_seconds", "validation_seconds", "windows_per_second")
"""Timings of an epoch, which differ between runs."""


class StoppedError(Exception):
    """Raised instead of killing the process."""


@contextmanager
def stopped_after(checkpoints: int) -> Iterator[None]:
    """Stop the training in the body right after it wrote that many checkpoints; it must get that far."""
    save, left = KeepLast._save, iter(range(checkpoints - 1, -1, -1))

    def stopping(self, trainer):
        save(self, trainer)
        if next(left) == 0:
            raise StoppedError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KeepLast, "_save", stopping)
        with pytest.raises(StoppedError):
            yield


def results_of(record: RunRecord) -> tuple:
    """The results in a record, without timings."""
    epochs = [replace(epoch, **dict.fromkeys(CLOCKS)) for epoch in record.epochs]
    return epochs, record.best_epoch, record.threshold, record.scores, record.parameters, record.run_hash
