"""The environment of a point: ours, less what belongs to another process of another run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from qa_arch.sweep.settings import VISIBLE

SCRUBBED = (
    "LOCAL_RANK",
    "RANK",
    "NODE_RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "PL_GLOBAL_SEED",
    "PL_SEED_WORKERS",
    "WANDB_RUN_ID",
    "WANDB_RESUME",
    "WANDB_SERVICE",
    "WANDB_RUN_GROUP",
    "SLURM_NTASKS",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NODEID",
)
"""Who is which rank of what, and which wandb run: of one run, never of its neighbours.

The user's wandb key, mode and project stay. With SLURM's task variables Lightning would take a point
for one rank of the whole job.
"""
SCRUBBED_PREFIXES = ("TORCHELASTIC_",)


def point_environment(
    *,
    devices: Sequence[str] | None,
    side_by_side: int,
    group: str,
    environment: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """Variables for a point. ``devices``: the GPUs that it may see, None: all that we see.

    ``side_by_side`` points share the cores, where OMP_NUM_THREADS does not say otherwise. ``group``
    brings the sweep's runs together in wandb.
    """
    kept = {
        name: value
        for name, value in environment.items()
        if name not in SCRUBBED and not name.startswith(SCRUBBED_PREFIXES)
    }
    kept["WANDB_RUN_GROUP"] = group
    if devices is not None:
        kept[VISIBLE] = ",".join(devices)
    if side_by_side > 1:
        kept.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // side_by_side)))
    return kept
