"""Callbacks of the Trainer: the best weights, the random states of a checkpoint, one config on all ranks."""

from __future__ import annotations

import random
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
    "spans_auc": ("calibration_spans_auc", 1.0),
    "last": ("", 1.0),
}
"""What can choose the epoch of a span model: the metric, and the sign that makes a higher value better; the
last needs none."""


class SameConfig(pl.Callback):
    """Raises RunError, before the model is wrapped, where ranks train different configs.

    A rank of another run that came to this one's address would share its gradients, and nothing would fail.
    """

    def __init__(self, config_hash: str) -> None:
        self.config_hash = config_hash

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if trainer.world_size == 1:
            return
        hashes: list[Any] = [None] * trainer.world_size
        dist.all_gather_object(hashes, self.config_hash)
        if len(set(hashes)) > 1:
            listed = ", ".join(f"rank {rank}: {value[:8]}" for rank, value in enumerate(hashes))
            raise RunError(f"the ranks of this run have different configs ({listed}); start it again")


class BestWeights(pl.Callback):
    """Calls ``save`` after each epoch that is the best so far on calibration (rank 0 only).

    ``select`` is a key of ``MONITORS``: the highest score, the lowest loss, or the last epoch. The
    ``monitor`` of a task that has one takes the place of scores. Without a calibration split the last epoch
    is selected. After ``patience`` epochs without a better score training stops; 0 = never. A run that
    stopped so does not go on when resumed. Where the trained model is in shards, ``whole`` is a copy of it
    that takes the gathered weights.
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
        metric, sign, task = self.metric, self.sign, pl_module.task
        if task.monitor:
            metric, sign = task.monitor, -1.0 if task.lower_is_better else 1.0
        last = not self.metric
        value = float(trainer.current_epoch if last else sign * trainer.callback_metrics[metric])
        self._consider(trainer, pl_module, value)
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
        if wrote != trainer.world_size:  # devices=auto, on a machine with more or fewer
            raise RunError(
                f"a checkpoint of world size {wrote} cannot be resumed with world size {trainer.world_size}:"
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
    """Set the generators to what ``random_state`` returned."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
    torch.set_rng_state(state["torch"].cpu())
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([part.cpu() for part in state["cuda"]])
