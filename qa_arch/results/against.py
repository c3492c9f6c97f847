"""Every system against a baseline: what each scores, the difference, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qa_arch.errors import RunError
from qa_arch.metrics.significance import RESAMPLES, bootstrap_interval, effect, holm, mean_sd
from qa_arch.results.compare import FITTED, SPANS, TOLD
from qa_arch.results.comparison import Drawn, Table
from qa_arch.results.effects import (
    EFFECT,
    drawn_interval,
    drawn_mean,
    effect_figures,
    interval_figures,
    mean_figures,
)
from qa_arch.results.groups import Group, distinct_seeds, same_measure
from qa_arch.results.questions import Floats, load_aligned, stacked
from qa_arch.types.records import CALIBRATION, DEV

_HEADINGS = {"exact": "EM", "f1": "F1", "spans_f1": SPANS}


def against_baseline(
    groups: Sequence[Group],
    baseline: Group,
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
    for group in groups:
        distinct_seeds(group)
    same_measure([run for group in groups for run in group.runs], split)
    scores, questions = _scores(groups, split, spans)
    tested = "spans_f1" if spans else "f1"
    resampling = {"resamples": resamples, "seed": seed}
    others = [group.label for group in groups if group.label != baseline.label]
    effects = {
        label: effect(scores[baseline.label][tested], scores[label][tested], **resampling) for label in others
    }
    corrected = dict(zip(others, holm([effects[label].p_bootstrap for label in others]), strict=True))
    rows: list[dict[str, Any]] = []
    for group in groups:
        row: dict[str, Any] = {"model": group.label, "seeds": len(group.runs)}
        for key, of_questions in scores[group.label].items():
            row |= mean_figures(key, *mean_sd(of_questions.mean(1).tolist()))
            row |= interval_figures(key, bootstrap_interval(of_questions, **resampling))
        if found := effects.get(group.label):
            row |= effect_figures(found, corrected[group.label])
        rows.append(row)
    columns, drawn = _columns(list(scores[baseline.label]))
    figures = " and ".join(_HEADINGS[key] for key in scores[baseline.label])
    notes = [
        f"{questions:,} questions; ± standard deviation over seeds; intervals of {figures} over questions,"
        f" of ΔF1 over questions and seeds ({resamples:,} resamples)",
        f"ΔF1 against {baseline.label}; {TOLD}; Holm over {len(others)} comparisons",
    ]
    if split == CALIBRATION:
        notes.append(FITTED)
    return Table(f"{split}: every system against {baseline.label}", columns, rows, notes, drawn)


def _columns(figures: Sequence[str]) -> tuple[dict[str, str], dict[str, Drawn]]:
    """Headings, and how the columns are drawn."""
    columns, drawn = {"model": "model", "seeds": "seeds"}, dict(EFFECT)
    for key in figures:
        columns |= {key: _HEADINGS[key], f"{key}_interval": "95% interval"}
        drawn |= {key: drawn_mean(key), f"{key}_interval": drawn_interval(key)}
    columns |= {"delta": "ΔF1", "delta_interval": "95% interval"}
    return columns | {"p": "p", "p_holm": "p, Holm", "p_these_runs": "p, these runs"}, drawn


def _scores(groups: Sequence[Group], split: str, spans: bool) -> tuple[dict[str, dict[str, Floats]], int]:
    """By system and figure, ``(R, N)`` each, percent; and the number N of questions that they are over."""
    rows = iter(load_aligned([run for group in groups for run in group.runs], split))
    by_system = {group.label: [next(rows) for _ in group.runs] for group in groups}
    first = by_system[groups[0].label][0]
    where = first.answerable if spans else np.ones(len(first), dtype=bool)
    keys = {"spans_f1": "span_f1"} if spans else {"exact": "exact", "f1": "f1"}
    for one in (one for runs in by_system.values() for one in runs):
        if spans and one.span_f1 is None:
            raise RunError(f"{one.folder}: its rows tell no best spans; score the run again")
    scores = {
        label: {key: 100 * stacked(runs, column)[:, where] for key, column in keys.items()}
        for label, runs in by_system.items()
    }
    return scores, int(where.sum())
