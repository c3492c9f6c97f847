"""Every system against a baseline: what each scores, the difference, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qa_arch.errors import RunError
from qa_arch.metrics.significance import (
    POWER,
    RESAMPLES,
    Articles,
    Effect,
    Unit,
    bootstrap_interval,
    effect,
    holm,
    mean_sd,
)
from qa_arch.results.columns import Column, Table, number, text
from qa_arch.results.effects import (
    P_VALUES,
    SINGLE_RUN,
    TESTS,
    UNITS,
    delta_columns,
    effect_figures,
    interval_column,
    interval_figures,
    mean_column,
    mean_figures,
    p_columns,
)
from qa_arch.results.pairwise import FITTED, SPANS
from qa_arch.results.question_rows import Floats, articles_of, load_aligned, stacked
from qa_arch.results.systems import System, distinct_seeds, same_measure
from qa_arch.types.records import CALIBRATION, DEV

PAIRED = ", run by run of the same seed"
_HEADINGS = {"exact": "EM", "f1": "F1", "spans_f1": SPANS}


def baseline_table(
    systems: Sequence[System],
    baseline: System,
    *,
    split: str = DEV,
    spans: bool = False,
    resamples: int = RESAMPLES,
    seed: int = 0,
    unit: Unit = "question",
    paired: bool = False,
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
    scores, questions, articles = _scores(systems, split, spans, unit)
    compared = "spans_f1" if spans else "f1"
    resampling: dict[str, Any] = {"resamples": resamples, "seed": seed, "articles": articles}
    others = [system.label for system in systems if system.label != baseline.label]
    runs = {system.label: (system, scores[system.label][compared]) for system in systems}
    effects = {label: _effect(runs[baseline.label], runs[label], paired, resampling) for label in others}
    corrected = dict(zip(others, holm([effects[label].p_bootstrap for label in others]), strict=True))
    rows: list[dict[str, Any]] = []
    for system in systems:
        row: dict[str, Any] = {"model": system.label, "seeds": len(system.runs)}
        for key, of_questions in scores[system.label].items():
            row |= mean_figures(key, *mean_sd(of_questions.mean(1).tolist()))
            row |= interval_figures(key, bootstrap_interval(of_questions, **resampling))
        if tested := effects.get(system.label):
            row |= effect_figures(tested, corrected[system.label])
        rows.append(row)
    figures = " and ".join(_HEADINGS[key] for key in scores[baseline.label])
    notes = [
        f"{questions:,} questions; ± standard deviation over seeds; intervals of {figures} over"
        f" {UNITS[unit]}, of ΔF1 over {UNITS[unit]} and seeds ({resamples:,} resamples)",
        f"ΔF1 against {baseline.label}{PAIRED if paired else ''}; {TESTS[unit]}; Holm over"
        f" {len(others)} comparisons",
        *([_power([tested.detectable for tested in effects.values()])] if effects else []),
    ]
    if any(len(system.runs) == 1 for system in systems):
        notes.append(SINGLE_RUN)
    if split == CALIBRATION:
        notes.append(FITTED)
    columns = _columns(list(scores[baseline.label]), unit)
    return Table(f"{split}: every system against {baseline.label}", columns, rows, notes)


def _effect(
    a: tuple[System, Floats], b: tuple[System, Floats], paired: bool, resampling: dict[str, Any]
) -> Effect:
    """``b`` against ``a``, each a system with the scores ``(R, N)`` of its runs."""
    if not paired:
        return effect(a[1], b[1], **resampling)
    seeds, others = ([record.seed for _, record in system.runs] for system in (a[0], b[0]))
    if strangers := sorted(set(others) - set(seeds)):
        raise RunError(f"{b[0].label}: no run of {a[0].label} has the seed {strangers[0]}")
    return effect(a[1][[seeds.index(seed) for seed in others]], b[1], paired=True, **resampling)


def _power(detectable: Sequence[float]) -> str:
    low, high = f"{min(detectable):.1f}", f"{max(detectable):.1f}"
    sizes = low if low == high else f"{low} to {high}"
    return f"a true ΔF1 of {sizes} is detected with {POWER:.0%} power, before Holm"


def _columns(figures: Sequence[str], unit: Unit) -> list[Column]:
    of_questions, *of_runs = P_VALUES[unit]
    compared = figures[-1]
    scores = (
        (mean_column(key, _HEADINGS[key], weight=int(key == compared)), interval_column(key))
        for key in figures
    )
    return [
        text("model", "model"),
        number("seeds", "seeds"),
        *(column for pair in scores for column in pair),
        *delta_columns("ΔF1"),
        *p_columns(of_questions, "p_holm", *of_runs),
    ]


def _scores(
    systems: Sequence[System], split: str, spans: bool, unit: Unit
) -> tuple[dict[str, dict[str, Floats]], int, Articles | None]:
    """By system and figure, ``(R, N)`` each, percent; the number N of questions that they are over, and the
    article of each where that is the ``unit``."""
    rows = iter(load_aligned([run for system in systems for run in system.runs], split))
    by_system = {system.label: [next(rows) for _ in system.runs] for system in systems}
    first = by_system[systems[0].label][0]
    where = first.answerable if spans else np.ones(len(first), dtype=bool)
    keys = {"spans_f1": "span_f1"} if spans else {"exact": "exact", "f1": "f1"}
    for run in (run for runs in by_system.values() for run in runs):
        if spans and run.span_f1 is None:
            raise RunError(f"{run.folder}: its rows tell no best spans; score the run again")
    scores = {
        label: {key: 100 * stacked(runs, column)[:, where] for key, column in keys.items()}
        for label, runs in by_system.items()
    }
    return scores, int(where.sum()), articles_of(first)[where] if unit == "article" else None
