"""``qa-arch wandb sync``: which folders are sent, by which command, and the error where nothing can be."""

from __future__ import annotations

import subprocess
import sys

import pytest

from qa_arch.cli import wandb
from qa_arch.cli.main import main


@pytest.fixture
def runs(tmp_path):
    """Two runs that were logged offline, one of them sent before, and one that was logged online."""
    for name, folder in (("a", "offline-run-1"), ("b", "offline-run-2"), ("c", "run-3")):
        place = tmp_path / "runs" / name / "wandb" / folder
        place.mkdir(parents=True)
        (place / f"run-{name}.wandb").touch()
    (tmp_path / "runs/b/wandb/offline-run-2/run-b.wandb.synced").touch()
    return tmp_path / "runs"


@pytest.fixture
def sent(monkeypatch):
    """The commands that are run, each of which ends with ``code``."""

    class Sent(list):
        code = 0

    commands = Sent()

    def run(command, **_):
        commands.append(command)
        return subprocess.CompletedProcess(command, commands.code)

    monkeypatch.setattr(wandb.subprocess, "run", run)
    return commands


def test_what_was_not_sent_before_is_sent(runs, sent, capsys):
    assert main(["wandb", "sync", str(runs)]) == 0
    assert sent == [[sys.executable, "-m", "wandb", "sync", str(runs / "a/wandb/offline-run-1")]]
    assert capsys.readouterr().out == "1 runs sent\n"
    (runs / "a/wandb/offline-run-1/run-a.wandb.synced").touch()
    assert main(["wandb", "sync", str(runs)]) == 0
    assert len(sent) == 1
    assert "nothing to send: 2 runs were sent before" in capsys.readouterr().out


def test_options_are_handed_on(runs, sent):
    options = ["--project", "mills", "--entity", "us", "--again"]
    assert main(["wandb", "sync", str(runs / "a"), str(runs / "b"), *options]) == 0
    folders = [str(runs / "a/wandb/offline-run-1"), str(runs / "b/wandb/offline-run-2")]
    assert sent[0][3:] == ["sync", "--project", "mills", "--entity", "us", "--include-synced", *folders]


def test_a_failure_of_wandb_is_ours(runs, sent, capsys):
    sent.code = 1
    assert main(["wandb", "sync", str(runs)]) == 6
    assert "wandb sync ended with 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("place", "message"), [("runs/c", "logger=wandb and no login"), ("runs/none", "no such run or folder")]
)
def test_nothing_there(runs, sent, capsys, place, message):
    assert main(["wandb", "sync", str(runs.parent / place)]) == 5
    assert message in capsys.readouterr().err
    assert sent == []
