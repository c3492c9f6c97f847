"""Every system against a baseline: what each scores, the difference, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qa_arch.errors import RunError
from qa_arch.metrics.significance import RESAMPLES, bootstrap_interval, effect, holm, mean_sd
from qa_arch.results.columns import Column, Table, number, text
from qa_arch.results.effects import (
    delta_columns,
    effect_figures,
    interval_column,
    interval_figures,
    mean_column,
    mean_figures,
    p_columns,
)
from qa_arch.results.pairwise import FITTED, SPANS, TESTS
from qa_arch.results.question_rows import Floats, load_aligned, stacked
from qa_arch.results.systems import System, distinct_seeds, same_measure
from qa_arch.types.records import CALIBRATION, DEV

_HEADINGS = {"exact": "EM", "f1": "F1", "spans_f1": SPANS}


def baseline_table(
    systems: Sequence[System],
    baseline: System,
    *,
    split: str = DEV,
    spans: bool = False,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Table:
    """One row a system: EM and F1, mean ± s.d. over seeds with the 95% interval over questions, and the
    difference in F1 from the baseline, its p-value corrected for the number of systems (Holm 1979).

    With ``spans`` the same of F1 on the answerable questions alone, where "no answer" is never allowed.
    """
    for system in systems:
        distinct_seeds(system)
    same_measure([run for system in systems for run in system.runs], split)
    scores, questions = _scores(systems, split, spans)
    compared = "spans_f1" if spans else "f1"
    resampling = {"resamples": resamples, "seed": seed}
    others = [system.label for system in systems if system.label != baseline.label]
    effects = {
        label: effect(scores[baseline.label][compared], scores[label][compared], **resampling)
        for label in others
    }
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
        f"{questions:,} questions; ± standard deviation over seeds; intervals of {figures} over questions,"
        f" of ΔF1 over questions and seeds ({resamples:,} resamples)",
        f"ΔF1 against {baseline.label}; {TESTS}; Holm over {len(others)} comparisons",
    ]
    if split == CALIBRATION:
        notes.append(FITTED)
    columns = _columns(list(scores[baseline.label]))
    return Table(f"{split}: every system against {baseline.label}", columns, rows, notes)


def _columns(figures: Sequence[str]) -> list[Column]:
    scores = ((mean_column(key, _HEADINGS[key]), interval_column(key)) for key in figures)
    return [
        text("model", "model"),
        number("seeds", "seeds"),
        *(column for pair in scores for column in pair),
        *delta_columns("ΔF1"),
        *p_columns("p", "p_holm", "p_these_runs"),
    ]


def _scores(systems: Sequence[System], split: str, spans: bool) -> tuple[dict[str, dict[str, Floats]], int]:
    """By system and figure, ``(R, N)`` each, percent; and the number N of questions that they are over."""
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
    return scores, int(where.sum())
