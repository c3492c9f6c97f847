"""Section 4.1: cost and failures of the baselines, from the records of other experiments.

Filled by: the runs of experiments/thesis, experiments/real_part and experiments/demo
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt

from qa_arch.errors import RunError
from qa_arch.metrics.abstention import Bools
from qa_arch.records import DEV, Globs, RunRecord, Runs, recorded
from qa_arch.results.columns import runs_table
from qa_arch.results.errors import MISSED, RIGHT, UNANSWERED, WRONG_ABSTENTION, Mistakes, mistakes
from qa_arch.results.experiments import Wanted, missing_rows
from qa_arch.results.systems import group_by_system, load_questions
from qa_arch.results.tables import Table, number, text

BASELINES = ("albert", "roberta", "distilbert", "bert")
DRAWBACKS = (
    text("model", "model"),
    number("parameters", "parameters"),
    number("peak_memory_mb", "peak MiB"),
    number("epoch_seconds", "seconds per epoch"),
    number("cut", "questions cut"),
    number("extra", "extra windows, %"),
    number("boundary", "boundary errors, %"),
    number("not_answered", "not answered, %"),
    number("undue", "false answers, %"),
    text("worst", "worst kinds (right, %)"),
)
_DRAWBACK_NOTES = (
    "seconds per epoch: training only; questions cut: longer than the encoder's limit, over all splits;"
    " extra windows: windows beyond one per question on the scored set, for long passages",
    "boundary errors (wrong spans that share words with a gold answer) and not answered: % of answerable"
    " questions; false answers: % of unanswerable ones",
)
WORST, FEWEST = 2, 20
"""Number of kinds to name, and the minimum number of questions of a named kind."""


def tables(folder: Path) -> list[Table]:
    experiments = folder.parent
    return [
        drawbacks_table(
            experiments / "thesis",
            "Section 4.1: drawbacks of the baselines, SQuAD 2.0 dev",
            records="full",
            wanted=[
                *(Wanted(model, f"qa-arch train model={model} experiment=thesis") for model in BASELINES),
                Wanted(
                    "proposed",
                    "qa-arch train model=proposed experiment=thesis glove.name=840B.300d",
                ),
            ],
        ),
        drawbacks_table(
            experiments / "real_part",
            "The same on an eighth of SQuAD 2.0: MiniLM-L6, three epochs, dev fold A",
            records="v2",
            notes=[
                "the official dev set has no question types, so the worst kinds are question words",
                "seconds per epoch: measured on cores shared unevenly with other work; undisturbed, an epoch"
                " takes 25 minutes of one core (bert) and 30 (proposed)",
            ],
        ),
        drawbacks_table(
            experiments / "demo",
            "The same at demo size, from scratch, on the embedded data, whose questions are tagged",
        ),
    ]


def drawbacks_table(
    experiment: Path,
    title: str,
    *,
    records: Globs = "**",
    wanted: Sequence[Wanted] = (),
    notes: Sequence[str] = (),
) -> Table:
    """Cost and failures of the models of an ``experiment``: one row per system, its mean over seeds.

    ``wanted`` adds rows that are still missing. Per-question figures are omitted if a run has no question
    rows. Raises RunError if runs are not comparable.
    """
    runs = [(experiment / place, record) for place, record in recorded(experiment, records)]
    table_notes: list[str] = []
    if runs:
        columns = ["model", "peak_memory_mb", "exact"]
        table_notes += [*runs_table(runs, split=DEV, columns=columns).notes, *_DRAWBACK_NOTES]
    missing = missing_rows(wanted, runs)
    rows = [{"model": system.label, **_drawbacks(system.runs)} for system in group_by_system(runs)]
    table_notes += [*notes, *(row.note for row in missing)]
    return Table(title, DRAWBACKS, [*rows, *(row.row for row in missing)], table_notes)


def _drawbacks(runs: Runs) -> dict[str, Any]:
    records = [record for _, record in runs]
    row: dict[str, Any] = {
        "parameters": _mean(record.parameters.total for record in records),
        "peak_memory_mb": _mean(record.peak_memory_mb for record in records),
        "epoch_seconds": _mean(_mean(epoch.train_seconds for epoch in record.epochs) for record in records),
        "cut": _mean(_truncated(record) for record in records),
        "extra": _mean(_extra_windows(record) for record in records),
        "runs": len(runs),
        "status": next((record.status for record in records if record.status != "ok"), "ok"),
    }
    judged = [run for folder, record in runs if (run := _judged(folder, record))]
    return row | (_failures(judged) if judged else {})


def _failures(judged: Sequence[Mistakes]) -> dict[str, Any]:
    answerable = np.concatenate([run.rows.answerable for run in judged])
    outcome = np.concatenate([run.outcome for run in judged])
    overlaps = np.concatenate([run.overlaps for run in judged])
    kinds = np.array([kind for run in judged for kind in run.rows.kinds], dtype=object)
    if not any(any(run.rows.kind) for run in judged):
        kinds[~answerable] = "unanswerable"
    no_answer = np.isin(outcome, (WRONG_ABSTENTION, MISSED, UNANSWERED))
    return {
        "boundary": _share(overlaps[answerable]),
        "not_answered": _share(no_answer[answerable]),
        "undue": _share(outcome[~answerable] != RIGHT),
        "worst": _worst(kinds, outcome == RIGHT),
    }


def _worst(kinds: npt.NDArray[np.object_], right: Bools) -> str:
    """Kinds with the smallest share of right answers."""
    groups = {name: right[kinds == name] for name in dict.fromkeys(kinds.tolist())}
    share = {name: 100 * own.mean() for name, own in groups.items() if len(own) >= FEWEST}
    return ", ".join(f"{name} {share[name]:.1f}" for name in sorted(share, key=share.__getitem__)[:WORST])


def _judged(folder: Path, record: RunRecord) -> Mistakes | None:
    """Mistakes of a run; the kind of a question is its tag, or else its question word."""
    try:
        rows = load_questions(folder, record)
    except RunError:
        return None
    return mistakes(rows if rows.word is None or any(rows.kind) else replace(rows, kind=rows.word))


def _truncated(record: RunRecord) -> int | None:
    """Number of truncated questions, over all splits."""
    counts = [n for facts in record.data.values() if (n := facts.truncated_questions) is not None]
    return sum(counts) if counts else None


def _extra_windows(record: RunRecord) -> float | None:
    """Windows beyond one per question, in percent of the questions."""
    facts = record.facts(DEV)
    return 100 * (facts.windows / facts.questions - 1) if facts.windows and facts.questions else None


def _mean(values: Iterable[float | None]) -> Any:
    """Mean of the known values, or their common value; None if there are none."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return known[0] if len(set(known)) == 1 else fmean(known)


def _share(flags: Bools) -> float | None:
    return 100 * int(flags.sum()) / len(flags) if len(flags) else None
