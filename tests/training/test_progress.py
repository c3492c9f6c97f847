"""What a person sees of a run: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import io
import itertools
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from rich.console import Console
from torch import nn

from qa_arch.tasks import task_named
from qa_arch.training import progress
from qa_arch.training.module import TrainingModule


@pytest.fixture
def module() -> TrainingModule:
    module = TrainingModule.__new__(TrainingModule)
    nn.Module.__init__(module)
    module.task = task_named("span")
    module.train_sums = torch.tensor([[6.0, 4.0], [0.0, 0.0]])
    return module


@pytest.fixture
def trainer() -> SimpleNamespace:
    return SimpleNamespace(
        is_global_zero=True,
        global_step=1,
        current_epoch=0,
        max_epochs=2,
        num_training_batches=4,
        callback_metrics={},
    )


@pytest.fixture
def tick(monkeypatch):
    """``tick(seconds)``: by how much the clock goes on each time that it is read."""

    def arrange(seconds: float) -> None:
        clock = itertools.count()
        monkeypatch.setattr(progress.time, "perf_counter", lambda: seconds * next(clock))

    return arrange


def terminal(monkeypatch, width: int) -> io.StringIO:
    """What is written to a terminal of this width."""
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=width)
    monkeypatch.setattr(progress.terminal, "console", lambda **_: console)
    return written


def epochs(shown: progress.TrainingProgress, trainer, module, scores: list[dict[str, float]]) -> None:
    """Epochs of four batches, each validated with these scores; an epoch of none is cut short."""
    shown.on_train_start(trainer, module)
    for number, seen in enumerate(scores):
        trainer.current_epoch = number
        shown.on_train_epoch_start(trainer, module)
        for batch in range(4):
            shown.on_train_batch_end(trainer, module, None, None, batch)
        if seen:
            trainer.callback_metrics.update(seen)
            shown.on_validation_end(trainer, module)
        shown.on_train_epoch_end(trainer, module)


SCORES = {"calibration_f1": 61.234, "calibration_loss": 1.5, "train_other": 1.0}


def test_a_log_tells_loss_rate_time_left_once_it_is_known_and_the_last_score(
    trainer, module, tick, monkeypatch, caplog
):
    tick(1)
    monkeypatch.setattr(progress, "EVERY_SECONDS", 0.0)
    with caplog.at_level("INFO", logger="qa_arch"):
        epochs(progress.TrainingProgress("bert", live=False), trainer, module, [SCORES, {}])
    first, *_, last = [line for line in caplog.messages if " batch " in line]
    assert first == "bert epoch 1/2: batch 1 of 4, loss 1.500, 1.0 batches/s"
    assert last == (
        "bert epoch 2/2: batch 4 of 4, 0:00 left, loss 1.500, calibration f1 61.23, 1.0 batches/s"
    )
    done = [line.partition("; ")[2] for line in caplog.messages if "done in" in line]
    assert done == ["calibration: f1 61.23, loss 1.50", "calibration: not validated"]


@pytest.mark.parametrize(("seconds", "readings"), [(0.01, 1), (0.15, 2), (0.25, 4)])
def test_a_bar_reads_the_loss_five_times_a_second_at_most(
    trainer, module, tick, monkeypatch, seconds, readings
):
    """Each reading waits for the GPU; the first is at once, so that a short epoch has figures too."""
    tick(seconds)
    terminal(monkeypatch, 80)
    shown = progress.TrainingProgress("bert", live=True)
    figures = Mock(wraps=shown._figures)
    monkeypatch.setattr(shown, "_figures", figures)
    shown.on_train_epoch_start(trainer, module)
    for batch in range(4):
        shown.on_train_batch_end(trainer, module, None, None, batch)
    assert shown.bar.tasks[0].completed == 4
    assert figures.call_count == readings
    shown.on_exception(trainer, module, ValueError())


@pytest.mark.parametrize("width", [40, 80, 140])
def test_a_bar_keeps_its_place_beside_its_figures_and_is_gone_before_a_line(
    trainer, module, tick, monkeypatch, width
):
    """Else the line would stand behind the bar, and the bar would be drawn once more below it."""
    tick(0.25)
    module.task = SimpleNamespace(monitor="calibration_mrr")
    written = terminal(monkeypatch, width)
    shown = progress.TrainingProgress("proposed seed 13", live=True)
    at_work: list[bool] = []
    monkeypatch.setattr(progress.log, "info", lambda *_: at_work.append(shown.bar.live.is_started))
    epochs(shown, trainer, module, [SCORES | {"calibration_mrr": 80.0}, SCORES])
    assert at_work == [False, False]
    lines = [line for line in written.getvalue().replace("\r", "\n").splitlines() if "4/4" in line]
    last = Console(width=width).render_str(lines[-1]).plain
    assert last.count("━") >= progress.BAR[0]
    for figure, from_width in (("left", 80), ("loss 1.500", 80), ("calibration mrr 80.00", 140)):
        assert (figure in last) == (width >= from_width), last
