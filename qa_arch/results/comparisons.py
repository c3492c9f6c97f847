"""Systems tested against each other: two of them on every measure and question, or all against a baseline.

Means are over seeds. Intervals and p-values are over questions or articles, and seeds
(``metrics.significance``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from qa_arch.errors import RunError
from qa_arch.metrics.significance import (
    POWER,
    RESAMPLES,
    Effect,
    Interval,
    Unit,
    bootstrap_interval,
    effect,
    holm,
    mean_sd,
)
from qa_arch.records import CALIBRATION, DEV
from qa_arch.results.questions import (
    Bools,
    Floats,
    Questions,
    articles_of,
    load_aligned,
    stacked,
)
from qa_arch.results.systems import System, differing, distinct_seeds, same_measure
from qa_arch.results.tables import Column, Table, number, text
from qa_arch.types.text import QuestionSet, question_word

SPANS = "HasAns F1, never null"
FITTED = "the null threshold was fitted on these questions and the epoch chosen by them"
"""Of calibration, where a threshold flatters every system alike."""
TESTS: Mapping[Unit, str] = {
    "question": (
        "p: bootstrap over questions and seeds; p, these runs: approximate randomisation over questions,"
        " scores averaged over seeds"
    ),
    "article": "p: bootstrap over articles and seeds, Student's t for few of either",
}
"""What the p-values of a table are."""
UNITS: Mapping[Unit, str] = {"question": "questions", "article": "articles"}
SINGLE_RUN = "a system with one run: interval and p are about that run, as nothing tells how its seeds differ"
_HEADINGS = {"exact": "EM", "f1": "F1", "spans_f1": SPANS}
_PLACES = 6
"""Decimals kept: more than anyone reads, fewer than processors that add in another order differ in."""


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
        def side(system: System) -> dict[str, Any]:
            return {"label": system.label, "runs": [str(folder) for folder, _ in system.runs]}

        def flat(figure: Measured) -> dict[str, Any]:
            plain = asdict(figure)
            return plain | plain.pop("effect") | {"interval": list(figure.effect.interval)}

        return {
            "a": side(self.a),
            "b": side(self.b),
            "settings": differing([self.a.record, self.b.record]),
            "split": self.split,
            "unit": self.unit,
            "measures": [flat(figure) for figure in self.measures],
            "kinds": [flat(figure) for figure in self.kinds],
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
        x, y = (stacked(side, key)[:, where] for side in (left, right))
        own = None if articles is None else articles[where]
        tested = effect(100 * x, 100 * y, resamples=resamples, seed=seed, articles=own)
        (a, a_sd), (b, b_sd) = (mean_sd((100 * side.mean(1)).tolist()) for side in (x, y))
        return Measured(name, x.shape[1], a, a_sd, b, b_sd, tested)

    def testable(where: Bools) -> bool:
        return bool(where.any()) and (articles is None or len(np.unique(articles[where])) > 1)

    everything = np.ones(len(first), dtype=bool)
    measures = [measured("EM", "exact", everything), measured("F1", "f1", everything)]
    for name, where in (("HasAns", first.answerable), ("NoAns", ~first.answerable)):
        if testable(where) and not where.all():
            measures += [measured(f"{name} EM", "exact", where), measured(f"{name} F1", "f1", where)]
    has_both = testable(first.answerable) and not first.answerable.all()
    if has_both and all(run.span_f1 is not None for run in rows):
        measures.append(measured(SPANS, "span_f1", first.answerable))
    sorted_by, names = _kinds(first, questions)
    of_kinds = {kind: names == kind for kind in np.unique(names).tolist() if kind}
    kinds = [measured(kind, "f1", where) for kind, where in of_kinds.items() if testable(where)]
    corrected = holm([kind.effect.p_bootstrap for kind in kinds])
    kinds = [replace(kind, p_holm=p) for kind, p in zip(kinds, corrected, strict=True)]
    outcomes, changed = _outcomes(left, right), _changed(left, right, top)
    return Comparison(a, b, split, tuple(measures), tuple(kinds), sorted_by, outcomes, changed, unit)


def _kinds(rows: Questions, questions: QuestionSet | None) -> tuple[str, npt.NDArray[np.str_]]:
    """By what questions are sorted, and the kind of each, "" for none."""
    if not any(rows.kind):
        words = rows.word if questions is None else [question_word(e.question) for e in questions.examples]
        if words is not None:
            return "question word", np.array(words)
    return "kind of question", np.array([kind or "" for kind in rows.kind])


def _outcomes(left: Sequence[Questions], right: Sequence[Questions]) -> dict[str, int]:
    a, b = (stacked(side, "exact").mean(0) > 0.5 for side in (left, right))
    which = {
        "both right": a & b,
        "A right, B wrong": a & ~b,
        "A wrong, B right": ~a & b,
        "both wrong": ~a & ~b,
    }
    return {name: int(where.sum()) for name, where in which.items()}


def _changed(left: Sequence[Questions], right: Sequence[Questions], top: int) -> tuple[Changed, ...]:
    """The questions whose mean F1 changed most; of equals, those whose null odds moved furthest."""
    first = left[0]
    a, b = (stacked(side, "f1").mean(0) for side in (left, right))
    with np.errstate(invalid="ignore"):  # infinite on both sides: they did not move
        odds = (stacked(side, "null_odds").mean(0) for side in (right, left))
        moved = np.nan_to_num(np.abs(np.subtract(*odds)))
    order = np.lexsort((np.arange(len(first)), -moved, -np.abs(b - a)))
    return tuple(
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
    )


def _given(rows: Questions, q: int) -> tuple[int, int] | None:
    return None if rows.abstained[q] or rows.start[q] < 0 else (int(rows.start[q]), int(rows.end[q]))


def measures_table(result: Comparison, resamples: int = RESAMPLES) -> Table:
    """EM and F1 of all, answerable and unanswerable questions."""
    counts = [len(system.runs) for system in (result.a, result.b)]
    seeds = ("1 run" if count == 1 else f"{count} seeds" for count in counts)
    shown = ", ".join(f"{count} of {side}" for count, side in zip(seeds, "AB", strict=True))
    notes = [
        f"{shown}; {resamples:,} resamples, intervals of B − A over {UNITS[result.unit]} and seeds",
        TESTS[result.unit],
        *([SINGLE_RUN] if 1 in counts else []),
        "; ".join(f"{name}: {count:,}" for name, count in result.outcomes.items()),
        *([FITTED] if result.split == CALIBRATION else []),
    ]
    return _table(f"{result.split}: B against A", result, result.measures, notes)


def settings_table(result: Comparison) -> Table:
    """The settings that the two systems have otherwise; without a row where they differ in nothing."""
    unlike = differing([result.a.record, result.b.record])
    if "model.name" in unlike:
        del unlike["model"]  # the same name again

    def written(setting: str, value: Any) -> str | None:
        """Of a class its name; None where there is no such setting."""
        if value is None:
            return None
        return str(value).rpartition(".")[2] if setting.endswith("_target_") else str(value)

    rows = [{"name": key, "a": written(key, a), "b": written(key, b)} for key, (a, b) in unlike.items()]
    columns = [text("name", "setting"), text("a", "A"), text("b", "B")]
    return Table("Settings that differ", columns, rows)


def kinds_table(result: Comparison) -> Table:
    """F1 by what questions are sorted by; without a row where nothing sorts them."""
    notes = [f"Holm: p corrected for {len(result.kinds)} kinds"]
    table = _table(f"F1 by {result.sorted_by}", result, result.kinds, notes)
    return replace(table, columns=[*table.columns, _P["p_holm"]])


def effects_table(result: Comparison, title: str) -> Table:
    """Both in figure: the measures, then F1 by kind."""
    measures, kinds = measures_table(result), kinds_table(result)
    if not kinds.rows:
        return replace(measures, title=title, columns=kinds.columns)
    below = f"rows below {result.measures[-1].name}: F1 by {result.sorted_by}"
    notes = [below, *measures.notes, *kinds.notes]
    return replace(kinds, title=title, rows=[*measures.rows, *kinds.rows], notes=notes)


def against_baseline(
    systems: Sequence[System],
    baseline: System,
    *,
    split: str = DEV,
    spans: bool = False,
    resamples: int = RESAMPLES,
    seed: int = 0,
    unit: Unit = "question",
    paired: bool = False,
    title: str | None = None,
) -> Table:
    """One row a system: EM and F1, mean ± s.d. over seeds with the 95% interval over questions (or articles,
    by ``unit``), and the difference in F1 from the baseline, its p-value corrected for the number of systems
    (Holm 1979).

    With ``spans`` the same of F1 on the answerable questions alone, where "no answer" is never allowed. With
    ``paired`` a run was made of the baseline's run of the same seed and is compared with that one.
    """
    for system in systems:
        distinct_seeds(system)
    same_measure([run for system in systems for run in system.runs], split)
    loaded = iter(load_aligned([run for system in systems for run in system.runs], split))
    rows = {system.label: [next(loaded) for _ in system.runs] for system in systems}
    first = rows[systems[0].label][0]
    where = first.answerable if spans else np.ones(len(first), dtype=bool)
    scores = {label: _scores(runs, where, spans) for label, runs in rows.items()}
    articles = articles_of(first)[where] if unit == "article" else None
    resampling: dict[str, Any] = {"resamples": resamples, "seed": seed, "articles": articles}
    others = [system for system in systems if system.label != baseline.label]
    compared = "spans_f1" if spans else "f1"
    reference = scores[baseline.label][compared]
    effects = {}
    for system in others:
        own = _same_seeds(reference, baseline, system) if paired else reference
        tested = effect(own, scores[system.label][compared], paired=paired, **resampling)
        effects[system.label] = tested
    corrected = dict(zip(effects, holm([tested.p_bootstrap for tested in effects.values()]), strict=True))
    made: list[dict[str, Any]] = []
    for system in systems:
        row: dict[str, Any] = {"model": system.label, "seeds": len(system.runs)}
        for key, of_questions in scores[system.label].items():
            row |= _mean_figures(key, *mean_sd(of_questions.mean(1).tolist()))
            row |= _interval_figures(key, bootstrap_interval(of_questions, **resampling))
        if system.label in effects:
            row |= _effect_figures(effects[system.label], corrected[system.label])
        made.append(row)
    figures = list(scores[baseline.label])
    headings = " and ".join(_HEADINGS[key] for key in figures)
    notes = [
        f"{int(where.sum()):,} questions; ± standard deviation over seeds; intervals of {headings} over"
        f" {UNITS[unit]}, of ΔF1 over {UNITS[unit]} and seeds ({resamples:,} resamples)",
        f"ΔF1 against {baseline.label}{', run by run of the same seed' if paired else ''}; {TESTS[unit]};"
        f" Holm over {len(others)} comparisons",
        *_power([tested.detectable for tested in effects.values()]),
        *([SINGLE_RUN] if any(len(system.runs) == 1 for system in systems) else []),
        *([FITTED] if split == CALIBRATION else []),
    ]
    title = title or f"{split}: every system against {baseline.label}"
    return Table(title, _baseline_columns(figures, unit), made, notes)


def _scores(runs: Sequence[Questions], where: Bools, spans: bool) -> dict[str, Floats]:
    """By figure, ``(R, N)`` each, percent, of the questions ``where``."""
    for run in runs:
        if spans and run.span_f1 is None:
            raise RunError(f"{run.folder}: its rows tell no best spans; score the run again")
    keys = {"spans_f1": "span_f1"} if spans else {"exact": "exact", "f1": "f1"}
    return {key: 100 * stacked(runs, column)[:, where] for key, column in keys.items()}


def _same_seeds(scores: Floats, baseline: System, system: System) -> Floats:
    """The baseline's ``scores`` ``(R, N)`` in the order of the system's seeds."""
    seeds, others = ([record.seed for _, record in side.runs] for side in (baseline, system))
    if strangers := sorted(set(others) - set(seeds)):
        raise RunError(f"{system.label}: no run of {baseline.label} has the seed {strangers[0]}")
    return scores[[seeds.index(seed) for seed in others]]


def _power(detectable: Sequence[float]) -> list[str]:
    if not detectable:
        return []
    low, high = f"{min(detectable):.1f}", f"{max(detectable):.1f}"
    sizes = low if low == high else f"{low} to {high}"
    return [f"a true ΔF1 of {sizes} is detected with {POWER:.0%} power, before Holm"]


def _mean_figures(key: str, mean: float, sd: float | None) -> dict[str, float | None]:
    return {f"{key}_mean": round(mean, _PLACES), f"{key}_sd": None if sd is None else round(sd, _PLACES)}


def _interval_figures(key: str, interval: Interval) -> dict[str, float | None]:
    """The ends of a 95% interval."""
    return {f"{key}_95_{end}": round(value, _PLACES) for end, value in interval._asdict().items()}


def _effect_figures(effect: Effect, p_holm: float | None) -> dict[str, float | None]:
    tests = {"p": effect.p_bootstrap, "p_holm": p_holm, "p_these_runs": effect.p_randomisation}
    return {
        "delta": round(effect.delta, _PLACES),
        **_interval_figures("delta", effect.interval),
        **{name: None if p is None else round(p, _PLACES) for name, p in tests.items()},
    }


def _mean_column(key: str, heading: str, *, weight: int = 0) -> Column:
    """A mean, with its standard deviation over seeds where there are several."""

    def spread(mean: float, sd: float | None) -> str:
        return f"{mean:.2f}" if sd is None else f"{mean:.2f} ± {sd:.2f}"

    return number(key, heading, spread, (f"{key}_mean", f"{key}_sd"), weight=weight)


def _interval_column(key: str, sign: str = "", *, weight: int) -> Column:
    def ends(low: float, high: float) -> str:
        return f"{low:{sign}.2f} .. {high:{sign}.2f}"

    keys = (f"{key}_95_low", f"{key}_95_high")
    return number(f"{key}_interval", "95% interval", ends, keys, weight=weight)


def _delta_columns(heading: str) -> list[Column]:
    """A difference and its interval, which a narrow terminal shows before what they are the difference of."""
    delta = number("delta", heading, lambda delta: f"{delta:+.2f}", weight=2)
    return [delta, _interval_column("delta", "+", weight=2)]


def _p_value(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


_P = {
    "p": number("p", "p", _p_value, weight=1),
    "p_holm": number("p_holm", "p, Holm", _p_value, weight=2),
    "p_these_runs": number("p_these_runs", "p, these runs", _p_value, weight=-1),
}
_P_THESE_RUNS: Mapping[Unit, Sequence[Column]] = {"question": (_P["p_these_runs"],), "article": ()}
"""The p-value of these very runs stands beside the other, never alone."""


def _baseline_columns(figures: Sequence[str], unit: Unit) -> list[Column]:
    columns = [text("model", "model"), number("seeds", "seeds")]
    for key in figures:
        columns += [
            _mean_column(key, _HEADINGS[key], weight=int(key == figures[-1])),
            _interval_column(key, weight=-1),
        ]
    return [*columns, *_delta_columns("ΔF1"), _P["p"], _P["p_holm"], *_P_THESE_RUNS[unit]]


def _table(title: str, result: Comparison, measured: Sequence[Measured], notes: Sequence[str]) -> Table:
    columns = [
        text("name", ""),
        number("questions", "questions", weight=-1),
        _mean_column("a", f"A: {result.a.label}"),
        _mean_column("b", f"B: {result.b.label}"),
        *_delta_columns("B − A"),
        _P["p"],
        *_P_THESE_RUNS[result.unit],
    ]
    rows = [
        {
            "name": figure.name,
            "questions": figure.questions,
            **_mean_figures("a", figure.a, figure.a_sd),
            **_mean_figures("b", figure.b, figure.b_sd),
            **_effect_figures(figure.effect, figure.p_holm),
        }
        for figure in measured
    ]
    return Table(title, columns, rows, notes)
