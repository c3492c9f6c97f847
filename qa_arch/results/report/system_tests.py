"""How sure differences on a scored set are: an interval of every system, tests against the baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from qa_arch.errors import RunError
from qa_arch.metrics.significance import Effect, bootstrap_interval, effect, holm
from qa_arch.results.question_rows import Floats, Questions
from qa_arch.results.systems import System, find_system

TESTED = 24
"""Systems that are tested against the baseline; beyond that the correction leaves little to find."""
SPANS = "spans"
MEASURES = ("exact", "f1", SPANS)
"""What the page can be switched to; the last where some questions have no answer, else it is F1."""


def find_baselines(
    name: str | None, groups: Sequence[System], sets: Sequence[Sequence[int]]
) -> list[tuple[int | None, str | None]]:
    """Of each scored set, given by its groups, the one that ``name`` means among them, or why none.

    RunError where it means none of any set.
    """
    if name is None:
        return [(None, None)] * len(sets)
    result: list[tuple[int | None, str | None]] = []
    for members in sets:
        try:
            group = find_system([groups[g] for g in members], name)
        except RunError as error:
            result.append((None, str(error)))
        else:
            result.append((next(g for g in members if groups[g] is group), None))
    if all(reference is None for reference, _ in result):
        reasons = "; ".join(dict.fromkeys(why for _, why in result if why)) or "no run has scores"
        raise RunError(f"--baseline: {reasons}")
    return result


def significance(
    rows: Mapping[int, Sequence[Questions]], reference: int | None, measures: Sequence[str]
) -> dict[str, Any]:
    """By measure, intervals of every group whose ``rows`` tell it, and tests of the others against
    ``reference``."""
    result = {}
    for measure in measures:
        of_runs = {group: [scores(run, measure) for run in members] for group, members in rows.items()}
        known = {group: [run for run in of if run is not None] for group, of in of_runs.items()}
        result[measure] = _tested(
            {group: np.stack(known[group]) for group, of in of_runs.items() if len(known[group]) == len(of)},
            reference,
        )
    return result


def scores(rows: Questions, measure: str) -> Floats | None:
    """``(N,)``, percent: of every question, or for ``spans`` of the answerable ones, where "no answer" is
    never allowed. None where the rows tell no best spans of some, or there is no such question."""
    if measure != SPANS:
        return 100 * np.asarray(getattr(rows, measure))
    assert rows.span_f1 is not None, "completed by with_spans"
    best = 100 * rows.span_f1[rows.answerable]
    return None if np.isnan(best).any() or not best.size else best


def _tested(stacked: Mapping[int, Floats], reference: int | None) -> dict[str, Any]:
    """``stacked`` is ``(R, N)`` by system; the same draws as ``qa-arch compare`` makes, so the same figures.

    Each test has a generator of its own, so they may run side by side: NumPy draws without the lock.
    """
    baseline = None if reference is None else stacked.get(reference)
    others = [] if baseline is None else [system for system in stacked if system != reference][:TESTED]

    def against_baseline(system: int) -> Effect:
        assert baseline is not None
        return effect(baseline, stacked[system])

    with ThreadPoolExecutor() as pool:
        intervals = pool.map(bootstrap_interval, stacked.values())
        effects = list(pool.map(against_baseline, others))
        shown = {str(system): list(interval) for system, interval in zip(stacked, intervals, strict=True)}
    tests = {
        str(system): {
            "delta": tested.delta,
            "interval": list(tested.interval),
            "p": tested.p_bootstrap,
            "holm": p,
        }
        for system, tested, p in zip(others, effects, holm([e.p_bootstrap for e in effects]), strict=True)
    }
    return {"intervals": shown, "effects": tests}
