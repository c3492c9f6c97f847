"""Runs without permission to read them are named in a one-line error."""

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

RECORDS = Path(__file__).parents[2] / "experiments/demo/records"
PR_CAPBSET_DROP, OVERRIDE, READ_SEARCH = 24, 1, 2


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


@pytest.mark.slow
@pytest.mark.parametrize("is_folder", [False, True], ids=["record", "folder"])
def test_unreadable_run_is_reported(tmp_path, is_folder):
    """A table without the run would be a different table, so none is printed."""
    good, closed = (
        Path(shutil.copytree(record, tmp_path / record.name)) for record in sorted(RECORDS.iterdir())[:2]
    )
    path = closed if is_folder else closed / "run.json"
    path.chmod(0)
    refused = call("tables", good, closed), call("tables", tmp_path), call("show", closed)
    path.chmod(0o755)
    for done in refused:
        assert "Traceback" not in done.stderr, done.stderr
        last = done.stderr.splitlines()[-1]
        assert done.returncode in (1, 2, 4, 5, 6), done
        assert (last.startswith("qa-arch: "), str(closed) in last) == (True, True), done
