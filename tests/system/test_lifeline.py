"""No process outlives the one that started it, whichever way that one ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from qa_arch.system import lifeline

CHILD = (
    "from qa_arch.system.lifeline import tie; import time; tie(); print('tied', flush=True); time.sleep(99)"
)
PARENT = """
import sys, time
from qa_arch.system import lifeline
child = lifeline.start([sys.executable, "-c", sys.argv[1]], pipe=sys.argv[2] == "pipe", stdout=-1)
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


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def ended(pid: int, within: float = 10) -> bool:
    until = time.monotonic() + within
    while time.monotonic() < until and alive(pid):
        time.sleep(0.02)
    return not alive(pid)


@pytest.mark.skipif(not lifeline.LINUX, reason="reads /proc")
@pytest.mark.parametrize("means", ["kernel", "pipe"])
def test_a_child_ends_with_its_killed_parent(means):
    command = [sys.executable, "-c", PARENT, CHILD, means]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert alive(pid)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    assert ended(pid)


@pytest.mark.skipif(not lifeline.LINUX, reason="reads /proc")
def test_a_child_whose_parent_ended_before_it_was_tied():
    done = subprocess.run([sys.executable, "-c", LATE, CHILD], stdout=subprocess.PIPE, text=True)
    assert ended(int(done.stdout.splitlines()[0]))
    assert "tied" not in done.stdout


def test_what_is_tied_and_its_own_children():
    """A module runs as a program; its variables do not reach processes that it starts in other ways."""
    program = lifeline.module_command("json.tool", "--help")
    process = lifeline.start(program, stdout=subprocess.PIPE, text=True)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "json.tool" in said.splitlines()[0] or "usage" in said
    look = f"""
import os
from qa_arch.system.lifeline import tie
tie()
print({lifeline.VARIABLE!r} in os.environ)
"""
    process = lifeline.start([sys.executable, "-c", look], stdout=subprocess.PIPE, text=True)
    assert process.communicate(timeout=60)[0].strip() == "False"
