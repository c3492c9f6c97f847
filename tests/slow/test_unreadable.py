"""Files closed to the user: what cannot be read or written is named in one line, and the rest goes on."""

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
    """A folder with a question set and two records: it, a record that stays open, and one to close."""
    folder = tmp_path_factory.mktemp("closed")
    write_json(folder / "data.json", write(generate(1, seed=3)))
    write_json(folder / "predictions.json", {})
    good, closed = sorted(RECORDS.iterdir())[:2]
    for record in (good, closed):
        target = folder / "runs" / record.name
        target.mkdir(parents=True)
        (target / "run.json").write_bytes((record / "run.json").read_bytes())
    return folder, folder / "runs" / good.name, folder / "runs" / closed.name


def bound() -> None:
    """Take from root the right to open what is closed."""
    for capability in (OVERRIDE, READ_SEARCH):
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


def call(*arguments: object) -> subprocess.CompletedProcess[str]:
    """What ``qa-arch`` does and says under a user to whom closed files are closed."""
    words = [sys.executable, "-m", "qa_arch.cli.main", *map(str, arguments)]
    root = bound if os.geteuid() == 0 else None
    environment = {**os.environ, "COLUMNS": "200"}
    return subprocess.run(words, capture_output=True, text=True, env=environment, preexec_fn=root)


def refused(done: subprocess.CompletedProcess[str], path: Path) -> bool:
    """Whether it ended in one line that names ``path``, with the exit code of bad input or of a full disk."""
    assert "Traceback" not in done.stderr, done.stderr
    last = done.stderr.splitlines()[-1]
    return done.returncode in (1, 2, 4, 5, 6) and last.startswith("qa-arch: ") and str(path) in last


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["data.json", "predictions.json"])
def test_a_file_that_may_not_be_read(place, closed):
    folder, *_ = place
    (folder / closed).chmod(0)
    done = call("evaluate", "--data", folder / "data.json", "--predictions", folder / "predictions.json")
    (folder / closed).chmod(0o644)
    assert refused(done, folder / closed), done


@pytest.mark.slow
@pytest.mark.parametrize("whole", [False, True], ids=["its record", "its folder"])
def test_a_run_that_may_not_be_read(place, whole):
    """A table without it would be another table, so that there is none."""
    _, good, closed = place
    path = closed if whole else closed / "run.json"
    path.chmod(0)
    listed, shown = call("tables", good, closed), call("show", closed)
    path.chmod(0o755 if whole else 0o644)
    assert refused(listed, closed), listed
    assert refused(shown, closed), shown


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
def test_a_folder_that_may_not_be_written(place, command):
    folder, *_ = place
    target = folder / "closed"
    target.mkdir(exist_ok=True)
    target.chmod(0o555)
    done = call(*(folder / word if "closed" in word or word == "runs" else word for word in command))
    assert refused(done, target), done
    assert not any(target.iterdir())
