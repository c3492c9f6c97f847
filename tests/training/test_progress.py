"""Progress of a run: a bar in a terminal, occasional lines in a log."""

import io
import itertools
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from rich.console import Console
from torch import nn

from qa_arch.terminal import BAR
from qa_arch.training import progress
from qa_arch.training.module import TrainingModule


@pytest.fixture
def module() -> TrainingModule:
    module = TrainingModule.__new__(TrainingModule)
    nn.Module.__init__(module)
    module.fitting, module.total_steps = SimpleNamespace(monitor=None), 100
    module.train_sums = torch.tensor([[6.0, 4.0], [0.0, 0.0]])
    return module


@pytest.fixture
def trainer() -> SimpleNamespace:
    return SimpleNamespace(
        is_global_zero=True,
        global_step=1,
        current_epoch=0,
        max_epochs=2,
        accumulate_grad_batches=1,
        num_training_batches=4,
    )


@pytest.fixture
def tick(monkeypatch):
    """``tick(seconds)``: advance the clock by ``seconds`` on every reading."""

    def patch(seconds: float) -> None:
        clock = itertools.count()
        monkeypatch.setattr(progress.time, "perf_counter", lambda: seconds * next(clock))

    return patch


def terminal(monkeypatch, width: int) -> io.StringIO:
    """Output of a fake terminal of this width."""
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=width)
    monkeypatch.setattr(progress.terminal, "console", lambda **_: console)
    return written


def history() -> progress.History:
    return progress.History(lambda _: None)


def run_epochs(callback: progress.TrainingProgress, trainer, module, scores: list[dict[str, float]]) -> None:
    """Run epochs of four batches, one per element of ``scores``; without scores there is no validation."""
    callback.on_train_start(trainer, module)
    for epoch, metrics in enumerate(scores):
        trainer.current_epoch = epoch
        callback.on_train_epoch_start(trainer, module)
        for batch in range(4):
            callback.on_train_batch_end(trainer, module, None, None, batch)
        callback.history.epochs.append(metrics)
        callback.on_train_epoch_end(trainer, module)


SCORES = {"calibration_f1": 61.234, "calibration_loss": 1.5, "train_other": 1.0}


@pytest.fixture
def logged(trainer, module, tick, monkeypatch, caplog):
    """``logged(seconds, *scores)``: lines of epochs with these scores, by a clock of such ticks."""

    def run(seconds: float, *scores: dict[str, float]) -> list[str]:
        tick(seconds)
        monkeypatch.setattr(progress, "EVERY_SECONDS", 0.0)
        with caplog.at_level("INFO", logger="qa_arch"):
            run_epochs(progress.TrainingProgress("bert", history(), live=False), trainer, module, [*scores])
        return caplog.messages

    return run


def test_log_shows_loss_speed_time_left_and_last_score(logged):
    lines = logged(1, SCORES, {})
    first, *_, last = [line for line in lines if " batch " in line]
    assert first == "bert epoch 1/2: batch 1 of 4, loss 1.500, 1.0 batches/s"
    figures = "0:00 left, loss 1.500, calibration f1 61.23, 1.0 batches/s"
    assert last == f"bert epoch 2/2: batch 4 of 4, {figures}"
    done = [line.partition("; ")[2] for line in lines if "done in" in line]
    assert done == ["calibration: f1 61.23, loss 1.50", "calibration: not validated"]


def test_time_left_ends_with_the_last_allowed_step(logged, trainer, module):
    """Slow batches are told in seconds."""
    trainer.num_training_batches, module.total_steps, trainer.accumulate_grad_batches = 100, 3, 4
    assert logged(12.5, {})[-2].endswith("batch 4 of 100, 1:40 left, loss 1.500, 12.5 s/batch")


@pytest.mark.parametrize(("seconds", "readings"), [(0.01, 1), (0.15, 2)])
def test_bar_reads_the_loss_at_most_five_times_a_second(
    trainer, module, tick, monkeypatch, seconds, readings
):
    """Each reading waits for the GPU; the first is immediate, so that short epochs show figures too."""
    tick(seconds)
    terminal(monkeypatch, 80)
    callback = progress.TrainingProgress("bert", history(), live=True)
    figures = Mock(wraps=callback._figures)
    monkeypatch.setattr(callback, "_figures", figures)
    callback.on_train_epoch_start(trainer, module)
    for batch in range(4):
        callback.on_train_batch_end(trainer, module, None, None, batch)
    assert callback.bar.tasks[0].completed == 4
    assert figures.call_count == readings
    callback.on_exception(trainer, module, ValueError())


def test_notebook_has_one_bar_per_epoch_that_ends_with_its_scores(trainer, module, tick, monkeypatch):
    tick(0.25)
    console = SimpleNamespace(is_jupyter=True, is_terminal=False)
    monkeypatch.setattr(progress.terminal, "console", lambda **_: console)
    cells: list[list[dict[str, str]]] = []

    def display(shown, *, raw, display_id):
        cells.append([shown])
        return SimpleNamespace(update=lambda shown, raw, cell=cells[-1]: cell.append(shown))

    monkeypatch.setattr("IPython.display.display", display)
    callback = progress.TrainingProgress("<bert>", history(), live=True)
    run_epochs(callback, trainer, module, [SCORES, SCORES])
    first, second = cells
    assert first[0]["text/html"].startswith(
        '<progress value="1" max="4"></progress> &lt;bert&gt; epoch 1/2: '
    )
    assert "batch 4 of 4, 0:00 left, loss 1.500" in first[-2]["text/plain"]
    assert first[-1]["text/plain"].endswith("calibration: f1 61.23, loss 1.50")
    assert second[0]["text/plain"].startswith("<bert> epoch 2/2: batch 1 of 4")


@pytest.mark.parametrize("width", [40, 140])
def test_bar_leaves_room_for_itself_and_stops_before_a_log_line(trainer, module, tick, monkeypatch, width):
    """Otherwise the line would follow the bar on its row, and the bar would be drawn again below."""
    tick(0.25)
    module.fitting = SimpleNamespace(monitor="calibration_mrr")
    output = terminal(monkeypatch, width)
    callback = progress.TrainingProgress("proposed seed 13", history(), live=True)
    bar_active: list[bool] = []
    monkeypatch.setattr(progress.log, "info", lambda *_: bar_active.append(callback.bar.live.is_started))
    run_epochs(callback, trainer, module, [SCORES | {"calibration_mrr": 80.0}, SCORES])
    assert bar_active == [False, False]
    lines = [line for line in output.getvalue().replace("\r", "\n").splitlines() if "4/4" in line]
    last = Console(width=width).render_str(lines[-1]).plain
    assert last.count("━") >= BAR[0]
    for figure in ("left", "loss 1.500", "calibration mrr 80.00"):
        assert (figure in last) == (width == 140), last
