"""Systems tested against each other: two of them on every measure and question, or all against a baseline.

Means are over seeds. Intervals and p-values are over articles (or questions), seeds and calibration articles
(``metrics.significance``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from qa_arch.errors import ConfigError, RunError
from qa_arch.metrics.significance import POWER, Effect, Interval, Unit, holm, in_order, mean_sd, power
from qa_arch.records import CALIBRATION, DEV
from qa_arch.results.questions import Bools, Questions, stacked
from qa_arch.results.samples import AT_THRESHOLD, MEASURES, UNITS, MeasureName, Samples, samples_of
from qa_arch.results.systems import System, differing, distinct_seeds
from qa_arch.results.tables import Column, Table, number, text, two_decimals
from qa_arch.types.text import QuestionSet, question_word

FITTED = "the null threshold was fitted on these questions and the epoch chosen by them"
"""Of calibration, where a threshold flatters every system alike."""
SINGLE_RUN = "a system with one run: interval and p are about that run, as nothing tells how its seeds differ"
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
    """``effect.p`` corrected for the number of kinds; None where it is not one of a family."""


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
    unit: Unit
    """What intervals and tests are over, beside the seeds."""
    tests: str
    """What they are, in words."""

    def as_dict(self) -> dict[str, Any]:
        def side(system: System) -> dict[str, Any]:
            return {"label": system.label, "runs": [str(folder) for folder, _ in system.runs]}

        def flat(figure: Measured) -> dict[str, Any]:
            tested = figure.effect
            figures = {key: getattr(tested, key) for key in ("delta", "error", "p", "detectable")}
            plain = asdict(figure) | figures | {"interval": list(tested.interval)}
            del plain["effect"]
            return plain | {"variance": asdict(tested.variance)}

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
    top: int = 20,
    questions: QuestionSet | None = None,
    unit: Unit | None = None,
) -> Comparison:
    """B against A; RunError where the two do not compare.

    Where no question is tagged they are sorted by question word: of ``questions``, the set that
    ``split`` is, or as the rows tell it. Tests are over articles where these or the rows tell of several, if
    ``unit`` does not decide it; measures and kinds whose questions are all of one of them are left out.
    """
    samples = samples_of([replace(a, label="A"), replace(b, label="B")], split, unit, questions)
    left, right = (samples.systems[label].rows for label in "AB")
    first = samples.first

    def measured(name: str, measure: MeasureName, where: Bools) -> Measured:
        (a, a_sd), (b, b_sd) = (
            mean_sd(samples.scores(label, measure, where).mean(1).tolist()) for label in "AB"
        )
        tested = samples.effect("A", "B", measure, where=where)
        return Measured(name, int(where.sum()), a, a_sd, b, b_sd, tested)

    everything = np.ones(len(first), dtype=bool)
    measures = [measured(MEASURES[measure], measure, everything) for measure in AT_THRESHOLD]
    for name, where in (("HasAns", first.answerable), ("NoAns", ~first.answerable)):
        if samples.testable(where) and not where.all():
            measures += [measured(f"{name} {MEASURES[key]}", key, where) for key in AT_THRESHOLD]
    if samples.testable(first.answerable) and not first.answerable.all():
        for key in ("spans", "auroc", "aurc"):
            if all(sample.scores(key) is not None for sample in samples.systems.values()):
                measures.append(measured(MEASURES[key], key, samples.where(key)))
    sorted_by, names = _kinds(first, questions)
    of_kinds = {kind: names == kind for kind in np.unique(names).tolist() if kind}
    kinds = [measured(kind, "f1", where) for kind, where in of_kinds.items() if samples.testable(where)]
    corrected = holm([kind.effect.p for kind in kinds])
    kinds = [replace(kind, p_holm=p) for kind, p in zip(kinds, corrected, strict=True)]
    outcomes, changed = _outcomes(left, right), _changed(left, right, top)
    tests = _tests(samples, "AB", measures[0].effect, "where one is used")
    return Comparison(
        a, b, split, tuple(measures), tuple(kinds), sorted_by, outcomes, changed, samples.unit, tests
    )


def _tests(samples: Samples, labels: Sequence[str], tested: Effect | None, threshold: str = "") -> str:
    """What intervals of differences and p are over; ``threshold`` says where a null threshold has a part."""
    units = f"{tested.variance.units:,} {UNITS[samples.unit]}" if tested else UNITS[samples.unit]
    counted = samples.calibration_articles(labels)
    where = f" ({threshold})" if threshold else ""
    drawn = f", the null threshold{where} over {counted} calibration articles" if counted else ""
    return f"intervals of differences and p: over {units} and seeds, crossed{drawn}; Student's t"


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


def measures_table(result: Comparison) -> Table:
    """EM and F1 of all, answerable and unanswerable questions, and what needs no null threshold."""
    counts = [len(system.runs) for system in (result.a, result.b)]
    seeds = ("1 run" if count == 1 else f"{count} seeds" for count in counts)
    notes = [
        ", ".join(f"{count} of {side}" for count, side in zip(seeds, "AB", strict=True)),
        result.tests,
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
    return replace(table, columns=[*table.columns, _P_HOLM])


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
    measure: MeasureName = "f1",
    unit: Unit | None = None,
    paired: bool = False,
    order: Sequence[str] = (),
    equivalence: float | None = None,
    title: str | None = None,
) -> Table:
    """One row a system: its figures, mean ± s.d. over seeds with the 95% interval over articles (or
    questions, by ``unit``), and the difference from the baseline in ``measure`` with its p-value, corrected
    for the number of systems (Holm 1979).

    With ``paired`` a run was made of the baseline's run of the same seed and is compared with that one. With
    ``order`` (labels) the systems are tested in this order, fixed beforehand, each only after those before
    it, and those it does not name by Holm after all of these. ``equivalence`` is the difference within which
    a system counts as equal to the baseline; its p-value gets a column.
    """
    for system in systems:
        distinct_seeds(system)
    samples = samples_of(systems, split, unit)
    others = [system for system in systems if system.label != baseline.label]
    effects = {
        system.label: samples.effect(
            baseline.label,
            system.label,
            measure,
            pairs=_same_seeds(baseline, system) if paired else None,
        )
        for system in others
    }
    corrected = _corrected(effects, order)
    shown = AT_THRESHOLD if measure in AT_THRESHOLD else (measure,)
    made: list[dict[str, Any]] = []
    for system in systems:
        row: dict[str, Any] = {"model": system.label, "seeds": len(system.runs)}
        for key in shown:
            row |= _mean_figures(key, *mean_sd(samples.scores(system.label, key).mean(1).tolist()))
            row |= _interval_figures(key, samples.interval(system.label, key))
        if tested := effects.get(system.label):
            row |= _effect_figures(tested, corrected[system.label])
            if equivalence is not None:
                row["p_equivalent"] = round(tested.p_equivalent(equivalence), _PLACES)
        made.append(row)
    where, name = samples.where(measure), MEASURES[measure]
    any_effect = next(iter(effects.values()), None)
    notes = [
        f"{int(where.sum()):,} questions; ± standard deviation over seeds; intervals of"
        f" {' and '.join(MEASURES[key] for key in shown)} over {UNITS[samples.unit]}, the runs as given",
        f"Δ: {name} against {baseline.label}{', run by run of the same seed' if paired else ''};"
        f" {_tests(samples, list(samples.systems) if measure in AT_THRESHOLD else [], any_effect)}",
        f"tested in this order: {', '.join(order)}" if order else f"Holm over {len(others)} comparisons",
        *_power([tested.detectable for tested in effects.values()], name),
        *([SINGLE_RUN] if any(len(system.runs) == 1 for system in systems) else []),
        *([FITTED] if split == CALIBRATION else []),
    ]
    title = title or f"{split}: every system against {baseline.label}"
    return Table(title, _baseline_columns(shown, name, equivalence, bool(order)), made, notes)


def power_table(
    systems: Sequence[System],
    baseline: System,
    *,
    split: str = DEV,
    measure: MeasureName = "f1",
    runs: Sequence[int],
    units: Sequence[int] = (),
    calibration: int | None = None,
    differences: Sequence[float],
) -> Table:
    """What experiments with other numbers of seeds (``runs``), articles (``units``; default: as many as here,
    and twice as many) and calibration articles would detect, if their variances were those of ``systems``
    against ``baseline``: power at true ``differences``, percent, and the minimum detectable effect.

    RunError where no other system than the baseline, or no system with several runs, is there.
    """
    samples = samples_of(systems, split)
    others = [system.label for system in systems if system.label != baseline.label]
    effects = {label: samples.effect(baseline.label, label, measure) for label in others}
    if not any(tested.variance.seeds for tested in effects.values()):
        raise RunError("power needs a baseline and another system of several seeds, to see how they differ")
    rows: list[dict[str, Any]] = []
    for label, tested in effects.items():
        there = tested.variance
        for count, seeds in product(units or (there.units, 2 * there.units), runs):
            planned = there.planned(units=count, runs=seeds, calibration_units=calibration)
            row = {"model": label, "units": count, "seeds": seeds}
            row["detectable"] = round(Effect(0.0, planned).detectable, _PLACES)
            chances = {f"at_{size:g}": 100 * power(planned, size) for size in differences}
            rows.append(row | {key: round(chance, _PLACES) for key, chance in chances.items()})
    columns = [
        text("model", "model"),
        number("units", UNITS[samples.unit]),
        number("seeds", "seeds of each"),
        number("detectable", "minimum detectable", two_decimals, weight=1),
        *(
            number(f"at_{size:g}", f"power at {size:g}", lambda share: f"{share:.0f}%")
            for size in differences
        ),
    ]
    counted = max(tested.variance.calibration_units for tested in effects.values())
    notes = [
        f"true differences from {baseline.label} in {MEASURES[measure]}, found at p < 0.05, two-sided, before"
        " correction",
        f"variances as those of {', '.join(f'{len(s.runs)} runs of {s.label}' for s in systems)} on {split}",
        *([f"the null threshold fitted on {calibration or counted} calibration articles"] if counted else []),
    ]
    return Table("Power of planned experiments", columns, rows, notes)


def _corrected(effects: Mapping[str, Effect], order: Sequence[str]) -> dict[str, float]:
    if unknown := [label for label in order if label not in effects]:
        raise ConfigError(f"order: '{unknown[0]}' is none of the systems compared ({', '.join(effects)})")
    rest = [label for label in effects if label not in order]
    families = [*([label] for label in order), rest]
    adjusted = in_order([[effects[label].p for label in family] for family in families])
    return {
        label: p
        for family, own in zip(families, adjusted, strict=True)
        for label, p in zip(family, own, strict=True)
    }


def _same_seeds(baseline: System, system: System) -> list[int]:
    """The baseline's run of each of the system's seeds."""
    seeds, others = ([record.seed for _, record in side.runs] for side in (baseline, system))
    if strangers := sorted(set(others) - set(seeds)):
        raise RunError(f"{system.label}: no run of {baseline.label} has the seed {strangers[0]}")
    return [seeds.index(seed) for seed in others]


def _power(detectable: Sequence[float], name: str) -> list[str]:
    if not detectable:
        return []
    low, high = f"{min(detectable):.1f}", f"{max(detectable):.1f}"
    sizes = low if low == high else f"{low} to {high}"
    return [f"minimum detectable effect on {name}, {POWER:.0%} power, before correction: {sizes}"]


def _mean_figures(key: str, mean: float, sd: float | None) -> dict[str, float | None]:
    return {f"{key}_mean": round(mean, _PLACES), f"{key}_sd": None if sd is None else round(sd, _PLACES)}


def _interval_figures(key: str, interval: Interval) -> dict[str, float | None]:
    """The ends of a 95% interval."""
    return {f"{key}_95_{end}": round(value, _PLACES) for end, value in interval._asdict().items()}


def _effect_figures(effect: Effect, p_holm: float | None) -> dict[str, float | None]:
    tests = {"p": effect.p, "p_holm": p_holm}
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


_P = number("p", "p", _p_value, weight=1)
_P_HOLM = number("p_holm", "p, Holm", _p_value, weight=2)


def _baseline_columns(
    shown: Sequence[MeasureName], name: str, equivalence: float | None, ordered: bool
) -> list[Column]:
    columns = [text("model", "model"), number("seeds", "seeds")]
    for key in shown:
        columns += [
            _mean_column(key, MEASURES[key], weight=int(key == shown[-1])),
            _interval_column(key, weight=-1),
        ]
    corrected = replace(_P_HOLM, heading="p, in order") if ordered else _P_HOLM
    equal = [] if equivalence is None else [number("p_equivalent", f"p, within ±{equivalence:g}", _p_value)]
    return [*columns, *_delta_columns(f"Δ {name}" if name != "F1" else "ΔF1"), _P, corrected, *equal]


def _table(title: str, result: Comparison, measured: Sequence[Measured], notes: Sequence[str]) -> Table:
    columns = [
        text("name", ""),
        number("questions", "questions", weight=-1),
        _mean_column("a", f"A: {result.a.label}"),
        _mean_column("b", f"B: {result.b.label}"),
        *_delta_columns("B − A"),
        _P,
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
