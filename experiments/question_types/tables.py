"""Classes of generated questions.

Filled by: qa-arch train model=question_types experiment=question_types, once with model.bidirectional=false
"""

from __future__ import annotations

from pathlib import Path

from qa_arch.results.experiments import records_table
from qa_arch.results.tables import Table


def tables(folder: Path) -> list[Table]:
    return [
        records_table(
            folder,
            "Classes of generated questions, dev",
            columns=("model", "run", "accuracy", "main_accuracy", "mrr", "parameters", "epochs", "seconds"),
            notes=[
                "question_types-lstm reads forwards only, question_types-bilstm in both directions (summed)",
                "rules: question word and noun (qa_arch/extras/selection/rankers.py), for the six main"
                " classes only",
            ],
        )
    ]
