"""Runs that are stopped on purpose, and what two runs are compared by."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from qa_arch.records import RunRecord
from qa_arch.training.checkpoint import KeepLast

CLOCKS = ("train_seconds", "validation_seconds", "windows_per_second")
"""Values of an epoch that differ from run to run."""


class StoppedError(Exception):
    """Raised in place of a kill."""


@contextmanager
def stopped_after(checkpoints: int) -> Iterator[None]:
    """A training in the body ends right after it has written so many checkpoints; it must get so far."""
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
    """What a record says, less the clock."""
    epochs = [replace(epoch, **dict.fromkeys(CLOCKS)) for epoch in record.epochs]
    return epochs, record.best_epoch, record.threshold, record.scores, record.parameters, record.config_hash
