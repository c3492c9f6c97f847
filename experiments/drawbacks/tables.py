"""Section 4.1: what the baselines cost and where they fail, from the records of other experiments.

Filled by: the runs of experiments/thesis, experiments/real_part and experiments/demo
"""

from __future__ import annotations

from pathlib import Path

from qa_arch.results.experiments import Wanted, drawbacks_table
from qa_arch.results.tables import Table

BASELINES = ("albert", "roberta", "distilbert", "bert")


def tables(folder: Path) -> list[Table]:
    experiments = folder.parent
    return [
        drawbacks_table(
            experiments / "thesis",
            "Section 4.1: drawbacks of the baselines, SQuAD 2.0 dev",
            wanted=[
                *(Wanted(model, f"qa-arch train model={model} experiment=thesis") for model in BASELINES),
                Wanted(
                    "proposed",
                    "qa-arch train model=proposed experiment=thesis glove.path=glove.840B.300d.txt",
                ),
            ],
        ),
        drawbacks_table(
            experiments / "real_part",
            "The same on an eighth of SQuAD 2.0: MiniLM-L6, three epochs, dev fold A",
            records="v2",
            notes=[
                "the official dev set tags no kinds of questions, so the worst are question words",
                "seconds an epoch: on cores that both runs shared with other work, unequally; undisturbed, an"
                " epoch takes 25 minutes of one core (bert) and 30 (proposed)",
            ],
        ),
        drawbacks_table(
            experiments / "demo",
            "The same at demo size, from scratch, on the embedded data, whose questions are tagged",
        ),
    ]
