"""Chapter 5: the baselines against the proposed model on SQuAD 2.0.

Filled by: the commands of the rows below, then
qa-arch tables runs/thesis --publish experiments/thesis/records/full
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qa_arch.results.experiments import Published, Wanted, learning_curves, records_table
from qa_arch.results.tables import Table

FULL, REDUCED = "full", "reduced"
"""Folders of records: the thesis's encoders on all of SQuAD 2.0, and MiniLM on a part of it."""
MODELS = ("albert", "roberta", "distilbert", "bert", "proposed")
CURVES = ("calibration_exact", "calibration_f1", "train_loss", "calibration_loss")
SCORES = ("model", "batch", "exact", "f1", "HasAns_f1", "NoAns_f1", "recall", "null_threshold")
COLUMNS = (*SCORES, "parameters", "seconds", "examples_per_second", "peak_memory_mb")
SMALL = (
    "qa-arch train experiment=real_part name=thesis data=balanced data.calibration=null"
    " data.hold_out_share=0.2 data.train_questions=5000 trainer.epochs=10 trainer.select=forced_auc"
    " calibration.prior=0.5"
)
UNSTATED = "threshold and evaluator as published, not stated here"


def tables(folder: Path) -> list[Table]:
    return [
        records_table(
            folder,
            "Chapter 5: baselines against the proposed model, SQuAD 2.0 dev",
            columns=COLUMNS,
            records=FULL,
            published=[
                Published(
                    "BERT-base",
                    {"exact": 73.7, "f1": 77.9},
                    "all of train, all of dev; another evaluator gives the same weights 75.7 / 78.6",
                ),
                Published(
                    "ALBERT-base-v2", {"exact": 79.3, "f1": 82.1}, f"all of train, all of dev; {UNSTATED}"
                ),
                Published(
                    "RoBERTa-base", {"exact": 79.9, "f1": 83.0}, f"all of train, all of dev; {UNSTATED}"
                ),
                Published(
                    "DistilBERT",
                    {"exact": 64.9, "f1": 68.2},
                    f"all of train, a 6,078-question half of dev; {UNSTATED}",
                ),
            ],
            wanted=[row for model in MODELS for row in _wanted(model)],
            notes=[
                "recall is the mean over questions of the token recall at the best gold answer",
                "8 and 6 are the thesis's batch sizes",
            ],
        ),
        records_table(
            folder,
            "Chapter 5 at reduced size: MiniLM, 5,000 questions, dev fold A",
            columns=(*SCORES, "forced_f1", "auroc", "parameters", "peak_memory_mb"),
            records=REDUCED,
            wanted=[
                Wanted(model, f"{SMALL} model={model} trainer.batch_size={batch}", batch=batch)
                for model, batch in (("bert", 8), ("proposed", 8), ("bert", 6))
            ],
            notes=[
                "one seed; the epoch with the best `forced_auc` on the held-out articles",
                "no times: the runs shared two cores with other work",
            ],
        ),
    ]


def _wanted(model: str) -> list[Wanted]:
    """Both batch sizes of the thesis; 8 is the experiment's default."""
    vectors = " glove.name=840B.300d" if model == "proposed" else ""
    command = f"qa-arch train model={model} experiment=thesis{vectors}"
    return [Wanted(model, command, batch=8), Wanted(model, f"{command} trainer.global_batch=6", batch=6)]


def figures(folder: Path) -> list[Sequence[Path]]:
    """One figure a model, as the thesis's Figures 5.1 to 5.3."""
    return [
        learning_curves(folder, f"{prefix}{model}", title, CURVES, records=records, model=model)
        for model in MODELS
        for records, prefix, title in (
            (FULL, "", f"{model} on SQuAD 2.0 by epoch"),
            (REDUCED, "reduced_", f"{model} on 5,000 questions by epoch"),
        )
    ]
