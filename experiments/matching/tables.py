"""Does the matching layer explain the difference in the demo, and what does it cost? Three seeds.

Filled by: qa-arch train -m experiment=demo data.train_questions=0 name=matching seed=13,14,15 model=...; then
qa-arch tables runs/matching --publish experiments/matching/records (see README.md)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qa_arch.results.experiments import Wanted, baseline_table, dot_plot, records_table
from qa_arch.results.tables import Table

BASELINE = "bert epochs=1"
PARTS = ("ablation/no_overlap", "ablation/match", "ablation/pointer")
MODELS = ("bert", "albert", "roberta", "distilbert", "proposed", *PARTS)
TRAIN = "qa-arch train -m experiment=demo data.train_questions=0 name=matching seed=13,14,15"


def tables(folder: Path) -> list[Table]:
    return [
        baseline_table(folder, "Against BERT for one epoch, three seeds, dev of the embedded data", BASELINE),
        records_table(
            folder,
            "Every run: the embedded data, dev",
            columns=("model", "seed", "exact", "f1", "HasAns_f1", "NoAns_f1", "parameters", "seconds"),
            wanted=[Wanted(model.replace("/", "_"), f"{TRAIN} model={model}") for model in MODELS],
            sort=("model", "seed"),
        ),
    ]


def figures(folder: Path) -> list[Sequence[Path]]:
    title = "Models of demo size on the embedded data, three seeds, dev"
    return [dot_plot(folder, "seeds", title, ("exact", "f1", "HasAns_f1", "NoAns_f1"))]
