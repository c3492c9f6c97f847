"""No process outlives the one that started it, however that one ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from kills import alive

from qa_arch.system import lifeline

CHILD = (
    "from qa_arch.system.lifeline import tie; import time; tie(); print('tied', flush=True); time.sleep(99)"
)
TIED = "from qa_arch.system.lifeline import tie; tie(); "
PARENT = """
import sys, time
from qa_arch.system import lifeline
child = lifeline.start([sys.executable, "-c", sys.argv[1]], stdout=-1)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(99)
"""
LATE = r"""
import os, sys, time
from qa_arch.system import lifeline
child = lifeline.start([sys.executable, "-c", "import time; time.sleep(1)\n" + sys.argv[1]])
print(child.pid, flush=True)
os._exit(0)
"""


def ended(pid: int, within: float = 10) -> bool:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline and alive(pid):
        time.sleep(0.02)
    return not alive(pid)


@pytest.mark.skipif(not lifeline.LINUX, reason="reads /proc")
def test_child_ends_with_its_killed_parent():
    command = [sys.executable, "-c", PARENT, CHILD]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert alive(pid)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    assert ended(pid)


@pytest.mark.skipif(not lifeline.LINUX, reason="reads /proc")
def test_child_ends_if_its_parent_ended_before_it_was_tied():
    done = subprocess.run(
        [sys.executable, "-c", LATE, TIED + "print('tied')"], stdout=subprocess.PIPE, text=True
    )
    assert ended(int(done.stdout.splitlines()[0]))
    assert "tied" not in done.stdout


def test_started_program_does_not_inherit_the_parent_variable():
    program = f"import os; print({lifeline.PARENT!r} in os.environ)"
    for command in (
        lifeline.module_command("timeit", "-n1", "-r1", program),
        [sys.executable, "-c", TIED + program],
    ):
        process = lifeline.start(command, stdout=subprocess.PIPE, text=True)
        assert process.communicate(timeout=60)[0].splitlines()[0] == "False"
