"""A run whose processes somebody else has started: torchrun, or srun of a SLURM job step.

Such a process finds in its environment which of how many it is, and where they meet. The variables are
torchrun's (https://docs.pytorch.org/docs/stable/elastic/run.html); srun's are put in the same words.
"""

from __future__ import annotations

import os
import re
from collections.abc import MutableMapping
from dataclasses import dataclass

from qa_arch.errors import ConfigError


@dataclass(frozen=True)
class Launched:
    """This process among those that train together."""

    rank: int
    world: int
    local_world: int
    """Processes on this machine; every machine has as many."""

    @property
    def nodes(self) -> int:
        return self.world // self.local_world


def launched(environ: MutableMapping[str, str] | None = None) -> Launched | None:
    """What started this process as one of several says of it; None where nobody did.

    Of a SLURM step with several tasks the variables are set that torchrun would have set.
    """
    found = os.environ if environ is None else environ
    if "RANK" not in found:
        _translate(found)
    if "RANK" not in found or "WORLD_SIZE" not in found:
        return None
    rank, world = _number(found, "RANK"), _number(found, "WORLD_SIZE")
    local = _number(found, "LOCAL_WORLD_SIZE") if "LOCAL_WORLD_SIZE" in found else world
    if not 0 <= rank < world or local < 1 or world % local:
        raise ConfigError(f"RANK={rank}, WORLD_SIZE={world}, LOCAL_WORLD_SIZE={local} do not go together")
    if world > 1 and (missing := [n for n in ("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if n not in found]):
        raise ConfigError(f"RANK and WORLD_SIZE are set, but not {', '.join(missing)}: start with torchrun")
    return Launched(rank, world, local)


def _translate(found: MutableMapping[str, str]) -> None:
    """SLURM's words into torchrun's, in a step of several tasks (the variables of a step are srun's own)."""
    if int(found.get("SLURM_STEP_NUM_TASKS", 1)) < 2 or "SLURM_PROCID" not in found:
        return
    tasks, nodes = _number(found, "SLURM_STEP_NUM_TASKS"), int(found.get("SLURM_STEP_NUM_NODES", 1))
    found["RANK"], found["WORLD_SIZE"] = found["SLURM_PROCID"], str(tasks)
    found["LOCAL_RANK"], found["NODE_RANK"] = found["SLURM_LOCALID"], found.get("SLURM_NODEID", "0")
    found["LOCAL_WORLD_SIZE"] = str(tasks // nodes)
    found.setdefault("MASTER_ADDR", _first_host(found.get("SLURM_STEP_NODELIST", "127.0.0.1")))
    found.setdefault("MASTER_PORT", str(20000 + int(found.get("SLURM_JOB_ID", 0)) % 20000))


def _first_host(nodes: str) -> str:
    """``gpu[03-05,9],login`` -> ``gpu03``."""
    found = re.match(r"([^,\[]+)(?:\[(\w+))?", nodes)
    return f"{found[1]}{found[2] or ''}" if found else nodes


def _number(found: MutableMapping[str, str], name: str) -> int:
    try:
        return int(found[name])
    except ValueError:
        raise ConfigError(f"{name}={found[name]!r} in the environment is no number") from None
