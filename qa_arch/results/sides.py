"""Two systems side by side, as tables: every measure, and F1 by kind of question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from qa_arch.results.compare import FITTED, TOLD, Comparison, Measured
from qa_arch.results.comparison import Table
from qa_arch.results.effects import EFFECT, drawn_mean, effect_figures, mean_figures
from qa_arch.types.records import CALIBRATION


def measures_table(found: Comparison, resamples: int) -> Table:
    """EM and F1 of all, answerable and unanswerable questions."""
    seeds = f"{_seeds(len(found.a.runs))} of A, {_seeds(len(found.b.runs))} of B"
    notes = [f"{seeds}; {resamples:,} resamples, intervals of B − A over questions and seeds", TOLD]
    notes.append("; ".join(f"{name}: {count:,}" for name, count in found.outcomes.items()))
    notes += [FITTED] if found.split == CALIBRATION else []
    return _table(f"{found.split}: B against A", found, found.measures, notes)


def kinds_table(found: Comparison) -> Table:
    """F1 by what questions are sorted by; without a row where nothing sorts them."""
    notes = [f"Holm: p corrected for {len(found.kinds)} kinds"]
    table = _table(f"F1 by {found.sorted_by}", found, found.kinds, notes)
    return replace(table, columns={**table.columns, "p_holm": "p, Holm"})


def effects_table(found: Comparison, resamples: int, title: str) -> Table:
    """Both in one: the measures, then F1 by kind."""
    measures, kinds = measures_table(found, resamples), kinds_table(found)
    if not kinds.rows:
        return replace(measures, title=title, columns=kinds.columns)
    notes = [f"rows below {found.measures[-1].name}: F1 by {found.sorted_by}", *measures.notes, *kinds.notes]
    return replace(kinds, title=title, rows=[*measures.rows, *kinds.rows], notes=notes)


def _table(title: str, found: Comparison, measured: Sequence[Measured], notes: Sequence[str]) -> Table:
    columns = {
        "name": "",
        "questions": "questions",
        "a": f"A: {found.a.label.removeprefix('A: ')}",
        "b": f"B: {found.b.label.removeprefix('B: ')}",
        "delta": "B − A",
        "delta_interval": "95% interval",
        "p": "p",
        "p_these_runs": "p, these runs",
    }
    drawn = EFFECT | {side: drawn_mean(side) for side in "ab"}
    return Table(title, columns, [_row(one) for one in measured], notes, drawn)


def _row(one: Measured) -> dict[str, Any]:
    return {
        "name": one.name,
        "questions": one.questions,
        **mean_figures("a", one.a, one.a_sd),
        **mean_figures("b", one.b, one.b_sd),
        **effect_figures(one.effect, one.p_holm),
    }


def _seeds(count: int) -> str:
    return "1 run" if count == 1 else f"{count} seeds"
