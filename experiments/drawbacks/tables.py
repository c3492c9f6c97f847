"""Section 4.1: cost and failures of the baselines, from the records of other experiments.

Filled by: the runs of experiments/thesis, experiments/real_part and experiments/demo
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from qa_arch.errors import RunError
from qa_arch.metrics.error_analysis import Judged
from qa_arch.records import DEV, Globs, RunRecord, Runs, recorded
from qa_arch.results.columns import comparison
from qa_arch.results.experiments import Wanted, missing_rows
from qa_arch.results.questions import kind_name, load_questions, mistakes
from qa_arch.results.systems import group_by_system
from qa_arch.results.tables import Table, number, text

BASELINES = ("albert", "roberta", "distilbert", "bert")
DRAWBACKS = (
    text("model", "model"),
    number("parameters", "parameters"),
    number("peak_memory_mb", "peak MB"),
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
        table_notes += [*comparison(runs, split=DEV, columns=columns).notes, *_DRAWBACK_NOTES]
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
    judged = [question for folder, record in runs for question in _judged(folder, record)]
    return row | (_failures(judged) if judged else {})


def _failures(judged: Sequence[Judged]) -> dict[str, Any]:
    answerable = [row for row in judged if row.answerable]
    no_answer = ("wrong_abstention", "missed_answer", "unanswered")
    return {
        "boundary": _share(row.overlaps for row in answerable),
        "not_answered": _share(row.outcome in no_answer for row in answerable),
        "undue": _share(row.outcome == "undue_answer" for row in judged if not row.answerable),
        "worst": _worst(judged),
    }


def _worst(judged: Sequence[Judged]) -> str:
    """Kinds with the smallest share of right answers; without tags, unanswerable questions are one kind."""
    tagged = any(row.kind for row in judged)
    kinds: dict[str, list[bool]] = {}
    for row in judged:
        name = kind_name(row) if tagged or row.answerable else "unanswerable"
        kinds.setdefault(name, []).append(row.outcome == "right")
    share = {name: 100 * fmean(right) for name, right in kinds.items() if len(right) >= FEWEST}
    return ", ".join(f"{name} {share[name]:.1f}" for name in sorted(share, key=share.__getitem__)[:WORST])


def _judged(folder: Path, record: RunRecord) -> Sequence[Judged]:
    """Questions of a run; their kind is their tag, or else their question word."""
    try:
        rows = load_questions(folder, record)
    except RunError:
        return ()
    judged = mistakes(rows).judged
    if rows.word is None or any(rows.kind):
        return judged
    return [replace(row, kind=word) for row, word in zip(judged, rows.word, strict=True)]


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


def _share(flags: Iterable[bool]) -> float | None:
    flags = list(flags)
    return 100 * sum(flags) / len(flags) if flags else None
