"""Measurements during training: a record per epoch, and entries per step for the logger."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl
import torch
from torch.distributed.tensor import DTensor

from qa_arch.training.module import TrainingModule


def calibration_scores(trainer: pl.Trainer) -> dict[str, float]:
    """Scores of the calibration split at the last validation."""
    return {k: float(v) for k, v in trainer.callback_metrics.items() if k.startswith("calibration")}


class History(pl.Callback):
    """One plain record per epoch: losses, calibration scores, seconds, learning rate, windows per second."""

    def __init__(self, publish: Callable[[list[dict[str, Any]]], Any]) -> None:
        self.publish = publish
        self.epochs: list[dict[str, Any]] = []
        self.seconds = 0.0
        """Training time of the current epoch, whatever interruptions it had."""
        self.scores: dict[str, float] = {}
        """Calibration scores of the current epoch and the seconds of their validation; ``callback_metrics``
        of the trainer would still have those of an earlier epoch."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.since = time.perf_counter()  # a resumed epoch does not start anew

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.since = time.perf_counter()

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        now = time.perf_counter()
        self.seconds += now - self.since
        self.since = now

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.validating = time.perf_counter()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        seconds = round(time.perf_counter() - self.validating, 3)
        self.scores = calibration_scores(trainer) | {"validation_seconds": seconds}

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, TrainingModule)
        losses, windows = pl_module.epoch_so_far()
        entry: dict[str, Any] = {
            "epoch": trainer.current_epoch,
            "step": trainer.global_step,
            **{f"train_{name}": value for name, value in losses.items()},
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


class StepMetrics(pl.Callback):
    """Every ``every`` optimizer steps: loss, gradient norm, learning rates and speed, for the logger.

    The loss is the mean over the windows since the entry before, at most since the epoch began, and the speed
    is theirs: windows a second over all ranks, of which a question has one or more. The norm is
    that of the one step, before clipping; DeepSpeed, which clips by itself, shows none. The rates are those
    that the step used, by parameter group. All ranks take part, since sums and sharded gradients are spread
    over them, and rank 0 logs.
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self.rates: dict[str, float] = {}
        """Of the step at work, where it is to be logged."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, TrainingModule)
        self.logged = pl_module.train_sums.clone()
        self.since = time.perf_counter()

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.since = time.perf_counter()  # without the validation before

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx == 0:  # where the sums start anew
            self.logged = torch.zeros_like(self.logged)

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        assert isinstance(pl_module, TrainingModule)
        if (trainer.global_step + 1) % self.every:
            return
        self.rates = {
            f"step/lr/{group.get('name', number)}": group["lr"]
            for number, group in enumerate(optimizer.param_groups)
        }
        gradients = [p.grad for p in pl_module.parameters() if p.grad is not None]
        if not pl_module.optim.clip and gradients:
            pl_module.gradient_norm = torch.nn.utils.get_total_norm(gradients)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        if not self.rates:
            return
        assert isinstance(pl_module, TrainingModule)
        sums = pl_module.train_sums - self.logged.to(pl_module.train_sums.device)
        loss, windows, *_terms = trainer.strategy.reduce(sums, reduce_op="sum").tolist()
        seconds = time.perf_counter() - self.since
        entry = {"step/train_loss": loss / windows if windows else 0.0, **self.rates}
        entry["step/windows_per_second"] = windows / seconds
        if (norm := pl_module.gradient_norm) is not None:
            entry["step/gradient_norm"] = float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
        if trainer.logger is not None:
            trainer.logger.log_metrics(entry, step=trainer.global_step)
        self.logged, self.rates = pl_module.train_sums.clone(), {}
        self.since = time.perf_counter()
