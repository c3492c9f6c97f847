"""Files written during training: checkpoints to resume from, the best weights, and the state at Ctrl-C."""

from __future__ import annotations

import errno
import logging
import os
import random
import signal
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from types import FrameType
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.callbacks import Checkpoint
from pytorch_lightning.plugins.io import TorchCheckpointIO

from qa_arch.errors import BRIEF, QaArchError, RunError, first_line, out_of_memory
from qa_arch.files import replacing

log = logging.getLogger(__name__)
LAST = "last.ckpt"
PREVIOUS = "previous.ckpt"
CONTENT = {"pytorch-lightning_version", "state_dict", "loops", "random", "train_sums"}
"""Parts of every checkpoint: Lightning's, and those that ``TrainingModule`` adds."""
START_OVER = "use --if-exists replace to start over"
STOP_NOTICE = (
    b"\nstopping: a checkpoint is saved after this step (or validation), then the run ends;"
    b"\n          Ctrl-C again quits at once\n"
)


def discard(folder: Path) -> None:
    """Delete the checkpoints in ``folder``."""
    for name in (LAST, PREVIOUS):
        (folder / name).unlink(missing_ok=True)


class KeepLast(Checkpoint):
    """Saves ``last.ckpt`` at the end of each epoch, and every ``minutes`` within one.

    After Ctrl-C or SIGTERM on rank 0 it saves once more after the current optimizer step or epoch and raises
    KeyboardInterrupt on all ranks. It must be the last callback, so that the checkpoint holds the state of
    all others; of Lightning's class of checkpoints, as EarlyStopping is called after any other. A run that a
    callback had ended is at its end when it is resumed, too.
    """

    def __init__(self, folder: Path, minutes: float, accumulate: int) -> None:
        self.path = folder / LAST
        self.seconds, self.accumulate = 60 * minutes, accumulate
        self.interrupted = False
        self.ended = False
        """Whether a callback had ended training when the checkpoint was saved."""
        self.stopped_after: int | None = None
        """Optimizer step after which a signal stopped the run; its checkpoint is saved."""
        self.ranks: dist.ProcessGroup | None = None
        """Group of all ranks that communicates by CPU, if there are several."""
        self.handlers: dict[int, Any] = {}
        """Signal -> handler that records it, within ``interruptible``."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.saved = time.monotonic()
        trainer.should_stop = trainer.should_stop or self.ended  # which EarlyStopping forgets
        self.ranks = dist.new_group(backend="gloo") if trainer.world_size > 1 else None
        # Set here to replace Lightning's SIGTERM handler, which broadcasts to the other ranks: they may be in
        # another collective operation, and all would wait for ever.
        for number, handler in self.handlers.items():
            signal.signal(number, handler)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # Checkpoints do not hold partly accumulated gradients: wait for the optimizer step. After the last
        # step of an epoch or of the run, wait for the end of the epoch, which a resumed run would not repeat.
        is_last = trainer.is_last_batch or trainer.should_stop
        if (batch_idx + 1) % self.accumulate or is_last:
            return
        due = time.monotonic() - self.saved >= self.seconds
        stop, due = self._of_rank_0(self.interrupted, due)
        if stop or due:
            self._save(trainer)
        if stop:
            self._stop(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._save(trainer)
        if any(self._of_rank_0(self.interrupted)):
            self._stop(trainer)

    def _of_rank_0(self, *flags: bool) -> list[bool]:
        """The flags that rank 0 has, on every rank, without waiting for a GPU."""
        agreed = torch.tensor(flags, dtype=torch.uint8)
        if self.ranks is not None:
            dist.broadcast(agreed, 0, self.ranks)
        return agreed.bool().tolist()

    def _stop(self, trainer: pl.Trainer) -> None:
        self.stopped_after = trainer.global_step
        raise KeyboardInterrupt

    def _save(self, trainer: pl.Trainer) -> None:
        self.ended = trainer.should_stop  # first: the checkpoint holds it
        trainer.save_checkpoint(self.path, weights_only=False)  # with optimizer and loop state
        self.saved = time.monotonic()

    def state_dict(self) -> dict[str, Any]:
        return {"ended": self.ended}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.ended = state_dict["ended"]

    @contextmanager
    def interruptible(self, *, announce: bool) -> Iterator[None]:
        """Record the first SIGINT or SIGTERM, and leave the next one to the previous handler.

        Prints a notice if ``announce``. Does nothing outside the main thread; ignored signals stay ignored.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        # None stands for a handler that Python did not set, and cannot set back.
        previous = {number: old for number, old in before.items() if old not in (signal.SIG_IGN, None)}

        def restore() -> None:
            for number, old in previous.items():
                signal.signal(number, old)

        def note(number: int, frame: FrameType | None) -> None:
            self.interrupted = True
            restore()
            if announce:
                os.write(2, STOP_NOTICE)  # Python's own stream may be in the middle of a write

        self.handlers = dict.fromkeys(previous, note)  # set when Lightning has set its own
        try:
            yield
        finally:
            restore()


class DurableCheckpoints(TorchCheckpointIO):
    """Replaces a checkpoint, and keeps the old one as ``previous.ckpt``, once the new one is on disk.

    A full disk costs only the new checkpoint: the run continues with a warning. Lightning calls this on
    rank 0 alone, where an error would leave the other ranks waiting. ``loaded`` is the content of the
    checkpoint to resume from.
    """

    def __init__(self, loaded: dict[str, Any] | None = None) -> None:
        self.loaded = loaded

    def load_checkpoint(self, *args: Any, **options: Any) -> dict[str, Any]:
        loaded, self.loaded = self.loaded, None  # Lightning frees it when it is restored
        return super().load_checkpoint(*args, **options) if loaded is None else loaded

    def save_checkpoint(
        self, checkpoint: Mapping[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        target = Path(path)
        try:
            with replacing(target, parents=False) as temporary:  # a folder that was renamed is not made again
                with temporary.open("wb") as file:
                    torch.save(checkpoint, file)
                    file.flush()
                    os.fsync(file.fileno())
                # A kill between this rename and the next one leaves the previous checkpoint, which is read.
                if target.is_file():
                    target.replace(target.with_name(PREVIOUS))
        except QaArchError as error:
            state = "the previous checkpoint is kept" if target.is_file() else "there is no checkpoint yet"
            log.warning("%s; %s, and training continues: free some disk space", error, state)


def newest(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """Newest checkpoint of a run folder that is not damaged, and its content; None if none was ever written.

    Raises RunError if there are checkpoints and all are damaged, or if one holds pickled objects, and the
    error itself if memory runs out or the system refuses to read.
    """
    paths = [path for path in (folder / LAST, folder / PREVIOUS) if path.exists()]
    for path in paths:
        intact = False
        try:
            with zipfile.ZipFile(path) as archive:
                intact = archive.testzip() is None  # torch compares no checksums
            if intact:
                return path, torch.load(path, map_location="cpu", weights_only=True)
        except UnpicklingError as error:
            raise RunError(
                f"{path}: holds more than tensors and plain values, and is not loaded; {START_OVER}"
            ) from error
        except Exception as error:  # one bit of a header suffices for errors of almost any class
            # EINVAL: a damaged header points there; EISDIR: a folder. Other numbers are of the system.
            damaged = (None, errno.EINVAL, errno.EISDIR)
            refused = isinstance(error, OSError) and error.errno not in damaged
            if refused or (intact and out_of_memory(error)):  # says nothing about the content
                raise
        log.warning("%s: damaged, skipped", path)
    if paths:
        names = " and ".join(path.name for path in paths)
        raise RunError(f"{folder}: {names} cannot be read; {START_OVER}")
    return None


def require_own(path: Path, loaded: Any, module: pl.LightningModule) -> None:
    """Raise RunError if the checkpoint ``loaded`` from ``path`` is of another program or another model."""
    saved = loaded["state_dict"] if isinstance(loaded, dict) and loaded.keys() >= CONTENT else None
    shapes = {name: tensor.shape for name, tensor in module.state_dict().items()}
    if not isinstance(saved, dict) or shapes != {
        name: getattr(value, "shape", None) for name, value in saved.items()
    }:
        raise RunError(f"{path}: is not a checkpoint of this run; {START_OVER}")


@contextmanager
def naming(path: Path | None, begun: Callable[[], bool]) -> Iterator[None]:
    """Turn an error before training has ``begun`` into a RunError that names the checkpoint ``path``: what is
    wrong within it can raise anything."""
    try:
        yield
    except Exception as error:
        if path is None or begun() or isinstance(error, QaArchError) or out_of_memory(error):
            raise
        reason = f"{type(error).__name__}: {first_line(error, BRIEF)}"
        raise RunError(f"{path}: is not a checkpoint of this run ({reason}); {START_OVER}") from error


@dataclass(eq=False)
class BestWeights(pl.Callback):
    """Calls ``save`` with the trainer after each epoch that is the best so far on calibration.

    ``select``: the calibration score to maximise, ``loss``, which is minimised, or ``last``. A task's own
    ``monitor`` replaces the scores. Without a calibration split the last epoch is selected. With
    ``patience``, training stops after that many validated epochs without improvement; NaN is no improvement.
    """

    save: Callable[[pl.Trainer], Any]
    select: str = "f1"
    patience: int = 0
    best: float = float("-inf")
    epoch: int | None = None
    waited: int = 0

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        fitting: Any = pl_module.fitting
        if self.select == "last":
            value = float(trainer.current_epoch)
        else:
            metric = fitting.monitor or f"calibration_{self.select}"
            sign = -1.0 if metric == "calibration_loss" else 1.0
            value = float(sign * trainer.callback_metrics[metric])
        self.waited += 1
        self._consider(trainer, value)
        if 0 < self.patience <= self.waited:
            trainer.should_stop = True

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.val_dataloaders:
            self._consider(trainer, float(trainer.current_epoch))
        elif self.best == float("-inf"):  # all scores are NaN
            self.epoch = trainer.current_epoch
            self.save(trainer)

    def _consider(self, trainer: pl.Trainer, value: float) -> None:
        if value > self.best:
            self.best, self.epoch, self.waited = value, trainer.current_epoch, 0
            self.save(trainer)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "epoch": self.epoch, "waited": self.waited}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best, self.epoch, self.waited = (state_dict[key] for key in ("best", "epoch", "waited"))


def random_state() -> dict[str, Any]:
    """State of the Python, NumPy and torch generators as plain values, for ``weights_only=True``."""
    version, internal, gauss = random.getstate()
    kind, keys, *rest = np.random.get_state()
    position, has_gauss, cached = rest
    return {
        "python": [version, list(internal), gauss],
        "numpy": [str(kind), [int(key) for key in keys], int(position), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state(),
        # Of the device of this process alone: it may be resumed where others are visible.
        "cuda": [torch.cuda.get_rng_state()] if torch.cuda.is_available() else [],
    }


def restore_random_state(state: dict[str, Any]) -> None:
    """Restore the generators to a state returned by ``random_state``."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
    torch.set_rng_state(state["torch"].cpu())
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"][0].cpu())
