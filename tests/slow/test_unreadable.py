"""Files without permission to read or write them are named in a one-line error."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from qa_arch.config.files import write_json
from qa_arch.data.squad import write
from qa_arch.data.synthetic import generate

RECORDS = Path(__file__).parents[2] / "experiments/demo/records"
PR_CAPBSET_DROP, OVERRIDE, READ_SEARCH = 24, 1, 2


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """(folder with a question set and two runs, a readable run, a run to make unreadable)."""
    folder = tmp_path_factory.mktemp("unreadable")
    write_json(folder / "data.json", write(generate(1, seed=3)))
    write_json(folder / "predictions.json", {})
    good, closed = sorted(RECORDS.iterdir())[:2]
    for record in (good, closed):
        target = folder / "runs" / record.name
        target.mkdir(parents=True)
        (target / "run.json").write_bytes((record / "run.json").read_bytes())
    return folder, folder / "runs" / good.name, folder / "runs" / closed.name


def drop_override() -> None:
    """Drop root's capabilities to ignore file permissions."""
    for capability in (OVERRIDE, READ_SEARCH):
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


def call(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run ``qa-arch`` as a user bound by file permissions."""
    command = [sys.executable, "-m", "qa_arch.cli.main", *map(str, arguments)]
    preexec = drop_override if os.geteuid() == 0 else None
    environment = {**os.environ, "COLUMNS": "200"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, preexec_fn=preexec)


def is_refused(done: subprocess.CompletedProcess[str], path: Path) -> bool:
    """Whether the command ended with an expected exit code and one error line that names ``path``."""
    assert "Traceback" not in done.stderr, done.stderr
    last = done.stderr.splitlines()[-1]
    return done.returncode in (1, 2, 4, 5, 6) and last.startswith("qa-arch: ") and str(path) in last


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["data.json", "predictions.json"])
def test_unreadable_file_is_reported(place, closed):
    folder, *_ = place
    (folder / closed).chmod(0)
    done = call("evaluate", "--data", folder / "data.json", "--predictions", folder / "predictions.json")
    (folder / closed).chmod(0o644)
    assert is_refused(done, folder / closed), done


@pytest.mark.slow
@pytest.mark.parametrize("is_folder", [False, True], ids=["record", "folder"])
def test_unreadable_run_is_reported(place, is_folder):
    """A table without the run would be a different table, so none is printed."""
    _, good, closed = place
    path = closed if is_folder else closed / "run.json"
    path.chmod(0)
    tables, show = call("tables", good, closed), call("show", closed)
    path.chmod(0o755 if is_folder else 0o644)
    assert is_refused(tables, closed), tables
    assert is_refused(show, closed), show


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ("tables", "runs", "--publish", "closed"),
        ("report", "runs", "--out", "closed/report.html"),
        ("data", "synthetic", "--articles", "2", "--out", "closed/data.json"),
    ],
    ids=lambda command: command[0],
)
def test_unwritable_folder_is_reported(place, command):
    folder, *_ = place
    target = folder / "closed"
    target.mkdir(exist_ok=True)
    target.chmod(0o555)
    done = call(*(folder / word if "closed" in word or word == "runs" else word for word in command))
    assert is_refused(done, target), done
    assert not any(target.iterdir())
