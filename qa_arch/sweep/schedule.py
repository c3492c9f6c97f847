"""Local schedule of points: started in order as devices become free, several at a time.

Single-threaded, because a point ends with the thread that started it (see ``system.lifeline``).
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qa_arch.config.files import write_atomic
from qa_arch.results import provenance
from qa_arch.results.record import RECORD
from qa_arch.sweep import processes
from qa_arch.sweep.environment import point_environment
from qa_arch.sweep.points import ALL_DEVICES
from qa_arch.sweep.state import LOG, TRACEBACK, Entry, Status, read_status, record_of

POLL = 0.1
Command = Callable[[Path], list[str]]
"""Command that runs or resumes the point in a folder."""


@dataclass(frozen=True)
class Running:
    entry: Entry
    folder: Path
    process: processes.Process
    devices: list[str]
    begun: float
    """Start time (Unix seconds): an older record belongs to an earlier attempt."""


@dataclass(frozen=True)
class Plan:
    """How the points of a sweep are run."""

    folder: Path
    command: Command
    cwd: Path
    jobs: int
    pool: list[str] | None
    fail_fast: bool
    commit: str | None

    def needs(self, entry: Entry) -> int:
        """Devices of the pool that a point takes."""
        pool = self.pool or []
        return len(pool) if entry.devices == ALL_DEVICES else entry.devices if self.pool is not None else 0


Engine = Callable[[Sequence[Entry], Plan, Callable[[Entry | None], Any]], None]
"""Runs points: ``run``, on this machine, or ``submitted.run``."""


def run(entries: Sequence[Entry], plan: Plan, watch: Callable[[Entry | None], Any]) -> None:
    """Run every point. ``watch`` gets each point that changed its state, and None at intervals.

    An interrupt or an error ends all points.
    """
    waiting, running = deque(entries), list[Running]()
    free = list(plan.pool or [])
    try:
        while waiting or running:
            while waiting and len(running) < plan.jobs and plan.needs(waiting[0]) <= len(free):
                entry = waiting.popleft()
                devices, free = free[: plan.needs(entry)], free[plan.needs(entry) :]
                running.append(_start(entry, devices, plan))
                watch(entry)
            for point in [point for point in running if processes.has_ended(point.process)]:
                running.remove(point)
                free += point.devices
                status = _settle(point, processes.clear_away(point.process))
                watch(point.entry)
                if plan.fail_fast and status.status == "failed":
                    _stop(running, watch)
                    return
            watch(None)
            time.sleep(POLL)
    except BaseException:
        _stop(running, watch)
        raise


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP as an interrupt, so that points are stopped in order.

    Ignored signals stay ignored: under nohup a sweep continues when its terminal closes.
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


def _start(entry: Entry, devices: list[str], plan: Plan) -> Running:
    folder = plan.folder / entry.name
    status = read_status(folder)
    Status("running", status.attempts + 1, provenance.now(), commit=plan.commit).write(folder)
    env = point_environment(
        devices=None if plan.pool is None else devices, side_by_side=plan.jobs, group=plan.folder.name
    )
    begun = time.time()
    process = processes.start(plan.command(folder), folder, env, plan.cwd)
    return Running(entry, folder, process, devices, begun)


def _stop(running: Sequence[Running], watch: Callable[[Entry | None], Any]) -> None:
    try:
        processes.interrupt([point.process for point in running])
    finally:  # also after a second interrupt
        for point in running:
            _settle(point, processes.clear_away(point.process), stopped=True)
            watch(point.entry)


def _settle(point: Running, code: int, *, stopped: bool = False) -> Status:
    """Write the final status of a point: that of its record if this attempt wrote one."""
    status = replace(read_status(point.folder), ended=provenance.now())
    record = record_of(point.folder)
    fresh = record is not None and (point.folder / RECORD).stat().st_mtime >= point.begun
    if record is not None and record.status == "ok":
        status = replace(status, status="ok")
    elif stopped:
        status = replace(status, status="killed", error="interrupted")
    elif record is not None and fresh and record.status in ("oom", "failed", "killed"):
        status = replace(status, status=record.status, error=record.error)
    elif code < 0:
        message = f"killed by {signal.Signals(-code).name}"
        hint = " (by the kernel if the machine ran out of memory)" if -code == signal.SIGKILL else ""
        status = replace(status, status="killed", error=message + hint)
    else:
        lines = _tail(point.folder / LOG)
        write_atomic(point.folder / TRACEBACK, "\n".join(lines) + "\n")
        status = replace(status, status="failed", error=lines[-1] if lines else f"exit code {code}")
    status.write(point.folder)
    return status


def _tail(path: Path, lines: int = 60) -> list[str]:
    """Last non-blank lines of a log."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 100_000))
        text = file.read().decode("utf-8", errors="replace")
    return [line for line in text.splitlines() if line.strip()][-lines:]
