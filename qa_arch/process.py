"""Processes: children that end with their parent, however it ends; ranks that a launcher started.

``RANK`` and the like come from torchrun, or from srun in a SLURM job step.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from qa_arch.errors import ConfigError

PARENT = "QA_ARCH_LIFELINE"
"""Environment variable with the id of the process that a child ends with."""
SAFE_PATH = "PYTHONSAFEPATH"
"""Environment variable that keeps the working folder out of ``sys.path``, as ``python -P`` does."""
log = logging.getLogger(__name__)
LINUX = sys.platform == "linux"
KILL_WAIT = 5.0
"""Seconds to wait for the last process of a group after its SIGKILL."""
_PR_SET_PDEATHSIG = 1


def module_command(module: str, *arguments: str) -> list[str]:
    """Command that runs ``module`` as a program, tied to its parent before any slow import."""
    return [sys.executable, "-P", "-m", "qa_arch.process", module, *arguments]


def start(
    command: Sequence[str], *, env: Mapping[str, str] | None = None, **options: Any
) -> subprocess.Popen[Any]:
    """Start a program that calls ``tie``; ``options`` are those of Popen."""
    if not LINUX:
        _warn_of_orphans()
    environment = dict(os.environ if env is None else env) | {
        PARENT: str(os.getpid()),
        SAFE_PATH: "1",  # also for programs that the child starts
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),  # an empty entry is the working folder
    }
    return subprocess.Popen(command, env=environment, **options)


@cache
def _warn_of_orphans() -> None:
    log.warning(
        "%s: processes of a run that is killed (kill -9) may outlive it; end them by hand", sys.platform
    )


def tie() -> None:
    """Make this process end with the process that called ``start``; to be called first."""
    if parent := os.environ.pop(PARENT, ""):  # programs that this one starts have another parent
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
    # Before the first process is reaped, with which the id of the group could go to another.
    with suppress(ProcessLookupError, PermissionError):  # macOS refuses if only zombies are left
        os.killpg(process.pid, signal.SIGKILL)
    code = process.wait()
    deadline = time.monotonic() + KILL_WAIT
    with suppress(ProcessLookupError, PermissionError):
        while time.monotonic() < deadline:
            os.killpg(process.pid, 0)  # raises once nobody is left
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


@dataclass(frozen=True)
class Launched:
    """Rank of this process among the processes of a run."""

    rank: int
    world: int
    local_world: int
    """Processes on this machine; the same number on every machine."""

    @property
    def nodes(self) -> int:
        return self.world // self.local_world


def launched(environ: MutableMapping[str, str] | None = None) -> Launched | None:
    """Rank and world size set by torchrun or srun; None for an ordinary process.

    In a SLURM step with several tasks, this also sets torchrun's variables.
    """
    environment = os.environ if environ is None else environ
    if "RANK" not in environment:  # torchrun sets it, also inside a SLURM step
        _translate(environment)
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        return None
    rank, world = _number(environment, "RANK"), _number(environment, "WORLD_SIZE")
    local = _number(environment, "LOCAL_WORLD_SIZE") if "LOCAL_WORLD_SIZE" in environment else world
    agents = _number(environment, "GROUP_WORLD_SIZE") if "GROUP_WORLD_SIZE" in environment else None
    if agents is not None and agents * local != world:
        raise ConfigError(
            f"torchrun started {world} processes on {agents} machines, not equally many on each ({local} on"
            " this one); give the same --nproc-per-node on every machine"
        )
    if not 0 <= rank < world or local < 1 or world % local:
        raise ConfigError(f"RANK={rank}, WORLD_SIZE={world}, LOCAL_WORLD_SIZE={local} are inconsistent")
    if world > 1 and (
        missing := [n for n in ("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if n not in environment]
    ):
        raise ConfigError(f"RANK and WORLD_SIZE are set, but not {', '.join(missing)}: start with torchrun")
    return Launched(rank, world, local)


def _translate(environment: MutableMapping[str, str]) -> None:
    """Set torchrun's variables from SLURM's in a step with several tasks (only srun sets step variables)."""
    tasks = int(environment.get("SLURM_STEP_NUM_TASKS", 1))
    nodes = int(environment.get("SLURM_STEP_NUM_NODES", 1))
    if tasks < 2 or "SLURM_PROCID" not in environment:
        return
    spread = environment.get("SLURM_STEP_TASKS_PER_NODE", "")
    if "," in spread or tasks % nodes:
        raise ConfigError(
            f"srun started {tasks} processes on {nodes} machines, not equally many on each"
            f" ({spread or 'uneven'}); give --ntasks-per-node"
        )
    environment["RANK"], environment["WORLD_SIZE"] = environment["SLURM_PROCID"], str(tasks)
    environment["LOCAL_RANK"] = environment["SLURM_LOCALID"]
    environment["NODE_RANK"] = environment.get("SLURM_NODEID", "0")
    environment["LOCAL_WORLD_SIZE"] = str(tasks // nodes)
    hosts = environment.get("SLURM_STEP_NODELIST", "127.0.0.1")
    first = re.sub(r"\[(\w+)[^]]*\]", r"\1", hosts).partition(",")[0]  # gpu[03-05,9]-ib,login -> gpu03-ib
    environment.setdefault("MASTER_ADDR", first)
    job, step = (int(environment.get(name, 0)) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    # Steps are a prime apart, so that neither they nor neighbouring jobs share a port.
    environment.setdefault("MASTER_PORT", str(20000 + (job + 1009 * step) % 20000))


def _number(environment: MutableMapping[str, str], name: str) -> int:
    try:
        return int(environment[name])
    except ValueError:
        raise ConfigError(f"{name}={environment[name]!r} in the environment is not a number") from None


@contextmanager
def gc_disabled() -> Iterator[None]:
    """Disable automatic garbage collection in the ``with`` block or the decorated function.

    New objects trigger collections that visit every live object. If all new objects stay alive, these find
    nothing and make the run time of a large set superlinear. Importing torch, transformers and Lightning
    leaves some 700,000 objects alive.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


if __name__ == "__main__":
    tie()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
