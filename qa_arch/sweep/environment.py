"""Environment variables of a point: this process's, without those of other runs."""

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
"""Variables of distributed training and of a single wandb run, which a point must not inherit.

The user's wandb key, mode and project stay. With SLURM's task variables Lightning would treat a point
as one rank of the whole job.
"""
SCRUBBED_PREFIXES = ("TORCHELASTIC_",)


def point_environment(
    *,
    devices: Sequence[str] | None,
    side_by_side: int,
    group: str,
    environment: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """Variables of a point. ``devices``: the GPUs it may use; None: all that this process sees.

    The cores are split among ``side_by_side`` points unless OMP_NUM_THREADS is set. ``group`` is the wandb
    group of the sweep's runs.
    """
    variables = {
        name: value
        for name, value in environment.items()
        if name not in SCRUBBED and not name.startswith(SCRUBBED_PREFIXES)
    }
    variables["WANDB_RUN_GROUP"] = group
    if devices is not None:
        variables[VISIBLE] = ",".join(devices)
    if side_by_side > 1:
        variables.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // side_by_side)))
    return variables
