"""Progress of a run: one record per epoch, log entries per step, and a progress bar or lines."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

import pytorch_lightning as pl
import torch
from torch.distributed.tensor import DTensor

from qa_arch import terminal
from qa_arch.records import STEP_LOSSES
from qa_arch.terminal import EVERY_SECONDS
from qa_arch.training.module import TrainingModule

MAX_STEP_LOSSES = 50
"""Largest number of losses within an epoch that its record keeps."""
LOGGED_NAMES = {
    "lr": "train/lr",
    "windows_per_second": "train/windows_per_second",
    "windows": "train/windows",
    "flops": "train/flops",
    "validation_seconds": "calibration/seconds",
}
"""Names in a logger that do not follow from the key in an epoch's record."""


def logged(entry: Mapping[str, Any]) -> dict[str, float]:
    """Numbers of an epoch's record under their names in a logger: ``train/loss``, ``calibration/f1``."""
    numbers = {key: value for key, value in entry.items() if isinstance(value, int | float)}
    return {LOGGED_NAMES.get(key, key.replace("_", "/", 1)): value for key, value in numbers.items()}


@dataclass(eq=False)
class History(pl.Callback):
    """One plain record per epoch: losses, calibration scores, seconds, learning rate, windows per second.

    Within an epoch there is an entry every ``every`` optimizer steps: the mean loss over the windows since
    the previous entry, also for the record; and for the logger the step's learning rate of each parameter
    group, its gradient norm before clipping and the windows per second over all ranks. All ranks take part,
    since sums and sharded gradients are spread over them; rank 0 logs.
    """

    publish: Callable[[list[dict[str, Any]]], Any]
    every: int = 0
    """0: no entries within an epoch."""
    flops: float = 0.0
    """Floating-point operations per window."""
    epochs: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    """Training time of the current epoch, also before it was resumed."""
    steps: dict[str, float] = field(default_factory=dict)
    """Losses within the current epoch."""
    scores: dict[str, float] = field(default_factory=dict)
    """Calibration scores and validation seconds of the epoch."""
    rates: dict[str, float] = field(default_factory=dict)
    """Learning rates of the current step, if it is to be logged."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.on_train_epoch_start(trainer, pl_module)  # which a resumed epoch does not call

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.last_batch = self.last_entry = time.perf_counter()  # exclude the previous validation

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        assert isinstance(pl_module, TrainingModule)
        if not self.every or (trainer.global_step + 1) % self.every:
            return
        groups = enumerate(optimizer.param_groups)
        self.rates = {f"step/lr/{group.get('name', number)}": group["lr"] for number, group in groups}
        gradients = [p.grad for p in pl_module.parameters() if p.grad is not None]
        if not pl_module.optim.clip and gradients:  # also on ranks without a logger, for sharded gradients
            pl_module.gradient_norm = torch.nn.utils.get_total_norm(gradients)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        assert isinstance(pl_module, TrainingModule)
        now = time.perf_counter()
        self.seconds += now - self.last_batch
        self.last_batch = now
        if not self.rates:
            return
        losses, windows = pl_module.mean_losses(since_entry=True)
        self.steps[str(trainer.global_step)] = losses["loss"]
        if trainer.loggers:
            now = time.perf_counter()
            rate = windows / (now - self.last_entry)
            entry = {"step/loss": losses["loss"], **self.rates, "step/windows_per_second": rate}
            if (norm := pl_module.gradient_norm) is not None:
                entry["step/gradient_norm"] = float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
            for logger in trainer.loggers:
                logger.log_metrics(entry, step=trainer.global_step)
            self.last_entry = time.perf_counter()  # without the time of the loggers
        self.rates = {}

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.validation_start = time.perf_counter()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        metrics = trainer.callback_metrics.items()
        self.scores = {key: float(value) for key, value in metrics if key.startswith("calibration")}
        self.scores["validation_seconds"] = round(time.perf_counter() - self.validation_start, 3)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, TrainingModule)
        losses, windows = pl_module.mean_losses()
        entry: dict[str, Any] = {
            "epoch": trainer.current_epoch,
            "step": trainer.global_step,
            **{f"train_{name}": value for name, value in losses.items()},
            "train_seconds": round(self.seconds, 3),
            "windows": windows,
            "flops": round(windows * self.flops),
            "windows_per_second": round(windows / self.seconds, 3) if self.seconds else None,
            "lr": max(group["lr"] for group in trainer.optimizers[0].param_groups),
            **self.scores,
        }
        if len(self.steps) > 1:
            thinned = list(self.steps.items())[:: -(-len(self.steps) // MAX_STEP_LOSSES)]
            entry[STEP_LOSSES] = dict(thinned)
        self.epochs.append(entry)
        self.seconds, self.steps = 0.0, {}
        for logger in trainer.loggers:
            logger.log_metrics(logged(entry), step=trainer.global_step)
        if trainer.is_global_zero:
            self.publish(self.epochs)

    def state_dict(self) -> dict[str, Any]:
        return {"epochs": self.epochs, "steps": self.steps, "seconds": self.seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.epochs, self.steps = list(state_dict["epochs"]), dict(state_dict["steps"])
        self.seconds = state_dict["seconds"]


log = logging.getLogger(__name__)
BAR_SECONDS = 0.2
"""Seconds between readings of the loss for the bar: each waits for all pending GPU work."""
KNOWN_AFTER = 3
"""Batches of an epoch after which the time left is shown."""
FIRST_STEP = "first optimizer step done"
"""Logged once; before it, a run may still be reading data and building its model."""


class TrainingProgress(pl.Callback):
    """Shows steps, rate, time left, loss and the last calibration F1 or task-specific score; rank 0 only.

    ``live`` draws a bar in a terminal or notebook; elsewhere, and without it, lines are logged. Scores are
    read from ``history``, which must come before it in the list of callbacks.
    """

    def __init__(self, label: str, history: History, live: bool) -> None:
        console = terminal.console(stderr=True)
        self.label, self.history = label, history
        self.has_stepped = False
        self.in_notebook = live and console.is_jupyter
        self.cell: Any = None
        """Output of a notebook's cell that shows the current epoch."""
        live = live and console.is_terminal and not self.in_notebook
        self.bar = terminal.progress_bar(console) if live else None
        self.every = BAR_SECONDS if live or self.in_notebook else EVERY_SECONDS

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.on_train_epoch_start(trainer, pl_module)  # which a resumed epoch does not call

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.epoch_start = time.perf_counter()
        # A bar is updated at once.
        self.last_update = self.epoch_start if self.every == EVERY_SECONDS else -math.inf
        self.first_batch: int | None = None
        self.title = f"{self.label} epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"
        if self.bar is not None and trainer.is_global_zero:
            for task in self.bar.task_ids:
                self.bar.remove_task(task)
            self.bar.start()
            self.task = self.bar.add_task(self.title, total=trainer.num_training_batches, figures=())

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if not trainer.is_global_zero:
            return
        if not self.has_stepped and trainer.global_step:
            self.has_stepped = True
            if self.every == EVERY_SECONDS:
                log.info("%s: %s", self.title, FIRST_STEP)
        # Not 0 where an epoch is resumed: the rate is that of the batches since.
        self.first_batch = batch_idx if self.first_batch is None else self.first_batch
        now, done = time.perf_counter(), batch_idx + 1
        if self.bar is not None:
            self.bar.update(self.task, completed=done)
        if now - self.last_update < self.every:
            return
        self.last_update = now
        total, figures = trainer.num_training_batches, self._figures(trainer, pl_module, done, now)
        if self.bar is not None:
            self.bar.update(self.task, figures=figures)
        elif self.in_notebook:
            self._draw(done, total, f"{self.title}: batch {done} of {total}, {', '.join(figures)}")
        else:
            log.info("%s: batch %d of %d, %s", self.title, done, total, ", ".join(figures))

    def _figures(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, done: int, now: float
    ) -> list[str]:
        """Figures of the epoch so far, most important first."""
        assert isinstance(pl_module, TrainingModule)
        loss, windows, *_ = pl_module.train_sums[0]  # of rank 0: a sum over ranks would wait for all of them
        read = done - (self.first_batch or 0)
        rate = read / max(1e-9, now - self.epoch_start)
        steps = pl_module.total_steps - trainer.global_step  # max_steps may end the epoch
        batches = min(trainer.num_training_batches - done, steps * trainer.accumulate_grad_batches)
        figures = [f"{terminal.clock(batches / rate)} left"] if read >= KNOWN_AFTER else []
        figures.append(f"loss {float(loss / windows.clamp(min=1)):.3f}")
        key = pl_module.fitting.monitor or "calibration_f1"
        scores = [epoch[key] for epoch in self.history.epochs if key in epoch]
        figures += [f"{key.replace('_', ' ')} {score:.2f}" for score in scores[-1:]]
        return [*figures, f"{rate:.1f} batches/s" if rate >= 1 else f"{1 / rate:.1f} s/batch"]

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.is_global_zero:
            prefix, entry = "calibration_", self.history.epochs[-1]
            scores = {key.removeprefix(prefix): entry[key] for key in entry if key.startswith(prefix)}
            listed = ", ".join(f"{name} {score:.2f}" for name, score in scores.items())
            self._stop()  # or the line below would be written into the bar
            took = terminal.clock(time.perf_counter() - self.epoch_start)
            text = f"{self.title} done in {took}; calibration: {listed or 'not validated'}"
            log.info("%s", text)
            if self.in_notebook:
                self._draw(trainer.num_training_batches, trainer.num_training_batches, text)
                self.cell = None  # the next epoch has a line of its own

    def _draw(self, done: float, total: float, text: str) -> None:
        """Draw the epoch's bar again where it is in the notebook; rich would need ipywidgets for that."""
        from IPython.display import display

        bar = f'<progress value="{done}" max="{total}"></progress> {escape(text)}'
        shown = {"text/html": bar, "text/plain": text}
        if self.cell is None:
            self.cell = display(shown, raw=True, display_id=True)
        else:
            self.cell.update(shown, raw=True)

    def on_exception(self, *_: Any) -> None:
        self._stop()

    def _stop(self) -> None:
        if self.bar is not None:
            self.bar.stop()
