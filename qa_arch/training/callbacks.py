"""What happens around training: the best weights kept, random states saved, history written."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
import torch.distributed as dist

from qa_arch.errors import RunError
from qa_arch.training.module import TrainingModule
from qa_arch.training.strategies import whole_weights

MONITORS = {
    "f1": ("calibration_f1", 1.0),
    "exact": ("calibration_exact", 1.0),
    "loss": ("calibration_loss", -1.0),
}
"""What can choose the epoch of a span model: the metric, and the sign that makes more of it better."""


def calibration_scores(trainer: pl.Trainer) -> dict[str, float]:
    """What the last validation said of the calibration split."""
    return {k: float(v) for k, v in trainer.callback_metrics.items() if k.startswith("calibration")}


class SameConfig(pl.Callback):
    """All ranks train the same config: asked before the model is wrapped, RunError where they do not.

    A rank of another run that met this one at its address would share its gradients, and nothing would fail.
    """

    def __init__(self, config_hash: str) -> None:
        self.config_hash = config_hash

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if trainer.world_size == 1:
            return
        hashes: list[Any] = [None] * trainer.world_size
        dist.all_gather_object(hashes, self.config_hash)
        if len(set(hashes)) > 1:
            said = ", ".join(f"rank {rank}: {value[:8]}" for rank, value in enumerate(hashes))
            raise RunError(f"the ranks of this run have different configs ({said}); start it again")


class KeepBest(pl.Callback):
    """Calls ``save`` after each epoch that is the best so far on calibration (rank 0 only).

    ``select`` is one of ``MONITORS``: the highest F1 or EM, or the lowest loss. A task with a ``monitor``
    of its own is chosen by that.
    Without a calibration split the last epoch is the one that is kept. After ``patience`` epochs
    without a better one training stops; 0 = never. A run that stopped so does not go on when resumed.
    Where the trained model is in shards, ``whole`` is another of its kind that takes the gathered weights.
    """

    def __init__(
        self,
        save: Callable[[torch.nn.Module], Any],
        patience: int = 0,
        select: str = "f1",
        whole: torch.nn.Module | None = None,
    ) -> None:
        self.save, self.patience, self.whole = save, patience, whole
        self.metric, self.sign = MONITORS[select]
        self.best: float = float("-inf")
        self.epoch: int | None = None
        self.waited = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._stop_when_due(trainer)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, TrainingModule)
        metric, sign = (pl_module.task.monitor, 1.0) if pl_module.task.monitor else (self.metric, self.sign)
        self._consider(trainer, pl_module, sign * float(trainer.callback_metrics[metric]))
        self._stop_when_due(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.val_dataloaders:
            self._consider(trainer, pl_module, float(trainer.current_epoch))

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.epoch is None:  # stopped by max_steps inside the first epoch, or no score was a number
            self._consider(trainer, pl_module, 0.0)
            self.epoch = trainer.current_epoch - 1  # that epoch is counted as done by now

    def _consider(self, trainer: pl.Trainer, pl_module: pl.LightningModule, value: float) -> None:
        self.waited += 1
        if value > self.best:
            self.best, self.epoch, self.waited = value, trainer.current_epoch, 0
            assert isinstance(pl_module, TrainingModule)
            if self.whole is not None:
                weights = whole_weights(trainer.strategy)
                if trainer.is_global_zero:
                    self.whole.load_state_dict(weights)
            if trainer.is_global_zero:
                self.save(self.whole or pl_module.model)

    def _stop_when_due(self, trainer: pl.Trainer) -> None:
        if self.patience and self.waited >= self.patience:
            trainer.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "epoch": self.epoch, "waited": self.waited}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best, self.epoch, self.waited = (state_dict[key] for key in ("best", "epoch", "waited"))


class RandomState(pl.Callback):
    """Saves and restores the random generators of every rank, which Lightning's checkpoints leave out."""

    def __init__(self) -> None:
        self.pending: list[dict[str, Any]] = []

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict
    ) -> None:
        states: list[Any] = [None] * trainer.world_size
        if trainer.world_size > 1:
            dist.all_gather_object(states, random_state())
        else:
            states = [random_state()]
        checkpoint["random"] = states

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict
    ) -> None:
        wrote = len(checkpoint["random"])
        if wrote != trainer.world_size:  # as devices=auto finds more or fewer of them
            raise RunError(
                f"a checkpoint of world size {wrote} cannot be gone on with in one of {trainer.world_size}:"
                " some windows would be trained twice and others not; give the run as many devices as it had,"
                " or --if-exists replace"
            )
        self.pending = checkpoint["random"]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.pending:
            restore_random_state(self.pending[trainer.global_rank])
        self.pending = []


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
    """Go on where ``random_state`` stood."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
    torch.set_rng_state(state["torch"].cpu())
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([part.cpu() for part in state["cuda"]])


class History(pl.Callback):
    """One plain record an epoch: losses, calibration scores, seconds, learning rate, windows a second."""

    def __init__(self, publish: Callable[[list[dict[str, Any]]], Any]) -> None:
        self.publish = publish
        self.epochs: list[dict[str, Any]] = []
        self.seconds = 0.0
        """Training time of the current epoch, whatever interruptions it had."""
        self.scores: dict[str, float] = {}
        """Of the current epoch, and the time it took to get them: ``trainer.callback_metrics`` keeps those
        of an earlier one."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.since = time.perf_counter()  # an epoch that is gone on with has no start of its own

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.since = time.perf_counter()

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        now = time.perf_counter()
        self.seconds += now - self.since
        self.since = now

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.validating = time.perf_counter()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        took = round(time.perf_counter() - self.validating, 3)
        self.scores = calibration_scores(trainer) | {"validation_seconds": took}

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, TrainingModule)
        loss, windows = pl_module.epoch_so_far()
        entry: dict[str, Any] = {
            "epoch": trainer.current_epoch,
            "step": trainer.global_step,
            "train_loss": loss,
            "train_seconds": round(self.seconds, 3),
            "windows": windows,
            "windows_per_second": round(windows / self.seconds, 3) if self.seconds else None,
            "lr": max(group["lr"] for group in trainer.optimizers[0].param_groups),
        }
        self.epochs.append(entry | self.scores)
        self.seconds, self.scores = 0.0, {}
        if trainer.logger is not None:
            trainer.logger.log_metrics(
                {k: v for k, v in self.epochs[-1].items() if v is not None}, step=trainer.global_step
            )
        if trainer.is_global_zero:
            self.publish(self.epochs)

    def state_dict(self) -> dict[str, Any]:
        return {"epochs": self.epochs, "seconds": self.seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.epochs, self.seconds = list(state_dict["epochs"]), state_dict["seconds"]
