"""Local schedule of points: started in order as devices become free, several at a time.

Single-threaded, because a point ends with the thread that starts it (see ``system.lifeline``).
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qa_arch import provenance
from qa_arch.config.check import read
from qa_arch.config.files import write_atomic
from qa_arch.config.schema import SweepSettings
from qa_arch.errors import ConfigError, RunError
from qa_arch.records import RECORD
from qa_arch.sweep.state import ALL_DEVICES, LOG, TRACEBACK, VISIBLE, Entry, Status, read_status, record_of
from qa_arch.system import lifeline

GRACE = 10.0
"""Seconds for an interrupted point to save a checkpoint, then again to write its record without one."""
KILL_WAIT = 5.0
"""Seconds to wait for the last process of a group after its SIGKILL."""
POLL = 0.1
Process = subprocess.Popen[Any]
SCRUBBED = (
    *("LOCAL_RANK", "RANK", "NODE_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "PL_GLOBAL_SEED", "PL_SEED_WORKERS"),
    *("WANDB_RUN_ID", "WANDB_RESUME", "WANDB_SERVICE"),
    *("SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"),
)
"""Variables of distributed training and of a single wandb run, which a point must not inherit.

The user's wandb key, mode and project are kept. With SLURM's task variables Lightning would treat a point as
one rank of the whole job.
"""
Command = Callable[[Path], list[str]]
"""Command that runs or resumes the point in a folder."""


@dataclass(frozen=True)
class Running:
    entry: Entry
    folder: Path
    process: Process
    devices: list[str]
    earlier: tuple[int, int] | None
    """The file of the record that an earlier attempt left; no times are compared, for clocks go back."""


@dataclass(frozen=True)
class Plan:
    """How to run the points of a sweep."""

    folder: Path
    command: Command
    cwd: Path
    jobs: int
    pool: list[str] | None
    fail_fast: bool
    commit: str | None

    def needs(self, entry: Entry) -> int:
        """Number of devices that a point takes from the pool."""
        if self.pool is None:
            return 0
        return len(self.pool) if entry.devices == ALL_DEVICES else entry.devices


Engine = Callable[[Sequence[Entry], Plan, Callable[[Entry | None], Any]], None]
"""Runs points: ``run`` on this machine, or ``submitted.run`` on a cluster."""


def run(entries: Sequence[Entry], plan: Plan, watch: Callable[[Entry | None], Any]) -> None:
    """Run every point. ``watch`` is called with each point that changed state, and with None at intervals.

    An interrupt or an error stops all points.
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
            for point in [point for point in running if has_ended(point.process)]:
                running.remove(point)
                free += point.devices
                status = _settle(point, kill_group(point.process))
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
    """Treat SIGTERM and SIGHUP as an interrupt, so that points can save checkpoints.

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
    earlier = _record_file(folder)
    with (folder / LOG).open("ab") as log:
        process = lifeline.start(
            plan.command(folder),
            env=env,
            cwd=plan.cwd,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a terminal's interrupt reaches only this process, which forwards it
        )
    return Running(entry, folder, process, devices, earlier)


def _record_file(folder: Path) -> tuple[int, int] | None:
    """Identity of the file of a record; None if there is none."""
    with suppress(FileNotFoundError):
        file = (folder / RECORD).stat()
        return file.st_ino, file.st_mtime_ns
    return None


def _stop(running: Sequence[Running], watch: Callable[[Entry | None], Any]) -> None:
    """Interrupt the first process of each group and wait up to ``GRACE`` seconds, twice; kill the rest."""
    try:
        for _ in range(2):  # like a user's second Ctrl-C: at the second interrupt a point exits at once
            for point in running:
                if not has_ended(point.process):
                    point.process.send_signal(signal.SIGINT)
            deadline = time.monotonic() + GRACE
            while time.monotonic() < deadline and not all(has_ended(point.process) for point in running):
                time.sleep(0.05)
    finally:  # also after a second interrupt
        for point in running:
            _settle(point, kill_group(point.process), stopped=True)
            watch(point.entry)


def _settle(point: Running, code: int, *, stopped: bool = False) -> Status:
    """Write and return the final status of a point: that of its record if this attempt wrote one."""
    status = replace(read_status(point.folder), ended=provenance.now())
    lines = list[str]()
    try:
        record = record_of(point.folder)
    except RunError as error:  # the other points go on
        status = replace(status, status="failed", error=str(error))
        status.write(point.folder)
        return status
    is_new = _record_file(point.folder) != point.earlier
    if record is not None and record.status == "ok":
        status = replace(status, status="ok")
    elif stopped:
        status = replace(status, status="killed", error="interrupted")
    elif record is not None and is_new and record.error:
        status = replace(status, status=record.status, error=record.error)
    elif code < 0:
        message = f"killed by {signal.Signals(-code).name}"
        hint = " (by the kernel if the machine ran out of memory)" if -code == signal.SIGKILL else ""
        status = replace(status, status="killed", error=message + hint)
    else:
        text = (point.folder / LOG).read_text(encoding="utf-8", errors="replace")
        lines = [line for line in text.splitlines() if line.strip()][-60:]
        status = replace(status, status="failed", error=lines[-1] if lines else f"exit code {code}")
    status.write(point.folder)  # first: a full disk may have no room for both
    if lines:
        write_atomic(point.folder / TRACEBACK, "\n".join(lines) + "\n")
    return status


# Settings, environment and processes of points ------------------------------------------------------


def read_settings(raw: Mapping[str, Any]) -> SweepSettings:
    """Validate the settings; ConfigError names the dotted key."""
    settings = read(SweepSettings, raw, "sweep")
    devices = settings.devices
    if devices is not None and (not devices or len(set(map(str, devices))) < len(devices)):
        raise ConfigError(f"sweep.devices: {devices} must list at least one device, and each only once")
    return settings


def device_pool(settings: SweepSettings, environment: Mapping[str, str] = os.environ) -> list[str] | None:
    """Devices as named in CUDA_VISIBLE_DEVICES; numbers index the devices that are already visible."""
    if settings.devices is None:
        return None
    visible = environment.get(VISIBLE)
    if visible is None:
        return [str(device) for device in settings.devices]
    names = [name.strip() for name in visible.split(",") if name.strip()]
    pool = []
    for device in settings.devices:
        if isinstance(device, int) and not 0 <= device < len(names):
            raise ConfigError(
                f"sweep.devices: there is no device {device}; {VISIBLE}={visible} leaves {len(names)},"
                " counted from 0"
            )
        pool.append(names[device] if isinstance(device, int) else device)
    return pool


def point_environment(
    *,
    devices: Sequence[str] | None,
    side_by_side: int,
    group: str,
    environment: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """Environment of a point. ``devices``: the GPUs it may use; None: all that this process sees.

    The cores are split among ``side_by_side`` points unless OMP_NUM_THREADS is set. ``group`` is the wandb
    group of the sweep's runs.
    """
    variables = {
        name: value
        for name, value in environment.items()
        if name not in SCRUBBED and not name.startswith("TORCHELASTIC_")
    }
    variables["WANDB_RUN_GROUP"] = group
    if devices is not None:
        variables[VISIBLE] = ",".join(devices)
    if side_by_side > 1:
        variables.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // side_by_side)))
    return variables


def has_ended(process: Process) -> bool:
    """Whether the group's first process has ended; does not reap it, so that the group id stays valid."""
    if process.returncode is not None:
        return True
    if hasattr(os, "waitid"):
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return process.poll() is not None


def kill_group(process: Process) -> int:
    """Kill the rest of the group and return the exit code of its first process."""
    with suppress(ProcessLookupError, PermissionError):  # macOS refuses if only zombies are left
        os.killpg(process.pid, signal.SIGKILL)
    code = process.wait()
    deadline = time.monotonic() + KILL_WAIT
    with suppress(ProcessLookupError, PermissionError):
        while time.monotonic() < deadline:
            os.killpg(process.pid, 0)
            time.sleep(0.02)
    return code
