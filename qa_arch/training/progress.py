"""What a run shows while it trains: a record per epoch, entries per step for the logger, a bar or lines."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytorch_lightning as pl
import torch
from rich.console import Console
from rich.progress import Progress, ProgressColumn, Task
from rich.progress_bar import ProgressBar
from rich.table import Table
from torch.distributed.tensor import DTensor

from qa_arch.system import terminal
from qa_arch.training.module import TrainingModule


def calibration_scores(trainer: pl.Trainer) -> dict[str, float]:
    """Scores of the calibration split at the last validation."""
    return {k: float(v) for k, v in trainer.callback_metrics.items() if k.startswith("calibration")}


@dataclass(eq=False)
class History(pl.Callback):
    """One plain record per epoch: losses, calibration scores, seconds, learning rate, windows per second."""

    publish: Callable[[list[dict[str, Any]]], Any]
    epochs: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    """Training time of the current epoch, whatever interruptions it had."""
    scores: dict[str, float] = field(default_factory=dict)
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


@dataclass(eq=False)
class StepMetrics(pl.Callback):
    """Every ``every`` optimizer steps: loss, gradient norm, learning rates and speed, for the logger.

    The loss is the mean over the windows since the entry before, at most since the epoch began, and the speed
    is theirs: windows a second over all ranks, of which a question has one or more. The norm is
    that of the one step, before clipping; DeepSpeed, which clips by itself, shows none. The rates are those
    that the step used, by parameter group. All ranks take part, since sums and sharded gradients are spread
    over them, and rank 0 logs.
    """

    every: int
    rates: dict[str, float] = field(default_factory=dict)
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


log = logging.getLogger(__name__)
EVERY_SECONDS = 30.0
BAR_SECONDS = 0.2
"""From one reading of the loss for the bar to the next: each waits for all that the GPU has still to do."""
BAR = 10, 40
"""Characters of the bar: below the first it is left out, more than the second it does not take."""
FIRST_STEP = "first optimizer step done"
"""Logged once: until then a run may only be reading data and building its model."""


class TrainingProgress(pl.Callback):
    """Steps done, rate, time left, loss and the last calibration F1, or the task's own score; rank 0 only."""

    def __init__(self, label: str, live: bool) -> None:
        console = terminal.console(stderr=True)
        self.label = label
        self.stepping = False
        self.scores: dict[str, float] = {}
        """Of the current epoch, once it is validated."""
        self.headline = ""
        """The calibration score that is shown, of the last epoch that has one."""
        self.bar = _bar(console) if live and console.is_terminal else None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._begin(trainer)  # a resumed epoch does not start anew

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._begin(trainer)

    def _begin(self, trainer: pl.Trainer) -> None:
        self.begun = time.perf_counter()
        self.shown = self.begun if self.bar is None else -math.inf  # figures from the first batch on
        self.offset: int | None = None
        if self.bar is not None and trainer.is_global_zero:
            for task in self.bar.task_ids:
                self.bar.remove_task(task)
            self.bar.start()
            batches = trainer.num_training_batches
            self.task = self.bar.add_task(
                self._title(trainer), total=batches, rate="", left="", loss="", score=self.headline
            )

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if not trainer.is_global_zero:
            return
        if not self.stepping and trainer.global_step:
            self.stepping = True
            if self.bar is None:
                log.info("%s: %s", self._title(trainer), FIRST_STEP)
        self.offset = batch_idx if self.offset is None else self.offset
        now, done = time.perf_counter(), batch_idx + 1
        rate = (done - self.offset) / max(1e-9, now - self.begun)
        left = f"{_clock((trainer.num_training_batches - done) / rate)} left"
        if self.bar is not None:
            self.bar.update(self.task, completed=done)
        if now - self.shown < (EVERY_SECONDS if self.bar is None else BAR_SECONDS):
            return
        self.shown = now
        if self.bar is not None:
            self.bar.update(self.task, left=left, **self._figures(pl_module, rate))
        else:
            log.info(
                "%s: batch %d of %d, %s, %s",
                self._title(trainer),
                done,
                trainer.num_training_batches,
                self._status(pl_module, rate),
                left,
            )

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, TrainingModule)
        self.scores = calibration_scores(trainer)
        key = pl_module.task.monitor or "calibration_f1"
        if key in self.scores:
            self.headline = f"{key.replace('_', ' ')} {self.scores[key]:.2f}"

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        scores, self.scores = self.scores, {}
        if trainer.is_global_zero:
            listed = ", ".join(
                f"{key.removeprefix('calibration_')} {value:.2f}" for key, value in scores.items()
            )
            self._stop()  # or the line below would be written into the bar
            log.info(
                "%s done in %s; calibration: %s",
                self._title(trainer),
                _clock(time.perf_counter() - self.begun),
                listed or "none",
            )

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._stop()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        if self.bar is not None:
            self.bar.stop()

    def _title(self, trainer: pl.Trainer) -> str:
        return f"{self.label} epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"

    def _status(self, pl_module: pl.LightningModule, rate: float) -> str:
        return ", ".join(filter(None, self._figures(pl_module, rate).values()))

    def _figures(self, pl_module: pl.LightningModule, rate: float) -> dict[str, Any]:
        sums = pl_module.train_sums
        loss = float(sums[0] / sums[1].clamp(min=1))  # type: ignore[index]
        return {"loss": f"loss {loss:.3f}", "rate": f"{rate:.1f} batches/s", "score": self.headline}


class _Line(ProgressColumn):
    """The whole line of an epoch, within the console's width.

    Where it is narrow the bar goes first, then the time elapsed, the score and the loss; steps, rate and time
    left stay, and the title is cut.
    """

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console

    def render(self, task: Task) -> Table:
        steps = f"{task.completed:.0f}/{task.total or 0:.0f}"
        line = ", ".join(filter(None, (steps, task.fields["rate"], task.fields["left"])))
        width = self.console.width - len(task.description) - 1
        for part in (task.fields["loss"], task.fields["score"], f"{_clock(task.elapsed or 0.0)} so far"):
            if part and len(line) + 2 + len(part) > width:
                break
            line += f", {part}" if part else ""
        grid = Table.grid(padding=(0, 1))
        title = task.description[: max(0, self.console.width - len(line) - 1)]
        bar = min(BAR[1], width - len(line) - 1)
        if bar < BAR[0]:
            grid.add_row(title, line)
        else:
            grid.add_row(title, ProgressBar(total=task.total, completed=task.completed, width=bar), line)
        return grid


def _bar(console: Console) -> Progress:
    return Progress(_Line(console), console=console, transient=True)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
