"""Five models at demo size on the embedded data.

Filled by: make demo, then qa-arch tables runs/demo --publish experiments/demo/records
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qa_arch.results.experiments import dot_plot, records_table
from qa_arch.results.tables import Table


def tables(folder: Path) -> list[Table]:
    return [
        records_table(
            folder,
            "Five models at demo size on the embedded data, dev",
            columns=(
                "model",
                "exact",
                "f1",
                "HasAns_f1",
                "NoAns_f1",
                "null_threshold",
                "parameters",
                "seconds",
            ),
        ),
        records_table(
            folder,
            "The comparison of chapter 5 at this size: baselines against the proposed model",
            columns=(
                *("model", "exact", "f1", "HasAns_f1", "NoAns_f1", "recall", "seconds", "parameters"),
                *("examples_per_second", "peak_memory_mb"),
            ),
            notes=["recall is the mean over questions of the token recall at the best gold answer"],
        ),
    ]


def figures(folder: Path) -> list[Sequence[Path]]:
    title = "Five models at demo size on the embedded data, dev"
    return [dot_plot(folder, "comparison", title, ("exact", "f1", "HasAns_f1", "NoAns_f1"))]
