"""An eighth of SQuAD 2.0 with a small pre-trained encoder.

Filled by: qa-arch train --models bert,proposed experiment=real_part logger=none, and the same with
experiment=real_part_v1; then qa-arch evaluate --run RUN --final for each (see README.md)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qa_arch.results.experiments import Published, learning_curves, records_table
from qa_arch.results.tables import Table

SHARED = (
    "on cores that both runs shared with other work, unequally; undisturbed, an epoch takes 25 minutes of one"
    " core (bert) and 30 (proposed)"
)


def tables(folder: Path) -> list[Table]:
    return [
        records_table(
            folder,
            "MiniLM-L6 on an eighth of SQuAD 2.0, dev fold A",
            records="v2",
            columns=(
                *("model", "exact", "f1", "HasAns_f1", "NoAns_f1", "forced_f1", "threshold_0_f1"),
                *("oracle_f1", "null_threshold", "parameters", "seconds"),
            ),
            published=[
                Published("MiniLM-L6", {"f1": 75.6}, "all of train, all of dev, best threshold on dev itself")
            ],
            notes=[
                "training is 14.7% unanswerable, calibration 41.6%, this set 52.1%; read the figures at"
                " threshold 0 with that",
                "F1 oracle is at the threshold that fits this set best, so it is no result",
                f"seconds: {SHARED}",
            ],
        ),
        records_table(
            folder,
            "The gate: answerable F1 (forced answer) must pass 60 on calibration",
            split="calibration",
            records="v2",
            columns=(
                "model",
                "forced_f1",
                "exact",
                "f1",
                "HasAns_f1",
                "NoAns_f1",
                "threshold_0_f1",
                "null_threshold",
            ),
            notes=["EM and F1 are optimistic, as the threshold is fitted on this set; the gate uses none"],
        ),
        records_table(
            folder,
            "SQuAD 1.1: MiniLM-L6 on 10,045 training questions, the official dev set",
            records="v1",
            columns=("model", "exact", "f1", "parameters", "seconds"),
            notes=["every question has an answer, so nothing is abstained from"],
        ),
        records_table(
            folder,
            "The comparison of chapter 5 on this part: the baseline against the proposed model",
            records="v2",
            columns=(
                *("model", "exact", "f1", "HasAns_f1", "NoAns_f1", "recall", "seconds", "parameters"),
                *("examples_per_second", "peak_memory_mb"),
            ),
            notes=[
                "recall is the mean over questions of the token recall at the best gold answer",
                f"seconds, windows/s: {SHARED}",
            ],
        ),
    ]


def figures(folder: Path) -> list[Sequence[Path]]:
    losses = ("train_loss", "calibration_loss")
    return [learning_curves(folder, "losses", "Losses by epoch", losses, records="v2")]
