"""What each model costs and where it fails, from the records of another experiment: one row a system."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from qa_arch.errors import RunError
from qa_arch.metrics.error_analysis import Judged
from qa_arch.results.columns import Table, number, text
from qa_arch.results.comparison import comparison
from qa_arch.results.mistakes import kind_name, mistakes
from qa_arch.results.question_rows import load_questions
from qa_arch.results.record import Runs
from qa_arch.results.systems import group_by_system
from qa_arch.types.records import RunRecord

COLUMNS = (
    text("model", "model"),
    number("parameters", "parameters"),
    number("peak_memory_mb", "peak MB"),
    number("epoch_seconds", "seconds an epoch"),
    number("cut", "questions cut"),
    number("extra", "extra windows, %"),
    number("boundary", "boundary errors, %"),
    number("not_answered", "not answered, %"),
    number("undue", "false answers, %"),
    text("worst", "worst kinds (right, %)"),
)
NOTES = (
    "seconds an epoch: training alone; questions cut: longer than the encoder is given, over all splits;"
    " extra windows: those beyond one a question, on the scored set, where passages do not fit",
    "boundary errors: wrong spans that share words with a gold answer, of all answerable questions, as is"
    " not answered; false answers: of all unanswerable ones",
)
WORST, FEWEST = 2, 20
"""Kinds that are named, and questions that a kind must have to be named."""


def drawbacks(runs: Runs, *, split: str, title: str) -> Table:
    """A row for each system of ``runs``, the mean over its seeds; RunError where runs do not compare.

    Figures of single questions are left out where a run has no rows of them.
    """
    notes: list[str] = []
    if runs:
        shown = ["model", "peak_memory_mb", "exact"]
        notes += [*comparison(runs, split=split, columns=shown).notes, *NOTES]
    rows = [{"model": system.label, **_row(system.runs, split)} for system in group_by_system(runs)]
    return Table(title, COLUMNS, rows, notes)


def _row(runs: Runs, split: str) -> dict[str, Any]:
    records = [record for _, record in runs]
    row: dict[str, Any] = {
        "parameters": _mean(record.parameters.total for record in records),
        "peak_memory_mb": _mean(record.peak_memory_mb for record in records),
        "epoch_seconds": _mean(_epoch_seconds(record) for record in records),
        "cut": _mean(_cut(record) for record in records),
        "extra": _mean(_extra(record, split) for record in records),
        "runs": len(runs),
        "status": next((record.status for record in records if record.status != "ok"), "ok"),
    }
    judged = [question for run in runs for question in _judged(run, split)]
    return row | (_failures(judged) if judged else {})


def _failures(judged: Sequence[Judged]) -> dict[str, Any]:
    answerable = [row for row in judged if row.answerable]
    others = [row for row in judged if not row.answerable]
    silent = ("wrong_abstention", "missed_answer", "unanswered")
    return {
        "boundary": _share(row.overlaps for row in answerable),
        "not_answered": _share(row.outcome in silent for row in answerable),
        "undue": _share(row.outcome == "undue_answer" for row in others),
        "worst": _worst(judged),
    }


def _worst(judged: Sequence[Judged]) -> str:
    """The kinds with the smallest shares of right answers; two where rows tell neither tag nor word."""
    tagged = any(row.kind for row in judged)
    kinds: dict[str, list[bool]] = {}
    for row in judged:
        name = kind_name(row) if tagged or row.answerable else "unanswerable"
        kinds.setdefault(name, []).append(row.outcome == "right")
    known = {name: 100 * fmean(right) for name, right in kinds.items() if len(right) >= FEWEST}
    return ", ".join(f"{name} {known[name]:.1f}" for name in sorted(known, key=known.__getitem__)[:WORST])


def _judged(run: tuple[Path, RunRecord], split: str) -> Sequence[Judged]:
    """The questions of a run, of the kind they are tagged with or else of their question word."""
    try:
        rows = load_questions(*run, split)
    except RunError:
        return ()
    judged = mistakes(rows).judged
    if rows.word is None or any(rows.kind):
        return judged
    return [replace(row, kind=word) for row, word in zip(judged, rows.word, strict=True)]


def _epoch_seconds(record: RunRecord) -> float | None:
    return _mean(epoch.train_seconds for epoch in record.epochs)


def _cut(record: RunRecord) -> int | None:
    """Questions of which an end was cut off, over all splits."""
    cut = (facts.truncated_questions for facts in record.data.values())
    known = [count for count in cut if count is not None]
    return sum(known) if known else None


def _extra(record: RunRecord, split: str) -> float | None:
    """Windows beyond one a question, as a share of the questions in percent."""
    facts = record.facts(split)
    return 100 * (facts.windows / facts.questions - 1) if facts.windows and facts.questions else None


def _mean(values: Iterable[float | None]) -> Any:
    """The mean of the known values, the value itself where all are the same; None for none."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return known[0] if len(set(known)) == 1 else fmean(known)


def _share(which: Iterable[bool]) -> float | None:
    flags = list(which)
    return 100 * sum(flags) / len(flags) if flags else None
