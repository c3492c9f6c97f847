"""Checkpoints to resume from: the last and the previous, each whole or not at all, plain contents."""

from __future__ import annotations

import logging
import os
import shutil
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.io import TorchCheckpointIO
from pytorch_lightning.strategies import DeepSpeedStrategy

from qa_arch.config.files import write_with
from qa_arch.errors import QaArchError, RunError
from qa_arch.training.interrupts import Interrupt

log = logging.getLogger(__name__)
LAST = "last.ckpt"
PREVIOUS = "previous.ckpt"


class KeepLast(pl.Callback):
    """Writes ``last.ckpt`` at each epoch's end, and inside an epoch every ``minutes``.

    After Ctrl-C on rank 0 it writes one more at the next of these places where a step is whole, and raises
    KeyboardInterrupt on all ranks. It is the last of the callbacks, so that the state of the others at the
    same moment is in it.
    """

    def __init__(self, folder: Path, minutes: float, accumulate: int, interrupt: Interrupt) -> None:
        self.path = folder / LAST
        self.seconds, self.accumulate = 60 * minutes, accumulate
        self.interrupt = interrupt

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.saved = time.monotonic()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # Gradients half accumulated are not in a checkpoint, so it waits for the optimizer step.
        if (batch_idx + 1) % self.accumulate or trainer.is_last_batch:
            return
        due = time.monotonic() - self.saved >= self.seconds
        stop, due = trainer.strategy.broadcast((self.interrupt.pressed, due))
        if stop or due:
            self._save(trainer)
        if stop:
            self._stop(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._save(trainer)
        if trainer.strategy.broadcast(self.interrupt.pressed):
            self._stop(trainer)

    def _stop(self, trainer: pl.Trainer) -> None:
        self.interrupt.step = trainer.global_step
        raise KeyboardInterrupt

    def _save(self, trainer: pl.Trainer) -> None:
        if isinstance(trainer.strategy, DeepSpeedStrategy):  # a folder, to which every rank adds its shard
            partial = self.path.with_suffix(".partial")
            trainer.save_checkpoint(partial, weights_only=False)
            if trainer.is_global_zero:
                rotate(partial)
            trainer.strategy.barrier()
        else:
            trainer.save_checkpoint(self.path, weights_only=False)  # optimizer and loops as well
        self.saved = time.monotonic()


class DurableCheckpoints(TorchCheckpointIO):
    """Writes a checkpoint beside the last, which becomes the previous once the new checkpoint is on disk.

    A full disk costs the new checkpoint and nothing else: the run goes on with a warning. Lightning calls
    this on rank 0 alone, where an error would leave the other ranks waiting for it.
    """

    def save_checkpoint(
        self, checkpoint: Mapping[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        target = Path(path)
        try:
            write_with(target, lambda temporary: self._replace(checkpoint, temporary, target))
        except QaArchError as error:
            left = "the checkpoint before it is kept" if target.is_file() else "there is none yet"
            log.warning("%s; %s, and training goes on: free some space", error, left)

    @staticmethod
    def _replace(checkpoint: Mapping[str, Any], temporary: Path, target: Path) -> None:
        with temporary.open("wb") as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())
        if target.is_file():
            target.replace(target.with_name(PREVIOUS))


def rotate(written: Path) -> None:
    """Make the folder ``written`` the last checkpoint, and the last one the previous one."""
    last, previous = (written.with_name(name) for name in (LAST, PREVIOUS))
    if last.exists():
        shutil.rmtree(previous, ignore_errors=True)
        last.replace(previous)
    written.replace(last)


def newest(folder: Path) -> Path | None:
    """The newest whole checkpoint of a run folder; None where none was ever written.

    Raises RunError where there are checkpoints and none of them is whole.
    """
    paths = [path for path in (folder / LAST, folder / PREVIOUS) if path.exists()]
    for path in paths:
        if _is_whole(path):
            return path
        log.warning("%s: damaged, it is left out", path)
    if paths:
        names = " and ".join(path.name for path in paths)
        raise RunError(f"{folder}: {names} cannot be read; --if-exists replace starts the run anew")
    return None


def _is_whole(path: Path) -> bool:
    """Whether every part of the file has the checksum it was written with."""
    if path.is_dir():  # moved into place once all ranks had written
        return True
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except (zipfile.BadZipFile, OSError, EOFError, ValueError):
        return False
