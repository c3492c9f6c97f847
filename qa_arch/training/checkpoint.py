"""The files of a run that trains: checkpoints to resume from, the best weights, its state at Ctrl-C."""

from __future__ import annotations

import logging
import os
import random
import shutil
import signal
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.io import TorchCheckpointIO
from pytorch_lightning.strategies import DeepSpeedStrategy

from qa_arch.config.files import replacing
from qa_arch.errors import QaArchError, RunError

log = logging.getLogger(__name__)
LAST = "last.ckpt"
PREVIOUS = "previous.ckpt"
PROMISE = (
    b"\nCtrl-C: a checkpoint is saved after this step (or validation), then the run stops;"
    b"\n        Ctrl-C again leaves at once\n"
)


class KeepLast(pl.Callback):
    """Writes ``last.ckpt`` at each epoch's end, and inside an epoch every ``minutes``.

    After Ctrl-C on rank 0 it writes one more at the next of these places where a step is whole, and raises
    KeyboardInterrupt on all ranks. It is the last of the callbacks, so that the state of the others at the
    same moment is in it.
    """

    def __init__(self, folder: Path, minutes: float, accumulate: int) -> None:
        self.path = folder / LAST
        self.seconds, self.accumulate = 60 * minutes, accumulate
        self.interrupted = False
        self.stopped_after: int | None = None
        """The optimizer step after which the run stopped for Ctrl-C, its state saved."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.saved = time.monotonic()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # Gradients half accumulated are not in a checkpoint, so it waits for the optimizer step.
        if (batch_idx + 1) % self.accumulate or trainer.is_last_batch:
            return
        due = time.monotonic() - self.saved >= self.seconds
        stop, due = trainer.strategy.broadcast((self.interrupted, due))
        if stop or due:
            self._save(trainer)
        if stop:
            self._stop(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._save(trainer)
        if trainer.strategy.broadcast(self.interrupted):
            self._stop(trainer)

    def _stop(self, trainer: pl.Trainer) -> None:
        self.stopped_after = trainer.global_step
        raise KeyboardInterrupt

    def _save(self, trainer: pl.Trainer) -> None:
        if isinstance(trainer.strategy, DeepSpeedStrategy):  # a folder, to which every rank adds its shard
            written = self.path.with_suffix(".partial")
            trainer.save_checkpoint(written, weights_only=False)
            if trainer.is_global_zero:
                rotate(written)
            trainer.strategy.barrier()
        else:
            trainer.save_checkpoint(self.path, weights_only=False)  # optimizer and loops as well
        self.saved = time.monotonic()

    @contextmanager
    def interruptible(self, *, announce: bool) -> Iterator[None]:
        """Note the first SIGINT of the body and leave the next to its handler from before; ``announce`` says
        so.

        Only where the main thread would be interrupted: elsewhere, and where SIGINT is ignored, nothing
        changes.
        """
        before = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is not threading.main_thread() or not callable(before):
            yield
            return

        def note(number: int, frame: FrameType | None) -> None:
            self.interrupted = True
            signal.signal(signal.SIGINT, before)
            if announce:
                os.write(2, PROMISE)  # a signal may come while Python's own stream is being written to

        signal.signal(signal.SIGINT, note)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


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
            with replacing(target) as temporary:
                with temporary.open("wb") as file:
                    torch.save(checkpoint, file)
                    file.flush()
                    os.fsync(file.fileno())
                if target.is_file():
                    target.replace(target.with_name(PREVIOUS))
        except QaArchError as error:
            left = "the checkpoint before it is kept" if target.is_file() else "there is none yet"
            log.warning("%s; %s, and training goes on: free some space", error, left)


def rotate(written: Path) -> None:
    """Make the folder ``written`` the last checkpoint, and the last one the previous one."""
    last, previous = (written.with_name(name) for name in (LAST, PREVIOUS))
    if last.exists():
        shutil.rmtree(previous, ignore_errors=True)
        last.replace(previous)
    written.replace(last)


def newest(folder: Path) -> Path | None:
    """The newest whole checkpoint of a run folder, every part with the checksum it was written with; None
    where none was ever written.

    Raises RunError where there are checkpoints and none of them is whole.
    """
    paths = [path for path in (folder / LAST, folder / PREVIOUS) if path.exists()]
    for path in paths:
        if path.is_dir():  # moved into place once all ranks had written
            return path
        try:
            with zipfile.ZipFile(path) as archive:
                if archive.testzip() is None:
                    return path
        except (zipfile.BadZipFile, OSError, EOFError, ValueError):
            pass
        log.warning("%s: damaged, it is left out", path)
    if paths:
        names = " and ".join(path.name for path in paths)
        raise RunError(f"{folder}: {names} cannot be read; --if-exists replace starts the run anew")
    return None


MONITORS = {
    "f1": ("calibration_f1", 1.0),
    "exact": ("calibration_exact", 1.0),
    "loss": ("calibration_loss", -1.0),
    "spans_auc": ("calibration_spans_auc", 1.0),
}
"""Ways to choose the epoch of a span model: the metric, and the sign that makes a higher value better."""


@dataclass(eq=False)
class BestWeights(pl.Callback):
    """Calls ``save`` with the model after each epoch that is the best so far on calibration (rank 0 only).

    ``select``: a key of ``MONITORS`` for the highest score or the lowest loss, or ``last``. The
    ``monitor`` of a task that has one takes the place of scores. Without a calibration split the last epoch
    is selected. With ``patience``, training stops after so many validated epochs without a better one, also
    a run that had stopped so and is resumed; a score that is no number is no better.
    """

    save: Callable[[pl.Trainer], Any]
    select: str = "f1"
    patience: int = 0
    best: float = float("-inf")
    epoch: int | None = None
    waited: int = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        trainer.should_stop = trainer.should_stop or 0 < self.patience <= self.waited

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        task: Any = pl_module.task
        if self.select == "last":
            value = float(trainer.current_epoch)
        else:
            own = task.monitor, -1.0 if task.lower_is_better else 1.0
            metric, sign = own if task.monitor else MONITORS[self.select]
            value = float(sign * trainer.callback_metrics[metric])
        self.waited += 1
        self._consider(trainer, value)
        if 0 < self.patience <= self.waited:
            trainer.should_stop = True

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.val_dataloaders:
            self._consider(trainer, float(trainer.current_epoch))

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.epoch is None:  # stopped by max_steps inside the first epoch, or no score was a number
            self._consider(trainer, 0.0)
            self.epoch = trainer.current_epoch - 1  # that epoch is counted as done by now

    def _consider(self, trainer: pl.Trainer, value: float) -> None:
        if value > self.best:
            self.best, self.epoch, self.waited = value, trainer.current_epoch, 0
            self.save(trainer)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "epoch": self.epoch, "waited": self.waited}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best, self.epoch, self.waited = (state_dict[key] for key in ("best", "epoch", "waited"))


def random_state() -> dict[str, Any]:
    """The generators of Python, NumPy and torch as plain values, which load with ``weights_only=True``."""
    version, internal, gauss = random.getstate()
    kind, keys, *rest = np.random.get_state()
    position, has_gauss, cached = rest
    return {
        "python": [version, list(internal), gauss],
        "numpy": [str(kind), [int(key) for key in keys], int(position), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore_random_state(state: dict[str, Any]) -> None:
    """Set the generators to what ``random_state`` returned."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
    torch.set_rng_state(state["torch"].cpu())
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([part.cpu() for part in state["cuda"]])
