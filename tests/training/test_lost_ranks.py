"""Rank 0 exits when another rank is lost, and only then."""

import os
import subprocess
import sys
import time

import pytest

from qa_arch.records import RunRecord, read_record, write_record
from qa_arch.training.ranks import OUT_OF_MEMORY, exit_when_lost

KILLED = "import os; os.kill(os.getpid(), 9)"


def run_rank_0(rank_2: str, folder, sleep: float) -> None:
    """Sleep as rank 0, beside a rank 1 that keeps running and a rank 2 that runs the program ``rank_2``."""
    programs = ("import time; time.sleep(99)", rank_2)
    others = [subprocess.Popen([sys.executable, "-S", "-c", program]) for program in programs]
    try:
        with exit_when_lost(others, folder, notice=0.1):
            time.sleep(sleep)
    finally:
        others[0].kill()


@pytest.mark.parametrize(
    ("rank_2", "sleep", "code", "status", "error"),
    [
        ("raise SystemExit(3)", 60, 1, "failed", "rank 2 failed (exit code 3)"),
        (KILLED, 60, 1, "killed", "rank 2 was killed by signal 9"),
        (f"raise SystemExit({OUT_OF_MEMORY})", 60, 1, "oom", "rank 2 ran out of memory"),
        ("pass", 2, 0, "running", None),
    ],
)
def test_rank_0_exits_when_a_rank_is_lost(tmp_path, rank_2, sleep, code, status, error):
    config = {"trainer": {}}
    write_record(
        tmp_path,
        RunRecord(
            status="running", name="n", model="m", seed=1, config=config, settings_hash="-", run_hash="-"
        ),
    )
    child = os.fork()
    if child == 0:
        try:
            run_rank_0(rank_2, tmp_path, sleep)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == code
    record = read_record(tmp_path)
    assert record.status == status
    assert error is None or error in str(record.error)
