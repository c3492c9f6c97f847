"""Processes that do not outlive the one that started them, however that one ends.

On Linux the kernel does it: each process asks for its own SIGKILL at its parent's death (prctl(2),
PR_SET_PDEATHSIG). It is sent when the *thread* that started the process ends, so processes are started
from threads that last. Elsewhere a child watches a pipe whose other end only its parent holds.
"""

from __future__ import annotations

import ctypes
import os
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
    """What runs ``module`` as a program that is tied before it imports anything heavy."""
    return [sys.executable, "-m", "qa_arch.system.tied", module, *arguments]


def start(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    pipe: bool = not LINUX,
    **options: Any,
) -> subprocess.Popen[Any]:
    """Start a program that calls ``tie``; ``options`` are Popen's."""
    environment = dict(os.environ if env is None else env)
    if not pipe:
        environment[VARIABLE] = f"parent:{os.getpid()}"
        return subprocess.Popen(command, env=environment, pass_fds=pass_fds, **options)
    theirs, ours = os.pipe()
    environment[VARIABLE] = f"pipe:{theirs}"
    try:
        process = subprocess.Popen(command, env=environment, pass_fds=(*pass_fds, theirs), **options)
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    weakref.finalize(process, os.close, ours)
    return process


def tie() -> None:
    """End this process when the one that ``start``-ed it ends. Called before anything else is done."""
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
    if os.getppid() != parent:  # it ended before it could be asked for
        os.kill(os.getpid(), signal.SIGKILL)


def _watch(pipe: int) -> None:
    os.read(pipe, 1)  # nothing is ever written: it returns when the parent is gone
    os.kill(os.getpid(), signal.SIGKILL)
