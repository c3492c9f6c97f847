"""Child processes that end with their parent, however it ends.

On Linux the kernel sends each child a SIGKILL at its parent's death (prctl(2), PR_SET_PDEATHSIG). It is
sent when the *thread* that started the child ends, so children are started from long-lived threads.
Elsewhere a child watches a pipe whose other end only its parent holds.

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
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

VARIABLE = "QA_ARCH_LIFELINE"
LINUX = sys.platform == "linux"
_PR_SET_PDEATHSIG = 1


def module_command(module: str, *arguments: str) -> list[str]:
    """Command that runs ``module`` as a program, tied to its parent before any slow import."""
    return [sys.executable, "-m", "qa_arch.system.lifeline", module, *arguments]


def start(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    pipe: bool = not LINUX,
    **options: Any,
) -> subprocess.Popen[Any]:
    """Start a program that calls ``tie``; ``options`` are those of Popen."""
    environment = dict(os.environ if env is None else env)
    if not pipe:
        environment[VARIABLE] = f"parent:{os.getpid()}"
        return subprocess.Popen(command, env=environment, pass_fds=pass_fds, **options)
    child_end, parent_end = os.pipe()
    environment[VARIABLE] = f"pipe:{child_end}"
    try:
        process = subprocess.Popen(command, env=environment, pass_fds=(*pass_fds, child_end), **options)
    except BaseException:
        os.close(parent_end)
        raise
    finally:
        os.close(child_end)
    weakref.finalize(process, os.close, parent_end)
    return process


def tie() -> None:
    """Make this process end with the process that called ``start``; to be called first."""
    kind, _, value = os.environ.pop(VARIABLE, "").partition(":")
    if kind == "parent":
        die_with(int(value))
    elif kind == "pipe":
        threading.Thread(target=_watch, args=(int(value),), daemon=True).start()


def die_with(parent: int) -> None:
    """On Linux, end this process when its parent, the process ``parent``, ends; elsewhere do nothing."""
    if not LINUX:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # the parent ended before prctl
        os.kill(os.getpid(), signal.SIGKILL)


def _watch(pipe: int) -> None:
    os.read(pipe, 1)  # nothing is ever written: returns when the parent has ended
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    tie()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
