"""Rank 0 does not wait for a rank that is gone, and is left alone while all are there."""

from __future__ import annotations

import subprocess
import sys

import pytest

from qa_arch.records import RunRecord, read_record, write_record
from qa_arch.training.ranks import OUT_OF_MEMORY

PROGRAM = """
import subprocess, sys, time
from pathlib import Path
from qa_arch.training.ranks import ended_when_lost
ends, folder, sleep = sys.argv[1:]
others = [subprocess.Popen([sys.executable, "-c", does]) for does in ("import time; time.sleep(99)", ends)]
try:
    with ended_when_lost(others, Path(folder), notice=0.1):
        time.sleep(float(sleep))
finally:
    others[0].kill()
"""
KILLED = "import os; os.kill(os.getpid(), 9)"


@pytest.mark.parametrize(
    ("ends", "sleep", "code", "status", "error"),
    [
        ("raise SystemExit(3)", "60", 1, "failed", "rank 2 failed (exit code 3)"),
        (KILLED, "60", 1, "killed", "rank 2 was killed by signal 9"),
        (f"raise SystemExit({OUT_OF_MEMORY})", "60", 1, "oom", "rank 2 ran out of memory"),
        ("pass", "2", 0, "running", None),
    ],
)
def test_a_rank_is_lost(tmp_path, ends, sleep, code, status, error):
    config = {"trainer": {}}
    write_record(
        tmp_path, RunRecord(status="running", name="n", model="m", seed=1, config=config, config_hash="-")
    )
    command = [sys.executable, "-c", PROGRAM, ends, str(tmp_path), sleep]
    assert subprocess.run(command, timeout=90, stderr=subprocess.DEVNULL).returncode == code
    record = read_record(tmp_path)
    assert record.status == status
    assert error is None or error in str(record.error)
