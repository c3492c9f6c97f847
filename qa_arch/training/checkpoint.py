"""Checkpoints to resume from: the last one, whole or not at all, with plain contents."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl

LAST = "last.ckpt"


class KeepLast(pl.Callback):
    """Writes ``last.ckpt`` at each epoch's end, and inside an epoch every ``minutes``.

    It stands last among the callbacks, so that what the others learned at the same moment is in it.
    """

    def __init__(self, folder: Path, minutes: float, accumulate: int) -> None:
        self.path = folder / LAST
        self.seconds, self.accumulate = 60 * minutes, accumulate

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.saved = time.monotonic()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # Gradients half accumulated are not in a checkpoint, so it waits for the optimizer step.
        due = trainer.strategy.broadcast(time.monotonic() - self.saved >= self.seconds)
        if due and (batch_idx + 1) % self.accumulate == 0 and not trainer.is_last_batch:
            self._save(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._save(trainer)

    def _save(self, trainer: pl.Trainer) -> None:
        temporary = self.path.with_suffix(".partial")
        trainer.save_checkpoint(temporary, weights_only=False)  # optimizer and loops as well
        if trainer.is_global_zero:
            temporary.replace(self.path)
        self.saved = time.monotonic()
