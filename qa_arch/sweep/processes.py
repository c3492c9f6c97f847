"""Process groups of points: start, interrupt, kill."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from qa_arch.sweep.state import LOG
from qa_arch.system import lifeline

GRACE = 10.0
"""Seconds for an interrupted point to save a checkpoint, and as many again to write its record without."""
REMAINS = 5.0
"""Seconds to wait for the last process of a group after its SIGKILL."""
Process = subprocess.Popen[Any]


def start(command: Sequence[str], folder: Path, env: Mapping[str, str], cwd: Path) -> Process:
    """Start a point's command, which ends with this process; its output is appended to its log."""
    with (folder / LOG).open("ab") as log:
        return lifeline.start(
            command,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a terminal's interrupt reaches only this process, which passes it on
        )


def has_ended(process: Process) -> bool:
    """Whether the group's first process has ended; it is not reaped, so that the group id stays valid."""
    if process.returncode is not None:
        return True
    if hasattr(os, "waitid"):
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return process.poll() is not None


def clear_away(process: Process) -> int:
    """Kill the rest of the group and return the exit code of its first process."""
    with suppress(ProcessLookupError, PermissionError):  # macOS refuses where only zombies are left
        os.killpg(process.pid, signal.SIGKILL)
    code = process.wait()
    deadline = time.monotonic() + REMAINS
    with suppress(ProcessLookupError, PermissionError):
        while time.monotonic() < deadline:
            os.killpg(process.pid, 0)
            time.sleep(0.02)
    return code


def interrupt(processes: Sequence[Process]) -> None:
    """Interrupt the first process of each group and wait at most ``GRACE`` seconds for them, twice."""
    for _ in range(2):  # as a person would: the second time a point leaves at once
        for process in processes:
            if not has_ended(process):
                process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + GRACE
        while time.monotonic() < deadline and not all(map(has_ended, processes)):
            time.sleep(0.05)
