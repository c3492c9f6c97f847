"""Head and twins, a 2 × 2 design: does the proposed model with both beat the plain span head?

Filled by: the five commands of README.md; then qa-arch evaluate --run RUN --final for each, and
qa-arch tables runs/decision --publish experiments/decision/records
"""

from __future__ import annotations

from pathlib import Path

from qa_arch.results.experiments import Wanted, runs_table
from qa_arch.results.tables import Table

ARMS = {
    "plain": "model=bert",
    "plain_twins": "model=bert loss=twins",
    "together": "model=ablation/together",
    "together_twins": "model=ablation/together loss=twins loss.verifier_null_weight=balanced",
    "plain_longer": "model=bert trainer.epochs=4",
}


def tables(folder: Path) -> list[Table]:
    seeds = "seed=13,14,15,16,17"
    wanted = [
        Wanted(name, f"qa-arch train -m experiment=decision model.name={name} {settings} {seeds}")
        for name, settings in ARMS.items()
    ]
    return [
        runs_table(
            folder,
            "Head and twins: MiniLM-L6 on the swapped split, 15 articles of dev",
            columns=(
                *("model", "seed", "exact", "f1", "HasAns_f1", "NoAns_f1", "spans_f1", "auroc"),
                *("null_threshold", "parameters", "seconds"),
            ),
            wanted=wanted,
            sort=("model", "seed"),
        )
    ]
