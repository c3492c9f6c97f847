"""Rank and world size of a process started by torchrun, or by srun in a SLURM job step.

Both are read from torchrun's environment variables
(https://docs.pytorch.org/docs/stable/elastic/run.html); srun's variables are translated to these.
"""

from __future__ import annotations

import os
import re
from collections.abc import MutableMapping
from dataclasses import dataclass

from qa_arch.errors import ConfigError


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
    if "RANK" not in environment:
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
