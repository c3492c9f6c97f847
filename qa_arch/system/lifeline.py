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
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

PARENT = "QA_ARCH_LIFELINE"
"""Environment variable with the id of the process that a child ends with."""
SAFE_PATH = "PYTHONSAFEPATH"
"""Environment variable that keeps the working folder out of ``sys.path``, as ``python -P`` does."""
LINUX = sys.platform == "linux"
KILL_WAIT = 5.0
"""Seconds to wait for the last process of a group after its SIGKILL."""
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


def has_ended(process: subprocess.Popen[Any]) -> bool:
    """Whether the process has ended; does not reap it, so that the id of its group stays valid."""
    if process.returncode is not None:
        return True
    if hasattr(os, "waitid"):
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return process.poll() is not None


def kill_group(process: subprocess.Popen[Any]) -> int:
    """Kill the rest of a process's group and return the exit code of the process, its first."""
    with suppress(ProcessLookupError, PermissionError):  # macOS refuses if only zombies are left
        os.killpg(process.pid, signal.SIGKILL)
    code = process.wait()
    deadline = time.monotonic() + KILL_WAIT
    with suppress(ProcessLookupError, PermissionError):
        while time.monotonic() < deadline:
            os.killpg(process.pid, 0)
            time.sleep(0.02)
    return code


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP as an interrupt, so that children can be asked to end.

    Ignored signals stay ignored: under nohup work continues when its terminal closes.
    """

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    handled = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, interrupted) for number in handled}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    tie()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
