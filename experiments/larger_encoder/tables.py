"""The thesis's question on MPNet-base: does the proposed model still find spans better than the plain head?

Filled by: qa-arch train -m experiment=answer encoder=mpnet ...; then qa-arch evaluate --run RUN --final for
each, and qa-arch tables runs/mpnet --publish experiments/larger_encoder/records (see README.md)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qa_arch.results.columns import Table
from qa_arch.results.experiments import Wanted, baseline_table, difference_plot, runs_table

MODELS = ("bert", "proposed", "ablation/together")
NAMES = {
    "bert": "the plain span head of the same encoder",
    "proposed": "proposed: BERT + GloVe + match-LSTM + pointer",
    "ablation_together": "proposed, with all parts of the exploration",
}


def tables(folder: Path) -> list[Table]:
    return [
        runs_table(
            folder,
            "A larger encoder: MPNet-base on the balanced set, dev fold A",
            columns=(
                *("model", "seed", "exact", "f1", "HasAns_f1", "NoAns_f1", "spans_f1", "auroc"),
                *("null_threshold", "parameters", "seconds"),
            ),
            wanted=[_wanted(model) for model in MODELS],
            sort=("model", "seed"),
        ),
        baseline_table(folder, "Tested against the plain span head, dev fold A", "bert", unit="article"),
        baseline_table(
            folder,
            "Spans, against the plain span head: dev fold A, the null never allowed",
            "bert",
            spans=True,
            unit="article",
        ),
    ]


def figures(folder: Path) -> list[Sequence[Path]]:
    title = "MPNet-base: does it beat the plain span head? Dev fold A"
    return [difference_plot(folder, "differences", title, "bert", unit="article", names=NAMES)]


def _wanted(model: str) -> Wanted:
    rates = "encoder=mpnet optim.lr=3e-5 optim.head_lr=1e-3"
    command = f"qa-arch train -m experiment=answer {rates} model={model} seed=13,14"
    return Wanted(model.replace("/", "_"), command)
