"""The hypothesis: does BERT + GloVe + match-LSTM + answer pointer beat the plain span head?

Filled by: qa-arch train -m experiment=hypothesis seed=13,14,15 model=bert,ablation/letter,proposed ...; then
qa-arch evaluate --run RUN --final for each, and qa-arch tables runs/hypothesis --publish
experiments/hypothesis/records (see README.md)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qa_arch.results.experiments import (
    Wanted,
    baseline_table,
    difference_plot,
    learning_curves,
    pairwise_table,
    records_table,
)
from qa_arch.results.tables import Table


def tables(folder: Path) -> list[Table]:
    by_kind = "against the plain span head, by kind of question: dev fold A"
    return [
        records_table(
            folder,
            "The hypothesis: MiniLM-L6 on 2,500 questions of SQuAD 2.0, dev fold A",
            columns=(
                *("model", "seed", "exact", "f1", "HasAns_f1", "NoAns_f1", "forced_f1", "threshold_0_f1"),
                *("null_threshold", "parameters", "seconds"),
            ),
            wanted=[_wanted("bert"), _wanted("ablation/letter"), _wanted("proposed")],
            sort=("model", "seed"),
            notes=[
                "training is 13.2% unanswerable, calibration 41.6%, this set 52.1%",
                "seconds: not comparable; two runs at a time on cores shared unevenly with other work",
            ],
        ),
        baseline_table(folder, "Tested against the plain span head, dev fold A", "bert"),
        baseline_table(
            folder,
            "Answerable F1 (forced answer), against the plain span head: dev fold A",
            "bert",
            measure="forced_f1",
        ),
        pairwise_table(folder, f"The proposed model {by_kind}", "bert", "proposed"),
        pairwise_table(folder, f"Section 3.3 to the letter {by_kind}", "bert", "ablation_letter"),
    ]


def _wanted(model: str) -> Wanted:
    settings = f"experiment=hypothesis model={model} seed=13,14,15 data.train_questions=2500"
    return Wanted(model.replace("/", "_"), f"qa-arch train -m {settings}")


def figures(folder: Path) -> list[Sequence[Path]]:
    scores = ("calibration_exact", "calibration_f1", "calibration_forced_f1")
    return [
        difference_plot(
            folder,
            "differences",
            "Does it beat the plain span head? Dev fold A, 3 seeds, 2,500 training questions",
            "bert",
            names={
                "proposed": "proposed: BERT + GloVe + match-LSTM + pointer",
                "ablation_letter": "section 3.3 to the letter, no match-LSTM",
                "bert": "the plain span head of the same encoder",
            },
        ),
        learning_curves(folder, "losses", "Losses by epoch", ("train_loss", "calibration_loss")),
        learning_curves(folder, "scores", "Calibration by epoch", scores),
    ]
