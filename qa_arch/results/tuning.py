"""Tuning with an equal budget: the best calibration score that so many trials are expected to find."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from qa_arch.errors import RunError
from qa_arch.records import CALIBRATION, Runs
from qa_arch.results.tables import Table, number, text


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
    scores: dict[str, list[float]] = defaultdict(list)
    measures = set()
    for _, record in runs:
        if (value := record.tuning_score) is not None:
            scores[record.model].append(value)
            measures.add(record.measure(CALIBRATION))
    if not scores:
        raise RunError("no run was scored on calibration, by which settings are chosen")
    if len(measures) > 1:
        raise RunError(
            f"the runs were scored on {len(measures)} different calibration sets; name those of one"
        )
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
