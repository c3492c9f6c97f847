"""Progress of training: a live bar on a terminal, a line every 30 seconds in a log."""

from __future__ import annotations

import logging
import math
import time
from typing import Any

import pytorch_lightning as pl
from rich.console import Console
from rich.progress import Progress, ProgressColumn, Task
from rich.progress_bar import ProgressBar
from rich.table import Table

from qa_arch.training.history import calibration_scores
from qa_arch.training.module import TrainingModule

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
        console = Console(stderr=True)
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
