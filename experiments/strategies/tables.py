"""One device, two devices, accumulation: the same optimizer steps.

Filled by: qa-arch train -m experiment=strategies model=proposed trainer.micro_batch=32,8
and qa-arch train -m experiment=strategies model=proposed trainer=ddp,ddp_spawn trainer.accelerator=cpu ...
(see README.md)
"""

from __future__ import annotations

from pathlib import Path

from qa_arch.results.experiments import records_table
from qa_arch.results.tables import Table


def tables(folder: Path) -> list[Table]:
    return [
        records_table(
            folder,
            "A global batch of 32, split in different ways: proposed model at demo size, generated data",
            columns=(
                *("model", "strategy", "devices", "micro", "accumulate", "batch", "exact", "f1", "seconds"),
                *("examples_per_second", "peak_memory_mb"),
            ),
            sort=("devices", "accumulate", "strategy"),
        )
    ]
