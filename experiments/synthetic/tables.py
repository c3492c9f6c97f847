"""Five models on level 3 of the generated data.

Filled by: qa-arch train --models all experiment=synthetic
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qa_arch.results.experiments import learning_curves, records_table
from qa_arch.results.tables import Table


def tables(folder: Path) -> list[Table]:
    return [
        records_table(
            folder,
            "Five models at demo size on level 3 of the generated data",
            columns=(
                *("model", "exact", "f1", "HasAns_f1", "NoAns_f1", "forced_f1", "null_threshold"),
                *("parameters", "seconds"),
            ),
        )
    ]


def figures(folder: Path) -> list[Sequence[Path]]:
    scores, losses = ("calibration_exact", "calibration_f1"), ("train_loss", "calibration_loss")
    return [
        learning_curves(folder, "scores", "EM and F1 by epoch", scores),
        learning_curves(folder, "losses", "Losses by epoch", losses),
    ]
