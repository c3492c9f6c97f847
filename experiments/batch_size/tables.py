"""Batch sizes of the proposed model at two epochs.

Filled by: qa-arch train -m experiment=batch_size model=proposed trainer.batch_size=4,8,16,32,64
"""

from __future__ import annotations

from pathlib import Path

from qa_arch.results.experiments import records_table
from qa_arch.results.tables import Table


def tables(folder: Path) -> list[Table]:
    return [
        records_table(
            folder,
            "Batch sizes at two epochs, the proposed model at demo size on the embedded data, dev",
            columns=(
                *("model", "batch", "steps", "exact", "f1", "HasAns_f1", "NoAns_f1", "seconds"),
                *("examples_per_second", "peak_memory_mb"),
            ),
            sort=("batch", "seed"),
        )
    ]
