"""The lock of a folder: one holder, released however it ends, shared with its child processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

from qa_arch.errors import RunError
from qa_arch.system import lock

HOLDER = """
import sys, time
from pathlib import Path
from qa_arch.system import lifeline, lock
with lock.hold(Path(sys.argv[1]), "run"):
    if len(sys.argv) > 2:
        lifeline.start([sys.executable, "-c", "import time; time.sleep(99)"], pass_fds=lock.descriptors())
    print("held", flush=True)
    time.sleep(99)
"""


@pytest.fixture
def start(tmp_path):
    """``start(*arguments)``: start a process and return once it holds the lock of ``tmp_path``."""
    processes = []

    def begin(*arguments: str) -> subprocess.Popen:
        command = [sys.executable, "-c", HOLDER, str(tmp_path), *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    yield begin
    for process in processes:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_one_holder_at_a_time(tmp_path):
    folder = tmp_path / "new"
    with lock.hold(folder, "run"):
        assert "process" in (lock.holder(folder) or "")
        assert len(lock.descriptors()) == 1
        with (
            pytest.raises(RunError, match=r"new: this run is in use by process \d+ on "),
            lock.hold(folder, "run"),
        ):
            pass
        assert lock.holder(folder) is not None  # the refused attempt did not release it
    assert lock.holder(folder) is None
    assert not list(folder.iterdir())
    with lock.hold(folder, "run"):
        pass


def test_lock_of_another_process_is_released_by_its_death(tmp_path, start):
    process = start()
    assert f"process {process.pid} " in (lock.holder(tmp_path) or "")
    with pytest.raises(RunError, match=f"process {process.pid} "), lock.hold(tmp_path, "run"):
        pass
    process.kill()
    process.wait()
    assert lock.holder(tmp_path) is None
    with lock.hold(tmp_path, "run"):
        pass


def test_child_of_the_holder_keeps_the_lock(tmp_path, start):
    """For example a rank that is still in a step after rank 0 has ended."""
    process = start("with a child")
    process.kill()
    process.wait()
    assert lock.holder(tmp_path) is not None
