"""The tables of ``qa-arch compare`` and ``qa-arch power``, chosen from the rows of ``results.effects``.

Two systems on every measure and kind of question, all systems against a baseline, differences pooled over
experiments, and the power of planned ones. Also the means over seeds and the expected best score of tuning,
which ``qa-arch tables`` shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from qa_arch.config.check import Range, convert
from qa_arch.errors import ConfigError, RunError
from qa_arch.metrics.abstention import Bools
from qa_arch.metrics.significance import POWER, Effect, Unit, Variance, pool, power
from qa_arch.records import CALIBRATION, DEV, Measure, RunRecord, Runs
from qa_arch.results.columns import is_score
from qa_arch.results.effects import (
    AT_THRESHOLD,
    HOLM,
    MEASURES,
    P_HOLM,
    P_VALUE,
    PLACES,
    Difference,
    MeasureName,
    Missing,
    Samples,
    corrected,
    delta_columns,
    effects,
    interval_column,
    interval_figures,
    mean_column,
    mean_figures,
    missing_notes,
    p_value,
    samples_of,
    values_of_all,
)
from qa_arch.results.systems import (
    Questions,
    System,
    differing,
    group_by_system,
    repeated,
    require_one_measure,
    stacked,
)
from qa_arch.results.tables import Column, Table, number, text, two_decimals
from qa_arch.terminal import counted
from qa_arch.types import QuestionSet, question_word

FEW_UNITS = 6
"""Articles below which Student's t alone multiplies an interval by more than 1.3."""
_DETECTABLE = f"minimum detectable effect on {{}}, {POWER:.0%} power, before correction"
DIFFERENCES = (0.5, 1.0, 2.0)
_SOURCES = {
    "units": ("{unit}s", "unit_variance"),
    "interaction": ("seeds × {unit}s", "interaction"),
    "seeds": ("seeds", "seed_variance"),
    "calibration": ("calibration", "calibration_variance"),
    "total": ("total", "total"),
}
"""Heading and attribute (``significance.Variance``) of the standard error of a difference, by source."""
_COMPONENTS = (
    "s.e.: standard error of the difference by source; that of articles and that of seeds both contain their"
    " interaction, which is subtracted once"
)
_POOLED: tuple[MeasureName, ...] = ("f1", "forced_f1", "auroc")
OF_A_RUN = ("model", "seed", "status", "run")
"""Columns of runs that a system has in another form, or not at all."""
_SHOWN = 60
"""Maximum characters of a text in a table."""
Part = tuple[str, MeasureName, Bools]
"""Name of a row, its measure, and the questions that it is over."""


def finished(runs: Runs, split: str) -> tuple[Runs, list[str]]:
    """The finished and scored ``runs``, and a note that names the others."""
    waiting = [
        (folder, record)
        for folder, record in runs
        if record.compared_point(split) is None and (record.status != "ok" or not record.scores)
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


def mean_row(rows: Sequence[Mapping[str, Any]], keys: Iterable[str], missing: Missing) -> dict[str, Any]:
    """Values of a system from rows of its runs: scores as mean and s.d., costs as means, texts joined; what
    only some of the runs have is left empty, and noted in ``missing``."""
    row: dict[str, Any] = {}
    for key in keys:
        values = {str(own.get("run")): own.get(key) for own in rows}
        known = [value for value in values.values() if value is not None]
        if known and isinstance(known[0], str):
            row[key] = ", ".join(dict.fromkeys(known))
        elif not (known := values_of_all(key, values, missing)):
            continue
        elif is_score(key):
            row |= mean_figures(key, np.array(known, dtype=float)[:, None])  # (R, 1)
        else:
            row[key] = float(np.mean(known)) if len(set(known)) > 1 else known[0]  # equal counts stay whole
    return row


def means_table(table: Table, systems: Sequence[System]) -> Table:
    """A table of runs with a row per system, in this order, below the heuristics; scores are means over its
    seeds with their standard deviation.

    Notes name the runs that are left out, those that repeat a seed or a member and those without scores of a
    system that has others, and those that lack what others have.
    """
    own, split = {row["run"]: row for row in table.rows if "run" in row}, table.rows[-1]["split"]
    keys = [key for key in dict.fromkeys(chain(*table.rows)) if key not in OF_A_RUN]
    missing: Missing = {}
    heuristics = [row for row in table.rows if "run" not in row]
    rows = [{"model": row["model"], **mean_row([row], keys, missing)} for row in heuristics]
    notes = [*table.notes, "± standard deviation over seeds"]
    for system in systems:
        runs, unscored = finished(system.runs, split)
        copies = {folder: (first, part.split()[0]) for folder, first, part in repeated(system, split)}
        notes += [
            *unscored,
            *(f"left out, as {first} has the same {part}: {it}" for it, (first, part) in copies.items()),
        ]
        shown = [own[str(folder)] for folder, _ in runs if folder not in copies]
        states = [row["status"] for row in shown]
        status = "ok" if "ok" in states else states[0]
        means = mean_row(shown, keys, missing)
        rows.append({"model": system.label, "seeds": len(shown), "status": status, **means})
    notes += missing_notes(missing, {column.key: column.heading for column in table.columns})
    columns = [text("model", "model"), number("seeds", "seeds")]
    columns += [_mean_of(column) for column in table.columns if column.key not in OF_A_RUN]
    return replace(table, columns=columns, rows=rows, notes=notes)


def _mean_of(column: Column) -> Column:
    """The column of runs as one of systems."""
    if column.left or not is_score(column.key):
        return column
    mean = mean_column(column.key, column.heading, weight=column.weight)
    return replace(mean, says_status=column.says_status)


def pair_table(
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
    samples = samples_of([replace(a, label="A"), replace(b, label="B")], split, unit, questions)
    overall = _overall(samples)
    grouping, names = _kinds(samples.first, questions)
    by_kind = _testable(samples, {kind: names == kind for kind in np.unique(names).tolist() if kind})
    kinds: list[Part] = [(kind, "f1", where) for kind, where in by_kind.items()]
    tested = [
        effects(samples, "A", measure, None, where=where)[0] for _, measure, where in (*overall, *kinds)
    ]
    # The kinds are one family of tests; p of the measures above them is not corrected.
    tested[len(overall) :] = corrected(tested[len(overall) :])
    rows = []
    for (name, measure, where), difference in zip([*overall, *kinds], tested, strict=True):
        row: dict[str, Any] = {"name": name, "questions": int(where.sum())}
        for side in "ab":
            row |= mean_figures(side, samples.scores(side.upper(), measure, where))
        rows.append(row | difference.figures)
    columns = [
        text("name", ""),
        number("questions", "questions", weight=-1),
        mean_column("a", f"A: {a.label}"),
        mean_column("b", f"B: {b.label}"),
        *delta_columns("B − A"),
        P_VALUE,
        P_HOLM,
    ]
    notes = [
        *([f"rows below {overall[-1][0]}: F1 by {grouping}"] if kinds else []),
        _seeds_note(samples),
        _test_note(samples, tested[:1], "where one is used"),
        _outcome_note(samples),
        *samples.cautions,
        *([f"Holm: p corrected over {len(kinds)} kinds of questions"] if len(kinds) > 1 else []),
    ]
    return Table(title or f"{split}: B against A", columns, rows, notes)


def _testable(samples: Samples, parts: Mapping[str, Bools]) -> dict[str, Bools]:
    # A part that is the whole set would repeat the row over all questions.
    return {name: where for name, where in parts.items() if samples.testable(where) and not where.all()}


def _overall(samples: Samples) -> list[Part]:
    """Every measure over all, answerable and unanswerable questions, and those that need both kinds."""
    answerable = samples.first.answerable
    halves = _testable(samples, {"HasAns ": answerable, "NoAns ": ~answerable})
    parts: list[Part] = [
        (f"{prefix}{MEASURES[measure]}", measure, where)
        for prefix, where in {"": np.ones(len(answerable), dtype=bool), **halves}.items()
        for measure in AT_THRESHOLD
    ]
    if "HasAns " in halves:
        parts += [
            (MEASURES[measure], measure, samples.where(measure))
            for measure in MEASURES
            if measure not in AT_THRESHOLD
            and all(sample.scores(measure) is not None for sample in samples.systems.values())
        ]
    return parts


def _seeds_note(samples: Samples) -> str:
    seeds = (f"{counted(len(own.rows), 'seed')} of {side}" for side, own in samples.systems.items())
    return ", ".join(seeds) + samples.rules


def _test_note(samples: Samples, rows: Sequence[Difference], threshold: str | None = "") -> str:
    """Note on the sampling units of intervals and p; ``threshold`` says where a null threshold is involved,
    None: nowhere."""
    variances = {row.name: row.effect.variance for row in rows}
    sampled = max(variance.units for variance in variances.values())
    units = f"{sampled:,} {samples.unit}s"
    fitted = max(variance.calibration_units for variance in variances.values())
    fixed = [label for label, variance in variances.items() if not variance.calibration_units]
    null = f", the null threshold{f' ({threshold})' if threshold else ''}"
    drawn = f"{null} over {fitted} calibration articles" if fitted else ""
    involved = threshold is not None and not samples.first.answerable.all()
    if fixed and involved and samples.split != CALIBRATION:
        ignored = "taken as fixed, its uncertainty ignored"
        drawn += f" (for {', '.join(fixed)}: {ignored})" if fitted else f"{null} {ignored}"
    few = f"; with only {units} intervals are very wide, whatever the number of questions: score more"
    return f"intervals of differences and p: over {units} and seeds, crossed{drawn}; Student's t" + (
        few if sampled < FEW_UNITS else ""
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
    # Rounded, as means that differ in the last bits are no change.
    f1 = {side: 100 * stacked(rows, "f1").mean(0).round(PLACES) for side, rows in rows_of.items()}
    with np.errstate(invalid="ignore"):  # infinite on both sides: no change
        odds = (stacked(rows, "null_odds").mean(0) for rows in rows_of.values())
        moved = np.nan_to_num(np.abs(np.subtract(*odds)))
    order = np.lexsort((np.arange(len(first)), -moved, -np.abs(f1["b"] - f1["a"])))  # the last key first
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


def effects_table(
    samples: Samples,
    baseline: str | None,
    measure: MeasureName = "f1",
    *,
    order: Sequence[str] = HOLM,
    paired: bool = False,
    equivalence: float | None = None,
    components: bool = False,
    title: str | None = None,
) -> Table:
    """Table with one row per system: mean ± s.d. over seeds with the 95% interval over articles (or
    questions), and its difference from ``baseline`` in ``measure`` with the corrected p-value (``effects``).
    Without a baseline, nothing is tested.

    ``equivalence`` is the difference within which a system counts as equal to the baseline, above 0; its
    p-value gets a column. ``components`` adds the standard error of each difference by source, and its
    degrees of freedom.
    """
    equivalence = convert(Annotated[float, Range(0, above=True)] | None, equivalence, "equivalence")
    if baseline is not None and len(samples.systems) == 1:
        raise RunError(f"{baseline}: no other system is finished, so nothing to compare; add runs")
    differences = [] if baseline is None else effects(samples, baseline, measure, order, paired=paired)
    shown = AT_THRESHOLD if measure in AT_THRESHOLD else (measure,)
    tested = {difference.name: difference for difference in differences}
    rows: list[dict[str, Any]] = []
    for label, sample in samples.systems.items():
        rows.append(row := {"model": label, "seeds": len(sample.rows)})
        for key in shown:
            row |= mean_figures(key, samples.scores(label, key))
            row |= interval_figures(key, samples.interval(label, key))
        if (difference := tested.get(label)) is None:
            continue
        row |= difference.figures
        if equivalence is not None:
            row["p_equivalent"] = round(difference.effect.p_equivalent(equivalence), PLACES)
        if components:
            row |= _standard_errors(difference.effect.variance)
    name = MEASURES[measure]
    columns = [text("model", "model"), number("seeds", "seeds")]
    for key in shown:
        columns += [
            mean_column(key, MEASURES[key], weight=int(key == shown[-1])),
            interval_column(key, weight=-1),
        ]
    if differences:
        columns += [*delta_columns(f"Δ {name}" if name != "F1" else "ΔF1"), P_VALUE]
        columns.append(replace(P_HOLM, heading="p, in order") if order else P_HOLM)
    if equivalence is not None:
        columns.append(number("p_equivalent", f"p, within ±{equivalence:g}", p_value))
    if components:
        columns += _component_columns(samples.unit)
    notes = [
        f"{int(samples.where(measure).sum()):,} questions{samples.rules}; ± standard deviation over seeds;"
        f" intervals of {' and '.join(MEASURES[key] for key in shown)} over {samples.unit}s, runs fixed",
        *(_family_notes(samples, baseline, differences, order, paired) if baseline else []),
        *samples.cautions,
        *([_COMPONENTS] if components else []),
    ]
    return Table(title or f"{samples.split}: every system against {baseline}", columns, rows, notes)


def _component_columns(unit: Unit) -> list[Column]:
    """Columns of ``_standard_errors``."""
    heads = {source: heading.format(unit=unit) for source, (heading, _) in _SOURCES.items()}
    errors = [number(f"se_{source}", f"s.e. {head}", two_decimals) for source, head in heads.items()]
    return [*errors, number("freedom", "d.f.", lambda freedom: f"{freedom:.1f}")]


def _standard_errors(variance: Variance) -> dict[str, float]:
    """Standard errors of a difference by source, and its degrees of freedom."""
    variances = {source: getattr(variance, name) for source, (_, name) in _SOURCES.items()}
    errors = {f"se_{source}": round(value**0.5, PLACES) for source, value in variances.items()}
    return {**errors, "freedom": round(variance.freedom, PLACES)}


def _family_notes(
    samples: Samples, baseline: str, tested: Sequence[Difference], order: Sequence[str], paired: bool
) -> list[str]:
    """Notes on the difference, the sampling units, the correction and the minimum detectable effect."""
    measure = tested[0].measure
    name, at_threshold = MEASURES[measure], measure in AT_THRESHOLD
    detectable = sorted(row.effect.detectable for row in tested)
    sizes = " to ".join(dict.fromkeys(f"{size:.1f}" for size in (detectable[0], detectable[-1])))
    family = f"Holm over {len(tested)} comparisons" if len(tested) > 1 else "no correction (1 comparison)"
    return [
        f"Δ: {name} against {baseline}{', run by run of the same seed' if paired else ''};"
        f" {_test_note(samples, tested, '' if at_threshold else None)}",
        f"tested in this order: {', '.join(order)}" if order else family,
        f"{_DETECTABLE.format(name)}: {sizes}",
    ]


def _require_one_kind(records: Sequence[RunRecord], split: str) -> None:
    """Raise RunError unless experiments on sets of their own were scored alike."""
    measures = [it for record in records if (it := record.measure(split))]
    for what, known in (
        ("of SQuAD", [measure.protocol for measure in measures]),
        ("scored by metric version", [measure.metric_version for measure in measures]),
        ("in language", [record.facts(split).language for record in records]),
    ):
        if len(unlike := dict.fromkeys(known)) > 1:
            raise RunError(f"--pool: the experiments are {what} {' and '.join(unlike)}; pool those of one")


def pooled_table(
    pairs: Sequence[tuple[System, System]], *, split: str = DEV, unit: Unit | None = None
) -> Table:
    """Table of B - A in each experiment, a pair of systems on a set of its own, and over all of them.

    The last row of a measure is the fixed effect with the test of its heterogeneity (``significance.pool``).
    RunError if two experiments share questions, or differ in the protocol, the metric version, the
    language or the sampling unit.
    """
    _require_one_kind([a.record for a, _ in pairs], split)
    loaded = [samples_of([replace(a, label="A"), replace(b, label="B")], split, unit) for a, b in pairs]
    if len({*(units := [f"{samples.unit}s" for samples in loaded])}) > 1:
        raise RunError(f"--pool: the sampling units differ ({', '.join(units)}); add --unit question")
    seen: dict[str, str] = {}
    names = [f"{b.label} - {a.label}" for a, b in pairs]
    for index, samples in enumerate(loaded):
        name = names[index] = f"{index + 1}: {names[index]}"
        # Shared questions would count twice: the weights are those of independent experiments.
        if shared := seen.keys() & set(samples.first.ids):
            raise RunError(
                f"--pool: experiments {seen[min(shared)]} and {name} share {len(shared)} questions; only"
                " experiments on disjoint articles can be pooled"
            )
        seen |= dict.fromkeys(samples.first.ids, name)
    rows: list[dict[str, Any]] = []
    tested = {name: [effects(samples, "A", name, None)[0] for samples in loaded] for name in _POOLED}
    for measure, own in tested.items():
        common, p_heterogeneity = pool([difference.effect for difference in own])
        for name, difference in zip(names, own, strict=True):
            variance = difference.effect.variance
            row = {"measure": MEASURES[measure], "experiment": name, "units": variance.units}
            row["weight"] = round(100 * common.variance.total / variance.total, PLACES)  # w_k / Σ w = V / V_k
            rows.append(row | difference.figures)
        row = {"measure": MEASURES[measure], "experiment": "pooled", "weight": 100.0}
        row["units"] = sum(difference.effect.variance.units for difference in own)
        row |= Difference("pooled", measure, common).figures
        rows.append(row | {"p_heterogeneity": round(p_heterogeneity, PLACES)})
    columns = [
        *(text("measure", "measure"), text("experiment", "experiment")),
        number("units", f"{loaded[0].unit}s"),
        number("weight", "weight", lambda share: f"{share:.0f}%"),
        *(*delta_columns("Δ"), P_VALUE, number("p_heterogeneity", "p, heterogeneity", p_value)),
    ]
    notes = [
        "pooled: fixed effect, each experiment weighted by the inverse of its variance; p, heterogeneity: of"
        " the experiments having one difference (Cochran's Q); not corrected for the number of measures",
        *(
            f"experiment {n}: {_seeds_note(samples)}; {_test_note(samples, [first], 'where one is used')}"
            for n, (samples, first) in enumerate(zip(loaded, tested[_POOLED[0]], strict=True), 1)
        ),
        "calibration articles that experiments share are counted as independent",
        *dict.fromkeys(chain.from_iterable(samples.cautions for samples in loaded)),
    ]
    return Table(f"{split}: differences pooled over {len(pairs)} experiments", columns, rows, notes)


def power_table(
    samples: Samples,
    baseline: str,
    measure: MeasureName = "f1",
    *,
    runs: Sequence[int],
    units: Sequence[int] = (),
    calibration: int | None = None,
) -> Table:
    """Table of the power, in percent at true ``DIFFERENCES``, and the minimum detectable effect of
    experiments with other numbers of seeds (``runs``), articles (``units``; default: as many as here, and
    twice as many) and calibration articles, assuming the variances of the systems against ``baseline``.

    RunError without a system other than the baseline, or without a system of several runs; ConfigError for
    ``units`` over questions, and ``calibration`` if the runs or the measure have no threshold that varies.
    """
    if units and samples.unit == "question":
        raise ConfigError("--articles: the rows of these runs do not know several articles; leave it out")
    tested = effects(samples, baseline, measure, None)
    if not any(row.effect.variance.seeds for row in tested):
        raise RunError("power needs a baseline and another system, one of them with several seeds")
    known = max(row.effect.variance.calibration_units for row in tested)
    if calibration and not known:
        raise ConfigError(
            f"--calibration-articles: no variance over calibration articles is known for {MEASURES[measure]}"
            " of these runs; leave it out"
        )
    rows: list[dict[str, Any]] = []
    for difference in tested:
        observed = difference.effect.variance
        for count, seeds in product(units or (observed.units, 2 * observed.units), runs):
            planned = observed.planned(units=count, runs=seeds, calibration_units=calibration)
            row = {"model": difference.name, "units": count, "seeds": seeds}
            row["detectable"] = round(Effect(0.0, planned).detectable, PLACES)  # whatever the difference
            row |= {f"at_{size:g}": round(100 * power(planned, size), PLACES) for size in DIFFERENCES}
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
    sizes = {label: len(sample.rows) for label, sample in samples.systems.items()}
    counts = [f"{counted(size, 'run')} of {label}" for label, size in sizes.items()]
    single = [label for label, size in sizes.items() if size == 1]
    notes = [
        f"true differences from {baseline} in {MEASURES[measure]}, found at p < 0.05, two-sided, before"
        " correction",
        f"variances as those of {', '.join(counts)} on {samples.split}",
        *([f"one run of {', '.join(single)}: seed variance unknown, taken as zero"] if single else []),
        *([f"the null threshold fitted on {calibration or known} calibration articles"] if known else []),
    ]
    return Table("Power of planned experiments", columns, rows, notes)


def expected_best(scores: Sequence[float], trials: int) -> float:
    """Mean of the highest of ``trials`` scores, drawn from ``scores`` with replacement (Dodge et al. 2019,
    section 3: the distribution of the highest is the ``trials``-th power of that of one)."""
    count, ordered = len(scores), sorted(scores)
    weights = [((i + 1) / count) ** trials - (i / count) ** trials for i in range(count)]
    return sum(weight * score for weight, score in zip(weights, ordered, strict=True))


def expected_best_table(runs: Runs) -> Table:
    """Table of models by number of trials, up to that of the model with the fewest.

    A trial is a run of the model with any settings; runs without a calibration score do not count. Raises
    RunError if no run has one, or if they have them on different sets.
    """
    scores: dict[str, list[float]] = {}
    measures: dict[Path, Measure] = {}
    for folder, record in runs:
        if (value := record.tuning_score) is not None and (measure := record.measure(CALIBRATION)):
            scores.setdefault(record.model, []).append(value)
            measures[folder] = measure
    if not scores:
        raise RunError("no run was scored on calibration, by which settings are chosen")
    require_one_measure(measures)
    fewest = min(map(len, scores.values()))
    budgets = sorted({*(2**k for k in range(fewest.bit_length())), fewest})
    rows: list[dict[str, Any]] = [
        {"model": model, "trials": len(own), **{f"best_{n}": expected_best(own, n) for n in budgets}}
        for model, own in scores.items()
    ]
    columns = [text("model", "model"), number("trials", "trials")]
    columns += [number(f"best_{n}", f"best of {n}") for n in budgets]
    note = "expected best calibration score of n trials, drawn from all with replacement (Dodge et al. 2019)"
    return Table("Expected best calibration score by number of trials", columns, rows, [note])
