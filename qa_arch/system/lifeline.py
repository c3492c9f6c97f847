"""Child processes that end with their parent, however it ends.

On Linux the kernel sends each child a SIGKILL at its parent's death (prctl(2), PR_SET_PDEATHSIG). It is
sent when the *thread* that started the child ends, so children are started from long-lived threads.
Elsewhere a child outlives a parent that is killed.

A child imports from where its parent does, and never from the working folder, which may be anyone's.

``python -m qa_arch.system.lifeline MODULE ...`` runs a module as such a child, tied before the module's
slow imports.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

PARENT = "QA_ARCH_LIFELINE"
"""Environment variable with the id of the process that a child ends with."""
SAFE_PATH = "PYTHONSAFEPATH"
"""Environment variable that keeps the working folder out of ``sys.path``, as ``python -P`` does."""
LINUX = sys.platform == "linux"
_PR_SET_PDEATHSIG = 1


def module_command(module: str, *arguments: str) -> list[str]:
    """Command that runs ``module`` as a program, tied to its parent before any slow import."""
    return [sys.executable, "-P", "-m", "qa_arch.system.lifeline", module, *arguments]


def start(
    command: Sequence[str], *, env: Mapping[str, str] | None = None, **options: Any
) -> subprocess.Popen[Any]:
    """Start a program that calls ``tie``; ``options`` are those of Popen."""
    environment = dict(os.environ if env is None else env) | {
        PARENT: str(os.getpid()),
        SAFE_PATH: "1",  # also for programs that the child starts
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    return subprocess.Popen(command, env=environment, **options)


def tie() -> None:
    """Make this process end with the process that called ``start``; to be called first."""
    if parent := os.environ.pop(PARENT, ""):
        die_with(int(parent))


def die_with(parent: int) -> None:
    """On Linux, end this process when its parent, process ``parent``, ends; elsewhere do nothing."""
    if not LINUX:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # the parent ended before prctl
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    tie()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
