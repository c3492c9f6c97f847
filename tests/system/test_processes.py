"""Locks are released, and child processes end, however their process ends."""

import os
import resource
import signal
import subprocess
import sys
from contextlib import suppress

import pytest
from kills import alive, survivors

from qa_arch import files as lock
from qa_arch import process as lifeline
from qa_arch.errors import RunError

HOLDER = """
import sys, time
from pathlib import Path
from qa_arch import files as lock
from qa_arch import process as lifeline
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


def test_full_disk_leaves_the_holder_without_a_name(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with lock.hold(tmp_path, "run"):
            assert lock.holder(tmp_path) == "another process"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


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
    os.mkfifo(folder / lock.LOCK)
    assert lock.holder(folder) is None


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


CHILD = "from qa_arch.process import tie; import time; tie(); print('tied', flush=True); time.sleep(99)"
TIED = "from qa_arch.process import tie; tie(); "
PARENT = """
import sys, time
from qa_arch import process as lifeline
child = lifeline.start([sys.executable, "-c", sys.argv[1]], stdout=-1)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(99)
"""
LATE = r"""
import os, sys, time
from qa_arch import process as lifeline
child = lifeline.start([sys.executable, "-c", "import time; time.sleep(1)\n" + sys.argv[1]])
print(child.pid, flush=True)
os._exit(0)
"""


@pytest.mark.skipif(not lifeline.LINUX, reason="reads /proc")
def test_child_ends_with_its_killed_parent():
    command = [sys.executable, "-c", PARENT, CHILD]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert alive(pid)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    assert not survivors([pid])


@pytest.mark.skipif(not lifeline.LINUX, reason="reads /proc")
def test_child_ends_if_its_parent_ended_before_it_was_tied():
    done = subprocess.run(
        [sys.executable, "-c", LATE, TIED + "print('tied')"], stdout=subprocess.PIPE, text=True
    )
    assert not survivors([int(done.stdout.splitlines()[0])])
    assert "tied" not in done.stdout


def test_macos_lacks_the_lifeline_and_says_so_once(monkeypatch, caplog):
    monkeypatch.setattr(lifeline, "LINUX", False)
    monkeypatch.setattr(lifeline.sys, "platform", "darwin")
    monkeypatch.setattr(lifeline.ctypes, "CDLL", None)  # has no prctl
    monkeypatch.delattr(os, "waitid")
    lifeline.die_with(os.getppid())
    ends = [sys.executable, "-c", "pass"]
    children = [lifeline.start(ends, start_new_session=True) for _ in range(2)]
    for child in children:
        assert (child.wait(), lifeline.has_ended(child), lifeline.kill_group(child)) == (0, True, 0)
    (line,) = caplog.messages
    assert line == "darwin: processes of a run that is killed (kill -9) may outlive it; end them by hand"


def test_started_program_does_not_inherit_the_parent_variable():
    program = f"import os; print({lifeline.PARENT!r} in os.environ)"
    for command in (
        lifeline.module_command("timeit", "-n1", "-r1", program),
        [sys.executable, "-c", TIED + program],
    ):
        process = lifeline.start(command, stdout=subprocess.PIPE, text=True)
        assert process.communicate(timeout=60)[0].splitlines()[0] == "False"


@pytest.mark.parametrize("module", ["timeit", "own_module"])
def test_children_import_from_where_their_parent_does(tmp_path, monkeypatch, module):
    """Not from their working folder; so do the programs that they start."""
    again = "import os, subprocess, sys; subprocess.run([sys.executable, '-m', 'timeit', '-n1', 'os'])"
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "own_module.py").write_text(again)
    monkeypatch.syspath_prepend(tmp_path / "own")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    for name in ("ctypes", "runpy", "timeit", "qa_arch", "own_module"):
        (foreign / f"{name}.py").write_text("open('planted', 'w')")
    child = lifeline.start(lifeline.module_command(module), cwd=foreign)
    assert child.wait(60) == 0
    assert not (foreign / "planted").exists()
