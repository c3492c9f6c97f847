"""Ctrl-C or SIGTERM writes a checkpoint and prints how to resume; a second one quits at once."""

import os
import re
import shlex
import signal

import pytest
import torch
from rich.cells import cell_len
from terminals import CTRL_C, Terminal

from qa_arch.files import write_atomic
from qa_arch.records import read_record

LONG = ("trainer.epochs=100000", "trainer.progress=true")
SLOW_STEP = ("trainer.batch_size=1", "trainer.accumulate=1000")


@pytest.fixture(autouse=True)
def interruptible():
    """Restore the default SIGINT handler: background jobs of a shell ignore interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def press(before_step):
    """``press(batch, *signals)``: send these signals (default: SIGINT) before the training step."""
    presses = {}

    def interrupt(module, batch, batch_idx):
        for number in presses.pop(batch_idx, ()):
            os.kill(os.getpid(), number)

    before_step(interrupt)
    return lambda batch, *signals: presses.update({batch: signals or (signal.SIGINT,)})


@pytest.mark.parametrize(
    ("batch", "number", "limit"),
    [
        (1, signal.SIGINT, "max_steps=-1"),
        (1, signal.SIGTERM, "max_steps=-1"),
        (5, signal.SIGINT, "max_steps=-1"),
        (5, signal.SIGINT, "max_steps=5"),
        (3, signal.SIGINT, "max_steps=2"),
        (1, signal.SIGINT, "limit_train_batches=3"),
    ],
    ids=["inside an epoch", "terminated", "last batch", "last batch with max_steps", "last step", "limited"],
)
def test_interrupted_run_resumes_exactly(
    train_once, run_training, press, caplog, capfd, tmp_path, batch, number, limit
):
    """Six batches per epoch, two per step."""
    settings = ("trainer.epochs=2", "trainer.accumulate=2", "encoder.hidden_dropout=0.1", "model.dropout=0.1")
    settings = (*settings, f"trainer.{limit}")
    uninterrupted = train_once(*settings)
    press(batch, number)
    handler = signal.getsignal(number)
    with caplog.at_level("INFO", "qa_arch"), pytest.raises(KeyboardInterrupt):
        run_training(*settings)
    folder = tmp_path / "run"
    assert signal.getsignal(number) is handler
    assert read_record(folder).status == "killed"
    assert "Ctrl-C again quits at once" in capfd.readouterr().err
    steps = (batch + 1) // 2
    assert torch.load(folder / "last.ckpt", weights_only=True)["global_step"] == steps
    assert f"{folder}/last.ckpt: the checkpoint after step {steps}" in caplog.messages
    assert len(read_record(folder).epochs) == (batch > 1)
    resumed = run_training(*settings, resume=True)
    assert resumed.results == uninterrupted.results
    assert resumed.weights == uninterrupted.weights


def test_second_ctrl_c_quits_at_once(run_training, press, tmp_path):
    press(0, signal.SIGTERM, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run_training(*SLOW_STEP)
    assert read_record(tmp_path / "run").status == "killed"
    assert not (tmp_path / "run" / "last.ckpt").exists()


def test_ignored_interrupts_stay_ignored(run_training, press):
    """Background jobs of a shell ignore them."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        press(1)
        assert run_training().record.status == "ok"
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_resume_command_has_the_options_of_the_interrupted_one(
    tiny_run, press, caplog, qa_arch, tmp_path
):
    press(0)
    own = tmp_path / "conf"
    write_atomic(own / "optim" / "slow.yaml", "lr: 1e-5\n")
    machine = ["logger=csv", f"logger.save_dir={tmp_path}/csv"]
    options = ["--config-dir", str(own), "--trust", "my_package"]
    with caplog.at_level("INFO", "qa_arch"):
        assert qa_arch("train", *tiny_run(), *options, *machine, "--folder", tmp_path / "run")[0] == 130
    (line,) = [message for message in caplog.messages if message.startswith("resume: ")]
    assert f" {shlex.join([*options, 'features.cache_dir=null', *machine])} " in line


@pytest.mark.slow
@pytest.mark.parametrize("width", [80, 120])
def test_ctrl_c_in_a_terminal_and_resume(tiny_run, tmp_path, width):
    """A real process, Ctrl-C and the resume command that it prints; its progress bar fits the terminal."""
    folder = tmp_path / "run"
    terminal = Terminal(["train", *tiny_run(*LONG), "--folder", folder], width, tmp_path)
    terminal.wait_for("epoch 3/100000")
    terminal.press(CTRL_C)
    assert terminal.finish() == 130
    assert f"run: {folder}" in terminal.text.replace("\r\n", "")
    progress = [line for line in terminal.lines if "loss" in line and "done in" not in line]
    assert progress
    assert all("━" in line for line in progress)
    assert any(
        re.search(r"\d/6, loss \d", line) for line in progress
    )  # too few batches to estimate the time left
    assert max(map(cell_len, progress)) <= width
    assert all(len(line) <= width for line in progress)
    step = checkpoint_step(terminal)
    assert read_record(folder).status == "killed"
    assert (folder / "last.ckpt").is_file()
    if width == 80:
        return
    command = re.search(r"resume: qa-arch (train .*--if-exists resume)", terminal.text.replace("\r\n", " "))
    assert command
    again = Terminal(shlex.split(command[1]), width, tmp_path)
    again.wait_for("/6, loss")
    again.press(CTRL_C)
    assert again.finish() == 130
    assert checkpoint_step(again) > step


@pytest.mark.slow
@pytest.mark.parametrize(
    "stop", [lambda run: run.press(CTRL_C), lambda run: os.kill(run.process, signal.SIGTERM)]
)
def test_two_ranks_stop_at_the_same_step(tiny_run, tmp_path, stop):
    """The terminal interrupts both ranks, perhaps in different steps; SIGTERM may reach only the first."""
    folder = tmp_path / "run"
    words = ["train", *tiny_run(*LONG, "trainer.devices=2"), "--folder", folder]
    terminal = Terminal(words, 120, tmp_path)
    terminal.wait_for("epoch 3/100000")
    stop(terminal)
    assert terminal.finish() == 130
    saved = torch.load(folder / "last.ckpt", weights_only=True)
    assert saved["global_step"] == checkpoint_step(terminal)
    assert len(saved["random"]) == 2
    assert "Traceback" not in terminal.text
    assert read_record(folder).status == "killed"


def checkpoint_step(terminal: Terminal) -> int:
    step = re.search(r"the checkpoint after\s+step\s+(\d+)", terminal.text)
    assert step, terminal.text
    assert "Ctrl-C again quits at once" in terminal.text
    return int(step[1])
