"""Locks are released, and child processes end, however their process ends; garbage collection is restored."""

import gc
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest
from kills import alive, survivors

import qa_arch.process
from qa_arch.errors import RunError
from qa_arch.files import LOCK, descriptors, hold, holder
from qa_arch.process import LINUX, PARENT, gc_disabled, module_command, start

HOLDER = """
import sys, time
from pathlib import Path
from qa_arch.files import descriptors, hold
from qa_arch.process import start
with hold(Path(sys.argv[1]), "run"):
    if len(sys.argv) > 2:
        start([sys.executable, "-c", "import time; time.sleep(99)"], pass_fds=descriptors())
    print("held", flush=True)
    time.sleep(99)
"""


@pytest.fixture
def lock_elsewhere(tmp_path):
    """``lock_elsewhere(*arguments)``: start a process and return once it holds the lock of ``tmp_path``."""
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
        with hold(tmp_path, "run"):
            assert holder(tmp_path) == "another process"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_one_holder_at_a_time(tmp_path):
    folder = tmp_path / "new"
    with hold(folder, "run"):
        assert "process" in (holder(folder) or "")
        assert len(descriptors()) == 1
        in_use = r"new: this run is in use by process \d+ on "
        with pytest.raises(RunError, match=in_use), hold(folder, "run"):
            pass
        assert holder(folder) is not None  # the refused attempt did not release it
    assert holder(folder) is None
    assert not list(folder.iterdir())
    with hold(folder, "run"):
        pass
    os.mkfifo(folder / LOCK)
    assert holder(folder) is None


def test_lock_of_another_process_is_released_by_its_death(tmp_path, lock_elsewhere):
    """And by that of its children, for example of a rank that is still in a step after rank 0 has ended."""
    process = lock_elsewhere("with a child")
    assert f"process {process.pid} " in (holder(tmp_path) or "")
    with pytest.raises(RunError, match=f"process {process.pid} "), hold(tmp_path, "run"):
        pass
    process.kill()
    process.wait()
    assert holder(tmp_path) is not None
    os.killpg(process.pid, signal.SIGKILL)
    while holder(tmp_path) is not None:
        time.sleep(0.01)
    with hold(tmp_path, "run"):
        pass


CHILD = "from qa_arch.process import tie; import time; tie(); print('tied', flush=True); time.sleep(99)"
TIED = "from qa_arch.process import tie; tie(); "
STARTER = """
import sys, time
from qa_arch.process import start
child = start([sys.executable, "-c", sys.argv[1]], stdout=-1)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(99)
"""
LATE = r"""
import os, sys, time
from qa_arch.process import start
child = start([sys.executable, "-c", "import time; time.sleep(0.3)\n" + sys.argv[1]])
print(child.pid, flush=True)
os._exit(0)
"""


@pytest.mark.skipif(not LINUX, reason="reads /proc")
def test_child_ends_with_its_killed_parent():
    command = [sys.executable, "-c", STARTER, CHILD]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert alive(pid)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    assert not survivors([pid])


@pytest.mark.skipif(not LINUX, reason="reads /proc")
def test_child_ends_if_its_parent_ended_before_it_was_tied():
    command = [sys.executable, "-c", LATE, TIED + "print('tied')"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    assert not survivors([int(done.stdout.splitlines()[0])])
    assert "tied" not in done.stdout


def test_macos_lacks_the_lifeline_and_says_so_once(monkeypatch, caplog):
    monkeypatch.setattr(qa_arch.process, "LINUX", False)
    monkeypatch.setattr(qa_arch.process.sys, "platform", "darwin")
    monkeypatch.setattr(qa_arch.process.ctypes, "CDLL", None)  # has no prctl
    monkeypatch.delattr(os, "waitid")
    qa_arch.process.die_with(os.getppid())
    ends = [sys.executable, "-c", "pass"]
    children = [qa_arch.process.start(ends, start_new_session=True) for _ in range(2)]
    for child in children:
        assert child.wait() == 0
        assert qa_arch.process.has_ended(child)
        assert qa_arch.process.kill_group(child) == 0
    (line,) = caplog.messages
    assert line == "darwin: processes of a run that is killed (kill -9) may outlive it; end them by hand"


def test_started_program_does_not_inherit_the_parent_variable():
    program = f"import os; print({PARENT!r} in os.environ)"
    for command in (module_command("timeit", "-n1", "-r1", program), [sys.executable, "-c", TIED + program]):
        process = start(command, stdout=subprocess.PIPE, text=True)
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
    child = start(module_command(module), cwd=foreign)
    assert child.wait(60) == 0
    assert not (foreign / "planted").exists()


@pytest.mark.parametrize("before", [True, False])
def test_gc_is_disabled_inside_and_restored_afterwards(before):
    (gc.enable if before else gc.disable)()
    try:
        with gc_disabled():
            with gc_disabled():
                assert not gc.isenabled()
            assert not gc.isenabled()
        assert gc.isenabled() == before
        with pytest.raises(ValueError, match="no"), gc_disabled():
            raise ValueError("no")
        assert gc.isenabled() == before
        assert [gc_disabled()(gc.isenabled)() for _ in range(2)] == [False, False]  # as a decorator
    finally:
        gc.enable()


def test_child_of_the_holder_keeps_the_lock(tmp_path, lock_elsewhere):
    """For example a rank that is still in a step after rank 0 has ended."""
    process = lock_elsewhere("with a child")
    process.kill()
    process.wait()
    assert holder(tmp_path) is not None
