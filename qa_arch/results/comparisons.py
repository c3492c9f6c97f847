"""Tests between systems: two of them on every measure and kind of question, or all against a baseline.

Means are over seeds. Intervals and p-values are over articles (or questions), seeds and calibration articles
(``metrics.significance``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from qa_arch.config.check import Range, convert
from qa_arch.errors import ConfigError, RunError
from qa_arch.metrics.confidence import Bools, Floats
from qa_arch.metrics.significance import POWER, Effect, Interval, Unit, Variance, holm, in_order, pool, power
from qa_arch.records import CALIBRATION, DEV, Runs
from qa_arch.results.questions import Questions, stacked
from qa_arch.results.samples import AT_THRESHOLD, MEASURES, MeasureName, Samples, samples_of
from qa_arch.results.systems import System, differing, group_by_system, require_distinct_seeds
from qa_arch.results.tables import Column, Table, number, text, two_decimals
from qa_arch.types.text import QuestionSet, question_word

FITTED = "null threshold and epoch were chosen on these same questions"
"""Note on the calibration split, where the threshold is equally optimistic for every system."""
FEW_UNITS = 6
"""Articles below which Student's t alone multiplies an interval by more than 1.3."""
SINGLE_RUN = "one run of a system: interval and p are for that run, seed variance unknown"
_DETECTABLE = f"minimum detectable effect on {{}}, {POWER:.0%} power, before correction"
_PLACES = 6
"""Decimals kept: more than anyone reads, few enough to hide the rounding differences between processors."""
DIFFERENCES = (0.5, 1.0, 2.0)
_SOURCES = ("units", "interaction", "seeds", "calibration", "total")
_COMPONENTS = (
    "s.e.: standard error of the difference by source; that of articles and that of seeds both contain their"
    " interaction, which is subtracted once"
)
_POOLED: tuple[MeasureName, ...] = ("f1", "spans", "auroc")
_SHOWN = 60
"""Maximum characters of a text in a table."""


def finished(runs: Runs, split: str) -> tuple[Runs, list[str]]:
    """The finished ``runs``, and a note that names the others."""
    waiting = [
        (folder, record)
        for folder, record in runs
        if record.status != "ok" and record.compared_point(split) is None
    ]
    if len(waiting) == len(runs):  # nothing is left to compare: the error says what is missing
        return runs, []
    named = ", ".join(f"{folder} ({record.status})" for folder, record in waiting)
    notes = [f"left out, no scores of {split} yet: {named}"] if waiting else []
    return [run for run in runs if run not in waiting], notes


def comparable(runs: Runs, split: str) -> tuple[list[System], list[str]]:
    """The systems of the finished ``runs``, and the note on the others."""
    runs, notes = finished(runs, split)
    return group_by_system(runs), notes


def compare(
    a: System,
    b: System,
    *,
    split: str = DEV,
    questions: QuestionSet | None = None,
    unit: Unit | None = None,
    title: str | None = None,
) -> Table:
    """Compare B with A: every measure over all, answerable and unanswerable questions, then F1 by kind.

    Without tagged kinds, questions are grouped by question word, from ``questions`` (the scored set) or the
    rows. Tests are over articles if several are known and ``unit`` does not say otherwise; groups of
    questions from a single article are left out. p is corrected for the number of kinds. RunError if the two
    are not comparable.
    """
    for system in (a, b):
        require_distinct_seeds(system, split)
    samples = samples_of([replace(a, label="A"), replace(b, label="B")], split, unit, questions)
    first = samples.first

    def testable_parts(parts: Mapping[str, Bools]) -> dict[str, Bools]:
        return {name: where for name, where in parts.items() if samples.testable(where) and not where.all()}

    halves = testable_parts({"HasAns ": first.answerable, "NoAns ": ~first.answerable})
    overall: list[tuple[str, MeasureName, Bools]] = [
        (f"{prefix}{MEASURES[measure]}", measure, where)
        for prefix, where in {"": np.ones(len(first), dtype=bool), **halves}.items()
        for measure in AT_THRESHOLD
    ]
    if "HasAns " in halves:
        overall += [
            (MEASURES[measure], measure, samples.where(measure))
            for measure in MEASURES
            if measure not in AT_THRESHOLD
            and all(sample.scores(measure) is not None for sample in samples.systems.values())
        ]
    grouping, names = _kinds(first, questions)
    by_kind = testable_parts({kind: names == kind for kind in np.unique(names).tolist() if kind})
    kinds: list[tuple[str, MeasureName, Bools]] = [(kind, "f1", where) for kind, where in by_kind.items()]
    effects = [samples.effect("A", "B", measure, where=where) for _, measure, where in (*overall, *kinds)]
    corrected = [*[None] * len(overall), *holm([effect.p for effect in effects[len(overall) :]])]
    rows = []
    for (name, measure, where), effect, p in zip([*overall, *kinds], effects, corrected, strict=True):
        row: dict[str, Any] = {"name": name, "questions": int(where.sum())}
        for side in "ab":
            row |= mean_figures(side, samples.scores(side.upper(), measure, where))
        rows.append(row | effect_figures(effect, p))
    columns = [
        text("name", ""),
        number("questions", "questions", weight=-1),
        mean_column("a", f"A: {a.label}"),
        mean_column("b", f"B: {b.label}"),
        *delta_columns("B − A"),
        P_VALUE,
        P_HOLM,
    ]
    counts = [len(system.runs) for system in (a, b)]
    seeds = ("1 run" if count == 1 else f"{count} seeds" for count in counts)
    rules = a.record.facts(split).rules
    notes = [
        *([f"rows below {overall[-1][0]}: F1 by {grouping}"] if kinds else []),
        ", ".join(f"{count} of {side}" for count, side in zip(seeds, "AB", strict=True)) + rules,
        _test_note(samples, {"B": effects[0]}, "where one is used"),
        *([SINGLE_RUN] if 1 in counts else []),
        _outcome_note(samples),
        *([FITTED] if split == CALIBRATION else []),
        *([f"Holm: p corrected over {len(kinds)} kinds of questions"] if len(kinds) > 1 else []),
    ]
    return Table(title or f"{split}: B against A", columns, rows, notes)


def _test_note(samples: Samples, effects: Mapping[str, Effect], threshold: str | None = "") -> str:
    """Note on the sampling units of intervals and p; ``threshold`` says where a null threshold is involved,
    None: nowhere."""
    variances = {label: effect.variance for label, effect in effects.items()}
    number = max(variance.units for variance in variances.values())
    units = f"{number:,} {samples.unit}s"
    counted = max(variance.calibration_units for variance in variances.values())
    fixed = [label for label, variance in variances.items() if not variance.calibration_units]
    null = f", the null threshold{f' ({threshold})' if threshold else ''}"
    drawn = f"{null} over {counted} calibration articles" if counted else ""
    involved = threshold is not None and not samples.first.answerable.all()
    if fixed and involved and samples.split != CALIBRATION:
        ignored = "taken as fixed, its uncertainty ignored"
        drawn += f" (for {', '.join(fixed)}: {ignored})" if counted else f"{null} {ignored}"
    few = f"; with only {units} intervals are very wide, whatever the number of questions: score more"
    return f"intervals of differences and p: over {units} and seeds, crossed{drawn}; Student's t" + (
        few if number < FEW_UNITS else ""
    )


def _kinds(rows: Questions, questions: QuestionSet | None) -> tuple[str, npt.NDArray[np.str_]]:
    """Name of the grouping, and the kind of each question, "" for none."""
    if not any(rows.kind):
        words = rows.word if questions is None else [question_word(e.question) for e in questions.examples]
        if words is not None:
            return "question word", np.array(words)
    return "kind of question", np.array([kind or "" for kind in rows.kind])


def _outcome_note(samples: Samples) -> str:
    """Note on how many questions each side answers exactly right in most of its runs."""
    a, b = (stacked(samples.systems[side].rows, "exact").mean(0) > 0.5 for side in "AB")
    counts = {
        "both right": a & b,
        "A right, B wrong": a & ~b,
        "A wrong, B right": ~a & b,
        "both wrong": ~a & ~b,
    }
    return "; ".join(f"{name}: {int(where.sum()):,}" for name, where in counts.items())


def settings_table(a: System, b: System) -> Table:
    """Table of the settings in which the two systems differ; empty if there are none, or one is adopted."""
    unlike = {} if a.record.adopted or b.record.adopted else differing([a.record, b.record])
    if "model.name" in unlike:
        del unlike["model"]  # the same name again

    def formatted(setting: str, value: Any) -> str | None:
        """Value as text, a class by its name; None if the setting is missing."""
        if value is None:
            return None
        return str(value).rpartition(".")[2] if setting.endswith("_target_") else str(value)

    rows = [{"name": key, "a": formatted(key, x), "b": formatted(key, y)} for key, (x, y) in unlike.items()]
    columns = [text("name", "setting"), text("a", "A"), text("b", "B")]
    return Table("Settings that differ", columns, rows)


def changed_table(
    a: System, b: System, *, split: str = DEV, top: int = 20, questions: QuestionSet | None = None
) -> Table:
    """Table of the ``top`` questions whose mean F1 changed most; ties by the change of their null odds.

    ``questions``, the scored set, adds their texts and answers.
    """
    samples = samples_of([replace(a, label="A"), replace(b, label="B")], split, None, questions)
    rows_of = {side: samples.systems[side.upper()].rows for side in "ab"}
    first = samples.first
    f1 = {side: stacked(rows, "f1").mean(0).round(_PLACES) for side, rows in rows_of.items()}
    with np.errstate(invalid="ignore"):  # infinite on both sides: no change
        odds = (stacked(rows, "null_odds").mean(0) for rows in rows_of.values())
        moved = np.nan_to_num(np.abs(np.subtract(*odds)))
    order = np.lexsort((np.arange(len(first)), -moved, -np.abs(f1["b"] - f1["a"])))
    examples = {example.id: example for example in questions.examples} if questions else {}
    table_rows = []
    for q in [q for q in order[:top].tolist() if f1["a"][q] != f1["b"][q]]:
        kind = first.kind[q] or ("answerable" if first.answerable[q] else "unanswerable")
        row: dict[str, Any] = {"id": first.ids[q], "kind": kind}
        row |= {side: float(values[q]) for side, values in f1.items()}
        if example := examples.get(first.ids[q]):
            golds = dict.fromkeys(answer.text for answer in example.answers)
            row |= {"question": example.question, "gold": " | ".join(golds) or "no answer"}
            for side, rows in rows_of.items():
                texts = dict.fromkeys(_answer_text(run, q, example.context) for run in rows)
                row[f"{side}_answers"] = " | ".join(texts)
        table_rows.append(row)
    scores = {side: number(side, f"F1 {side.upper()}", two_decimals) for side in "ab"}
    columns = [text("id", "question"), text("kind", "kind"), *scores.values()]
    if examples:
        columns = [
            _truncated("question", "question"),
            text("kind", "kind", weight=-1),
            _truncated("gold", "gold", weight=-1),
        ]
        for side in "ab":
            columns += [scores[side], _truncated(f"{side}_answers", side.upper(), weight=1)]
    notes = [] if examples else ["texts come with --data FILE, the file that the runs were scored on"]
    return Table(f"The {len(table_rows)} questions that changed most", columns, table_rows, notes)


def _answer_text(rows: Questions, q: int, context: str) -> str:
    if rows.abstained[q] or rows.start[q] < 0:
        return "no answer" if rows.abstained[q] else "(not in the passage)"
    return context[rows.start[q] : rows.end[q]]


def _truncated(key: str, heading: str, weight: int = 0) -> Column:
    """Text column truncated to ``_SHOWN`` characters for people."""

    def truncate(value: str) -> str:
        plain = " ".join(value.split())
        return plain if len(plain) <= _SHOWN else f"{plain[: _SHOWN - 1]}…"

    return Column(key, heading, left=True, format=truncate, weight=weight)


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
    components: bool = False,
    title: str | None = None,
) -> Table:
    """Table with one row per system: mean ± s.d. over seeds with the 95% interval over articles (or
    questions, by ``unit``), and the difference from the baseline in ``measure`` with its p-value, corrected
    for the number of systems (Holm 1979).

    With ``paired``, each run was derived from the baseline's run of the same seed and is compared with it.
    With ``order`` (labels), systems are tested in this order, fixed in advance, each only after those before
    it, and all others after them by Holm. ``equivalence`` is the difference within which a system counts as
    equal to the baseline, above 0; its p-value gets a column. ``components`` adds the standard error of each
    difference by source, and its degrees of freedom.
    """
    equivalence = convert(Annotated[float, Range(0, above=True)] | None, equivalence, "equivalence")
    measure = convert(MeasureName, measure, "measure")
    for system in systems:
        require_distinct_seeds(system, split)
    samples = samples_of(systems, split, unit)
    others = [system for system in systems if system.label != baseline.label]
    if not others:
        raise RunError(f"{baseline.label}: no other system is finished, so nothing to compare; add runs")
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
    rows: list[dict[str, Any]] = []
    for system in systems:
        row: dict[str, Any] = {"model": system.label, "seeds": len(system.runs)}
        for key in shown:
            row |= mean_figures(key, samples.scores(system.label, key))
            row |= interval_figures(key, samples.interval(system.label, key))
        if effect := effects.get(system.label):
            row |= effect_figures(effect, corrected[system.label])
            if equivalence is not None:
                row["p_equivalent"] = round(effect.p_equivalent(equivalence), _PLACES)
            if components:
                row |= _standard_errors(effect.variance)
        rows.append(row)
    where, name, rules = samples.where(measure), MEASURES[measure], baseline.record.facts(split).rules
    detectable = sorted(effect.detectable for effect in effects.values())
    family = f"Holm over {len(others)} comparisons" if len(others) > 1 else "no correction (1 comparison)"
    sizes = " to ".join(dict.fromkeys(f"{size:.1f}" for size in (*detectable[:1], *detectable[-1:])))
    notes = [
        f"{int(where.sum()):,} questions{rules}; ± standard deviation over seeds; intervals of"
        f" {' and '.join(MEASURES[key] for key in shown)} over {samples.unit}s, runs fixed",
        f"Δ: {name} against {baseline.label}{', run by run of the same seed' if paired else ''};"
        f" {_test_note(samples, effects, '' if measure in AT_THRESHOLD else None)}",
        f"tested in this order: {', '.join(order)}" if order else family,
        f"{_DETECTABLE.format(name)}: {sizes}",
        *([SINGLE_RUN] if any(len(system.runs) == 1 for system in systems) else []),
        *([FITTED] if split == CALIBRATION else []),
        *([_COMPONENTS] if components else []),
    ]
    columns = [text("model", "model"), number("seeds", "seeds")]
    for key in shown:
        columns += [
            mean_column(key, MEASURES[key], weight=int(key == shown[-1])),
            interval_column(key, weight=-1),
        ]
    columns += [*delta_columns(f"Δ {name}" if name != "F1" else "ΔF1"), P_VALUE]
    columns.append(replace(P_HOLM, heading="p, in order") if order else P_HOLM)
    if equivalence is not None:
        columns.append(number("p_equivalent", f"p, within ±{equivalence:g}", _p_value))
    if components:
        headings = (f"{samples.unit}s", f"seeds × {samples.unit}s", "seeds", "calibration", "total")
        columns += [
            *(
                number(f"se_{key}", f"s.e. {head}", two_decimals)
                for key, head in zip(_SOURCES, headings, strict=True)
            ),
            number("freedom", "d.f.", lambda freedom: f"{freedom:.1f}"),
        ]
    return Table(title or f"{split}: every system against {baseline.label}", columns, rows, notes)


def _standard_errors(variance: Variance) -> dict[str, float]:
    """Standard errors of a difference by source, and its degrees of freedom."""
    parts = (
        variance.unit_variance,
        variance.interaction,
        variance.seed_variance,
        variance.calibration_variance,
        variance.total,
    )
    errors = {f"se_{key}": round(part**0.5, _PLACES) for key, part in zip(_SOURCES, parts, strict=True)}
    return {**errors, "freedom": round(variance.freedom, _PLACES)}


def pooled_table(
    pairs: Sequence[tuple[System, System]], *, split: str = DEV, unit: Unit | None = None
) -> Table:
    """Table of B - A in each experiment, a pair of systems on a set of its own, and over all of them.

    The last row of a measure is the fixed effect with the test of its heterogeneity (``significance.pool``).
    RunError if two experiments share questions.
    """
    loaded = [samples_of([replace(a, label="A"), replace(b, label="B")], split, unit) for a, b in pairs]
    seen: dict[str, str] = {}
    names = [f"{b.label} - {a.label}" for a, b in pairs]
    for index, samples in enumerate(loaded):
        name = names[index] = f"{index + 1}: {names[index]}"
        if shared := seen.keys() & set(samples.first.ids):
            raise RunError(
                f"--pool: experiments {seen[min(shared)]} and {name} share {len(shared)} questions; only"
                " experiments on disjoint articles can be pooled"
            )
        seen |= dict.fromkeys(samples.first.ids, name)
    rows: list[dict[str, Any]] = []
    for measure in _POOLED:
        effects = [samples.effect("A", "B", measure) for samples in loaded]
        common, p_heterogeneity = pool(effects)
        for name, effect in zip(names, effects, strict=True):
            row = {"measure": MEASURES[measure], "experiment": name, "units": effect.variance.units}
            row["weight"] = round(100 * common.variance.total / effect.variance.total, _PLACES)
            rows.append(row | effect_figures(effect, None))
        row = {"measure": MEASURES[measure], "experiment": "pooled", "weight": 100.0}
        row["units"] = sum(effect.variance.units for effect in effects)
        rows.append(row | effect_figures(common, None) | {"p_heterogeneity": round(p_heterogeneity, _PLACES)})
    columns = [
        *(text("measure", "measure"), text("experiment", "experiment")),
        number("units", f"{loaded[0].unit}s"),
        number("weight", "weight", lambda share: f"{share:.0f}%"),
        *(*delta_columns("Δ"), P_VALUE, number("p_heterogeneity", "p, heterogeneity", _p_value)),
    ]
    notes = [
        "pooled: fixed effect, each experiment weighted by the inverse of its variance; p, heterogeneity: of"
        " the experiments having one difference (Cochran's Q); not corrected for the number of measures",
        "calibration articles that experiments share are counted as independent",
    ]
    return Table(f"{split}: differences pooled over {len(pairs)} experiments", columns, rows, notes)


def power_table(
    systems: Sequence[System],
    baseline: System,
    *,
    split: str = DEV,
    measure: MeasureName = "f1",
    runs: Sequence[int],
    units: Sequence[int] = (),
    calibration: int | None = None,
) -> Table:
    """Table of the power, in percent at true ``DIFFERENCES``, and the minimum detectable effect of
    experiments with other numbers of seeds (``runs``), articles (``units``; default: as many as here, and
    twice as many) and calibration articles, assuming the variances of ``systems`` against ``baseline``.

    RunError without a system other than the baseline, without a system of several runs, or if a seed occurs
    twice; ConfigError for ``calibration`` if the runs or the measure have no threshold that varies.
    """
    for system in systems:
        require_distinct_seeds(system, split)
    samples = samples_of(systems, split)
    others = [system.label for system in systems if system.label != baseline.label]
    effects = {label: samples.effect(baseline.label, label, measure) for label in others}
    if not any(effect.variance.seeds for effect in effects.values()):
        raise RunError("power needs a baseline and another system, one of them with several seeds")
    counted = max(effect.variance.calibration_units for effect in effects.values())
    if calibration and not counted:
        raise ConfigError(
            f"--calibration-articles: no variance over calibration articles is known for {MEASURES[measure]}"
            " of these runs; leave it out"
        )
    rows: list[dict[str, Any]] = []
    for label, effect in effects.items():
        observed = effect.variance
        for count, seeds in product(units or (observed.units, 2 * observed.units), runs):
            planned = observed.planned(units=count, runs=seeds, calibration_units=calibration)
            row = {"model": label, "units": count, "seeds": seeds}
            row["detectable"] = round(Effect(0.0, planned).detectable, _PLACES)
            row |= {f"at_{size:g}": round(100 * power(planned, size), _PLACES) for size in DIFFERENCES}
            rows.append(row)
    columns = [
        text("model", "model"),
        number("units", f"{samples.unit}s"),
        number("seeds", "seeds of each"),
        number("detectable", "minimum detectable", two_decimals, weight=1),
        *(
            number(f"at_{size:g}", f"power at {size:g}", lambda share: f"{share:.0f}%")
            for size in DIFFERENCES
        ),
    ]
    counts = [f"{len(s.runs)} run{'s' * (len(s.runs) > 1)} of {s.label}" for s in systems]
    single = [system.label for system in systems if len(system.runs) == 1]
    notes = [
        f"true differences from {baseline.label} in {MEASURES[measure]}, found at p < 0.05, two-sided, before"
        " correction",
        f"variances as those of {', '.join(counts)} on {split}",
        *([f"one run of {', '.join(single)}: seed variance unknown, taken as zero"] if single else []),
        *([f"the null threshold fitted on {calibration or counted} calibration articles"] if counted else []),
    ]
    return Table("Power of planned experiments", columns, rows, notes)


def _corrected(effects: Mapping[str, Effect], order: Sequence[str]) -> dict[str, float]:
    if unknown := [label for label in order if label not in effects]:
        raise ConfigError(f"order: '{unknown[0]}' is not one of the systems compared ({', '.join(effects)})")
    rest = [label for label in effects if label not in order]
    families = [*([label] for label in order), rest]
    adjusted = in_order([[effects[label].p for label in family] for family in families])
    return {
        label: p
        for family, own in zip(families, adjusted, strict=True)
        for label, p in zip(family, own, strict=True)
    }


def _same_seeds(baseline: System, system: System) -> list[int]:
    """Index of the baseline's run with the same seed, for each run of the system."""
    seeds, others = ([record.seed for _, record in side.runs] for side in (baseline, system))
    if unmatched := sorted(set(others) - set(seeds)):
        raise RunError(f"{system.label}: no run of {baseline.label} has the seed {unmatched[0]}")
    return [seeds.index(seed) for seed in others]


def rounded(value: float | None) -> float | None:
    """Round a value to the decimals that tables keep."""
    return None if value is None else round(float(value), _PLACES)


def mean_figures(key: str, scores: Floats) -> dict[str, float | None]:
    """Mean and standard deviation over the runs of scores ``(R, N)``."""
    means = scores.mean(1)
    sd = means.std(ddof=1) if len(means) > 1 else None
    return {f"{key}_mean": rounded(means.mean()), f"{key}_sd": rounded(sd)}


def interval_figures(key: str, interval: Interval) -> dict[str, float]:
    """Ends of a 95% interval."""
    return {f"{key}_95_{end}": round(value, _PLACES) for end, value in interval._asdict().items()}


def effect_figures(effect: Effect, p_holm: float | None) -> dict[str, float | None]:
    return {
        "delta": round(effect.delta, _PLACES),
        **interval_figures("delta", effect.interval),
        "p": round(effect.p, _PLACES),
        "p_holm": rounded(p_holm),
    }


def mean_column(key: str, heading: str, *, weight: int = 0) -> Column:
    """Column of a mean, with its standard deviation over seeds if there are several."""

    def spread(mean: float, sd: float | None) -> str:
        return f"{mean:.2f}" if sd is None else f"{mean:.2f} ± {sd:.2f}"

    return number(key, heading, spread, (f"{key}_mean", f"{key}_sd"), weight=weight)


def interval_column(key: str, sign: str = "", *, weight: int) -> Column:
    def bounds(low: float, high: float) -> str:
        return f"{low:{sign}.2f} .. {high:{sign}.2f}"

    keys = (f"{key}_95_low", f"{key}_95_high")
    return number(f"{key}_interval", "95% interval", bounds, keys, weight=weight)


def delta_columns(heading: str) -> list[Column]:
    """Columns of a difference and its interval, which a narrow terminal keeps longer than the two means."""
    delta = number("delta", heading, lambda delta: f"{delta:+.2f}", weight=2)
    return [delta, interval_column("delta", "+", weight=2)]


def _p_value(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


P_VALUE = number("p", "p", _p_value, weight=1)
P_HOLM = number("p_holm", "p, Holm", _p_value, weight=2)
