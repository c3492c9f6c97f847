"""The thesis's question, with five seeds: does the proposed model beat the plain span head?

Filled by: qa-arch train -m experiment=answer seed=13,14,15,16,17 model=...; then qa-arch evaluate --run RUN
--final for each, and qa-arch tables runs/answer --publish experiments/answer/records (see README.md)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from qa_arch.results.experiments import Wanted, baseline_table, difference_plot, pairwise_table, records_table
from qa_arch.results.tables import Table

MODELS = ("bert", "ablation/plain_verifier", "ablation/letter", "proposed", "ablation/together")
COLUMNS = (
    *("model", "seed", "exact", "f1", "HasAns_f1", "NoAns_f1", "forced_f1", "auroc"),
    *("null_threshold", "parameters", "seconds"),
)
NAMES = {
    "bert": "the plain span head of the same encoder",
    "ablation_plain_verifier": "plain span head with a verifier",
    "ablation_letter": "section 3.3 to the letter, no match-LSTM",
    "proposed": "proposed: BERT + GloVe + match-LSTM + pointer",
    "ablation_together": "proposed, with all parts of the exploration",
}


def tables(folder: Path) -> list[Table]:
    return [
        records_table(
            folder,
            "The answer: MiniLM-L6 on the balanced set, dev fold A",
            columns=COLUMNS,
            wanted=[_wanted(model) for model in MODELS],
            sort=("model", "seed"),
        ),
        baseline_table(folder, "Tested against the plain span head, dev fold A", "bert"),
        baseline_table(
            folder,
            "Answerable F1 (forced answer), against the plain span head: dev fold A",
            "bert",
            measure="forced_f1",
        ),
        pairwise_table(
            folder,
            "All parts together against the plain head with the same verifier, dev fold A",
            "ablation_plain_verifier",
            "ablation_together",
        ),
        *_same_test(folder / "joined", "More data, 20,900 training questions"),
        *_same_test(folder / "mpnet", "A larger encoder, all-mpnet-base-v2"),
    ]


def _same_test(folder: Path, what: str) -> list[Table]:
    """Runs and both tests from separate records, for further.md and larger_encoder.md.

    Neither training sets nor encoders are compared with each other.
    """
    tested = partial(baseline_table, folder, baseline="bert")
    return [
        records_table(folder, f"{what}: dev fold A", columns=COLUMNS, sort=("model", "seed")),
        tested(title=f"{what}: tested against the plain span head, dev fold A"),
        tested(
            title=f"{what}: answerable F1 (forced answer) against the plain span head, dev fold A",
            measure="forced_f1",
        ),
    ]


def figures(folder: Path) -> list[Sequence[Path]]:
    title = "Does it beat the plain span head? Dev fold A, 10,638 training questions"
    return [difference_plot(folder, "differences", title, "bert", names=NAMES)]


def _wanted(model: str) -> Wanted:
    settings = f"experiment=answer model={model} seed=13,14,15,16,17"
    return Wanted(model.replace("/", "_"), f"qa-arch train -m {settings}")
