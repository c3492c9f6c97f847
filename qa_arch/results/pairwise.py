"""Two systems compared: every measure with interval and tests, by kind of question, question by question."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from qa_arch.metrics.significance import RESAMPLES, Articles, Effect, Unit, effect, holm, mean_sd
from qa_arch.results.columns import Table, number, text
from qa_arch.results.effects import (
    P_VALUES,
    SINGLE_RUN,
    TESTS,
    UNITS,
    delta_columns,
    effect_figures,
    mean_column,
    mean_figures,
    p_columns,
)
from qa_arch.results.question_breakdowns import question_word
from qa_arch.results.question_rows import (
    Bools,
    Floats,
    Questions,
    articles_of,
    load_aligned,
    stacked,
)
from qa_arch.results.systems import System, differing, same_measure
from qa_arch.types.records import CALIBRATION, DEV
from qa_arch.types.text import QuestionSet

SPANS = "HasAns F1, never null"
FITTED = "the null threshold was fitted on these questions and the epoch chosen by them"
"""Of calibration, where a threshold flatters every system alike."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One figure of both systems over the ``questions`` questions it is the mean of; percent."""

    name: str
    questions: int
    a: float
    a_sd: float | None
    b: float
    b_sd: float | None
    effect: Effect
    p_holm: float | None = None
    """``effect.p_bootstrap`` corrected for the number of kinds; None where it is not one of a family."""


@dataclass(frozen=True, slots=True)
class Changed:
    """A question that the two systems answer differently; F1 in 0..1, means over seeds."""

    id: str
    kind: str | None
    answerable: bool
    a: float
    b: float
    spans: tuple[tuple[tuple[int, int] | None, ...], tuple[tuple[int, int] | None, ...]]
    """Of each run of A, then of B: character offsets of the answer given, None for "no answer"."""


@dataclass(frozen=True)
class Comparison:
    """B against A on one split."""

    a: System
    b: System
    split: str
    measures: tuple[Measured, ...]
    kinds: tuple[Measured, ...]
    sorted_by: str
    """What ``kinds`` are: the data's tags, or question words where it has none."""
    outcomes: dict[str, int]
    """Questions by whose answer matches a gold answer exactly in most runs."""
    changed: tuple[Changed, ...]
    unit: Unit = "question"
    """What intervals and tests are over, beside the seeds."""

    def as_dict(self) -> dict[str, Any]:
        def side(group: System) -> dict[str, Any]:
            return {"label": group.label, "runs": [str(folder) for folder, _ in group.runs]}

        return {
            "a": side(self.a),
            "b": side(self.b),
            "settings": differing([self.a.record, self.b.record]),
            "split": self.split,
            "unit": self.unit,
            "measures": [_flat(figure) for figure in self.measures],
            "kinds": [_flat(figure) for figure in self.kinds],
            "sorted_by": self.sorted_by,
            "outcomes": self.outcomes,
            "changed": [asdict(question) for question in self.changed],
        }


def compare(
    a: System,
    b: System,
    *,
    split: str = DEV,
    resamples: int = RESAMPLES,
    seed: int = 0,
    top: int = 20,
    questions: QuestionSet | None = None,
    unit: Unit = "question",
) -> Comparison:
    """B against A; RunError where the two do not compare.

    Where no question is tagged they are sorted by question word: of ``questions``, the set that
    ``split`` is, or as the rows tell it. With ``unit="article"`` measures and kinds whose questions are all
    of the same article are left out.
    """
    same_measure([*a.runs, *b.runs], split)
    rows = load_aligned([*a.runs, *b.runs], split)
    left, right = rows[: len(a.runs)], rows[len(a.runs) :]
    first = rows[0]
    articles = articles_of(first, questions) if unit == "article" else None

    def measured(name: str, key: str, where: Bools) -> Measured:
        x, y = stacked(left, key)[:, where], stacked(right, key)[:, where]
        return _measured(name, x, y, resamples, seed, None if articles is None else articles[where])

    def testable(where: Bools) -> bool:
        return bool(where.any()) and (articles is None or len(np.unique(articles[where])) > 1)

    everything = np.ones(len(first), dtype=bool)
    measures = [measured("EM", "exact", everything), measured("F1", "f1", everything)]
    for name, where in (("HasAns", first.answerable), ("NoAns", ~first.answerable)):
        if testable(where) and not where.all():
            measures += [measured(f"{name} EM", "exact", where), measured(f"{name} F1", "f1", where)]
    spans_apart = testable(first.answerable) and not first.answerable.all()
    if spans_apart and all(run.span_f1 is not None for run in rows):
        measures.append(measured(SPANS, "span_f1", first.answerable))
    sorted_by, names = _kinds(first, questions)
    kinds = [
        measured(kind, "f1", names == kind)
        for kind in np.unique(names).tolist()
        if kind and testable(names == kind)
    ]
    return Comparison(
        a,
        b,
        split,
        tuple(measures),
        tuple(_corrected(kinds)),
        sorted_by,
        _outcomes(left, right),
        tuple(_changed(left, right, top)),
        unit,
    )


def _measured(
    name: str, x: Floats, y: Floats, resamples: int, seed: int, articles: Articles | None
) -> Measured:
    a, a_sd = mean_sd((100 * x.mean(1)).tolist())
    b, b_sd = mean_sd((100 * y.mean(1)).tolist())
    tested = effect(100 * x, 100 * y, resamples=resamples, seed=seed, articles=articles)
    return Measured(name, x.shape[1], a, a_sd, b, b_sd, tested)


def _kinds(rows: Questions, questions: QuestionSet | None) -> tuple[str, npt.NDArray[np.str_]]:
    """By what questions are sorted, and the kind of each, "" for none."""
    if not any(rows.kind):
        words = rows.word if questions is None else [question_word(e.question) for e in questions.examples]
        if words is not None:
            return "question word", np.array(words)
    return "kind of question", np.array([kind or "" for kind in rows.kind])


def _corrected(kinds: Sequence[Measured]) -> list[Measured]:
    corrected = holm([kind.effect.p_bootstrap for kind in kinds])
    return [
        Measured(k.name, k.questions, k.a, k.a_sd, k.b, k.b_sd, k.effect, p)
        for k, p in zip(kinds, corrected, strict=True)
    ]


def _outcomes(left: Sequence[Questions], right: Sequence[Questions]) -> dict[str, int]:
    a, b = (stacked(side, "exact").mean(0) > 0.5 for side in (left, right))
    tests: dict[str, Callable[[], Bools]] = {
        "both right": lambda: a & b,
        "A right, B wrong": lambda: a & ~b,
        "A wrong, B right": lambda: ~a & b,
        "both wrong": lambda: ~a & ~b,
    }
    return {name: int(test().sum()) for name, test in tests.items()}


def _changed(left: Sequence[Questions], right: Sequence[Questions], top: int) -> list[Changed]:
    """The questions whose mean F1 changed most; of equals, those whose null odds moved furthest."""
    first = left[0]
    a, b = stacked(left, "f1").mean(0), stacked(right, "f1").mean(0)
    with np.errstate(invalid="ignore"):  # infinite on both sides: they did not move
        moved = np.nan_to_num(
            np.abs(stacked(right, "null_odds").mean(0) - stacked(left, "null_odds").mean(0))
        )
    order = np.lexsort((np.arange(len(first)), -moved, -np.abs(b - a)))
    return [
        Changed(
            first.ids[q],
            first.kind[q],
            bool(first.answerable[q]),
            float(a[q]),
            float(b[q]),
            (tuple(_given(run, q) for run in left), tuple(_given(run, q) for run in right)),
        )
        for q in order[:top].tolist()
        if a[q] != b[q]
    ]


def _given(rows: Questions, q: int) -> tuple[int, int] | None:
    return None if rows.abstained[q] or rows.start[q] < 0 else (int(rows.start[q]), int(rows.end[q]))


def _flat(figure: Measured) -> dict[str, Any]:
    flat = asdict(figure)
    flat |= flat.pop("effect")
    flat["interval"] = list(figure.effect.interval)
    return flat


def measures_table(result: Comparison, resamples: int = RESAMPLES) -> Table:
    """EM and F1 of all, answerable and unanswerable questions."""
    seeds = f"{_seeds(len(result.a.runs))} of A, {_seeds(len(result.b.runs))} of B"
    over = f"{resamples:,} resamples, intervals of B − A over {UNITS[result.unit]} and seeds"
    notes = [f"{seeds}; {over}", TESTS[result.unit]]
    if 1 in (len(result.a.runs), len(result.b.runs)):
        notes.append(SINGLE_RUN)
    notes.append("; ".join(f"{name}: {count:,}" for name, count in result.outcomes.items()))
    notes += [FITTED] if result.split == CALIBRATION else []
    return _table(f"{result.split}: B against A", result, result.measures, notes)


def settings_table(result: Comparison) -> Table:
    """The settings that the two systems have otherwise; without a row where they differ in nothing."""
    unlike = differing([result.a.record, result.b.record])
    if "model.name" in unlike:
        del unlike["model"]  # the same name again
    rows = [{"name": key, "a": _written(key, a), "b": _written(key, b)} for key, (a, b) in unlike.items()]
    columns = [text("name", "setting"), text("a", "A"), text("b", "B")]
    return Table("Settings that differ", columns, rows)


def _written(setting: str, value: Any) -> str | None:
    """A value as a person reads it, of a class its name; None where there is no such setting."""
    if value is None:
        return None
    return str(value).rpartition(".")[2] if setting.endswith("_target_") else str(value)


def kinds_table(result: Comparison) -> Table:
    """F1 by what questions are sorted by; without a row where nothing sorts them."""
    notes = [f"Holm: p corrected for {len(result.kinds)} kinds"]
    table = _table(f"F1 by {result.sorted_by}", result, result.kinds, notes)
    return replace(table, columns=[*table.columns, *p_columns("p_holm")])


def effects_table(result: Comparison, title: str) -> Table:
    """Both in figure: the measures, then F1 by kind."""
    measures, kinds = measures_table(result), kinds_table(result)
    if not kinds.rows:
        return replace(measures, title=title, columns=kinds.columns)
    notes = [
        f"rows below {result.measures[-1].name}: F1 by {result.sorted_by}",
        *measures.notes,
        *kinds.notes,
    ]
    return replace(kinds, title=title, rows=[*measures.rows, *kinds.rows], notes=notes)


def _table(title: str, result: Comparison, measured: Sequence[Measured], notes: Sequence[str]) -> Table:
    columns = [
        text("name", ""),
        number("questions", "questions", weight=-1),
        mean_column("a", f"A: {result.a.label}"),
        mean_column("b", f"B: {result.b.label}"),
        *delta_columns("B − A"),
        *p_columns(*P_VALUES[result.unit]),
    ]
    return Table(title, columns, [_row(figure) for figure in measured], notes)


def _row(figure: Measured) -> dict[str, Any]:
    return {
        "name": figure.name,
        "questions": figure.questions,
        **mean_figures("a", figure.a, figure.a_sd),
        **mean_figures("b", figure.b, figure.b_sd),
        **effect_figures(figure.effect, figure.p_holm),
    }


def _seeds(count: int) -> str:
    return "1 run" if count == 1 else f"{count} seeds"
