"""Contribution of each part of the proposed model, and remedies.

Filled by: qa-arch train -m experiment=ablations data.train_questions=2000 seed=13,14,15 model=...; the trials
by the commands in README.md; then qa-arch tables runs/ablations --publish experiments/ablations/records
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qa_arch.records import CALIBRATION
from qa_arch.results.experiments import Wanted, baseline_table, dot_plot, pairwise_table, records_table
from qa_arch.results.tables import Table

MODELS = (
    "bert",
    "ablation/pointer",
    "ablation/match",
    "ablation/glove",
    "ablation/letter",
    "proposed",
    "ablation/no_overlap",
    "ablation/verifier",
    "ablation/words",
    "ablation/suffix_prefix",
    "ablation/shortcut",
    "match_lstm/boundary",
)
TRIALS = ("trials", "seed*-bert-*", "seed*-proposed-*", "seed*-ablation_shortcut-*")


def tables(folder: Path) -> list[Table]:
    faster = "At twice the encoder's learning rate: the proposed model"
    plain_head = "against the plain span head, calibration"
    return [
        records_table(
            folder,
            "Ablations: 2,000 training questions, 2 epochs, calibration",
            split=CALIBRATION,
            records="seed*",
            sort=("model", "seed"),
            columns=(
                *("model", "seed", "forced_f1", "answerable_ap", "exact", "f1", "HasAns_f1", "NoAns_f1"),
                *("parameters", "seconds"),
            ),
            wanted=[_wanted(model) for model in MODELS],
            notes=[
                "EM and F1 are optimistic, as the threshold is fitted on this set; answerable F1"
                " (forced answer) and AP use none",
                'AP, answerable: area under precision and recall of "this question has an answer" by the null'
                " odds; 58.4 of 100 questions have one",
                "seconds: not comparable; two runs at a time on cores shared unevenly with other work",
            ],
        ),
        baseline_table(
            folder,
            "Answerable F1 (forced answer), against the plain span head: calibration",
            "bert",
            split=CALIBRATION,
            measure="forced_f1",
            records="seed*",
        ),
        baseline_table(
            folder,
            "F1, against the plain span head: calibration",
            "bert",
            split=CALIBRATION,
            records="seed*",
        ),
        baseline_table(
            folder,
            f"Remedies: answerable F1 (forced answer) {plain_head}",
            "bert",
            split=CALIBRATION,
            measure="forced_f1",
            records=TRIALS,
        ),
        baseline_table(folder, f"Remedies: F1 {plain_head}", "bert", split=CALIBRATION, records=TRIALS),
        pairwise_table(
            folder,
            f"{faster} {plain_head}",
            "bert lr=0.0002",
            "proposed lr=0.0002",
            split=CALIBRATION,
            records=("trials", "seed*-bert-*", "seed*-proposed-*"),
        ),
        pairwise_table(
            folder,
            f"{faster} with a linear span head beside the pointer {plain_head}",
            "bert lr=0.0002",
            "ablation_shortcut lr=0.0002",
            split=CALIBRATION,
            records=("trials", "seed*-bert-*", "seed*-ablation_shortcut-*"),
        ),
    ]


def _wanted(model: str) -> Wanted:
    settings = f"experiment=ablations data.train_questions=2000 model={model} seed=13,14,15"
    return Wanted(model.replace("/", "_"), f"qa-arch train -m {settings}")


def figures(folder: Path) -> list[Sequence[Path]]:
    return [
        dot_plot(
            folder,
            "models",
            "Ablations: 2,000 training questions, calibration",
            ("forced_f1", "answerable_ap"),
            split=CALIBRATION,
            records="seed*",
        ),
        dot_plot(
            folder,
            "trials",
            "Remedies: 2,000 training questions, calibration",
            ("forced_f1", "f1"),
            split=CALIBRATION,
            records=TRIALS,
        ),
    ]
