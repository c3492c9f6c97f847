"""Confidence intervals and significance tests over questions and seeds.

Scores are arrays ``(R, N)``: R runs (seeds) of one system on the same N questions, on any scale.
Questions with equal scores in all runs are interchangeable, so a resample draws the counts of the
distinct columns (a multinomial) instead of single questions: the same distribution for less work.
Everything is seeded.

The resampling unit is a question. Questions on the same passage are not quite independent, so intervals
are somewhat narrower than those over passages would be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Scores = npt.NDArray[np.float64]

RESAMPLES = 10_000
LEVEL = 0.95
_CHUNK = 4_000_000
"""Numbers drawn at a time; bounds the memory."""
_TIE = 1e-9
"""Rounding tolerance: means that differ by less count as equal."""


class Interval(NamedTuple):
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Effect:
    """Difference of system B from system A with its interval and p-values."""

    delta: float
    """Mean of B minus mean of A."""
    interval: Interval
    """Of ``delta``, by the bootstrap over questions and seeds."""
    p_bootstrap: float
    p_randomisation: float


def mean_sd(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation (n - 1); None for a single value."""
    array = np.asarray(values, dtype=np.float64)
    return float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else None


def bootstrap_interval(
    scores: Scores, *, level: float = LEVEL, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """Percentile interval of the mean of ``scores`` ``(R, N)`` over questions, the R runs as given.

    Efron & Tibshirani 1993, chapter 13. Raises ValueError without questions.
    """
    mean = _checked(scores).mean(0, keepdims=True)
    draws = np.concatenate(list(_resampled_means(mean, resamples, np.random.default_rng(seed))))
    return _percentiles(draws[:, 0], level)


def effect(
    a: Scores,
    b: Scores,
    *,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Effect:
    """Compare systems on the same N questions: ``a`` is ``(R, N)``, ``b`` is ``(S, N)``.

    ``p_bootstrap`` asks whether the systems differ beyond questions and seeds: both are resampled,
    runs of A and of B independently, and the distribution is shifted to a difference of 0 (Efron &
    Tibshirani 1993, section 16.4). Deviations of a run from its system's mean are stretched by
    sqrt(R / (R - 1)), else few seeds would underestimate the variance (Rao & Wu 1988). With
    one run of a system its seed cannot be resampled; the p-value is then about these runs.

    ``p_randomisation`` asks whether these very runs differ beyond the questions: of each question
    the two systems' mean scores are swapped at random (approximate randomisation, Noreen 1989).

    Both are two-sided and never 0: (1 + number as extreme) / (1 + ``resamples``).
    """
    a, b = _checked(a), _checked(b)
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"systems were scored on {a.shape[1]} and {b.shape[1]} questions")
    delta = float(b.mean() - a.mean())
    rng = np.random.default_rng(seed)
    differences = np.concatenate(
        [
            _with_seeds(means[:, len(a) :], rng) - _with_seeds(means[:, : len(a)], rng)
            for means in _resampled_means(np.concatenate([a, b]), resamples, rng)
        ]
    )
    return Effect(
        delta,
        _percentiles(differences, level),
        _share_as_extreme(differences - delta, delta),
        _share_as_extreme(_swapped(b.mean(0) - a.mean(0), resamples, rng), delta),
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values with Holm's correction for multiple tests (Holm 1979), in the given order; at most 1."""
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def _checked(scores: Scores) -> Scores:
    array = np.atleast_2d(np.asarray(scores, dtype=np.float64))
    if array.ndim != 2 or not array.size:
        raise ValueError(f"scores of shape {array.shape}: expected (runs, questions), at least one of each")
    return array


def _resampled_means(scores: Scores, resamples: int, rng: np.random.Generator) -> Iterator[Scores]:
    """Means ``(chunk, R)`` over N questions drawn with replacement, the same draw for all runs."""
    distinct, counts = np.unique(scores, axis=1, return_counts=True)
    questions = scores.shape[1]
    size = max(1, _CHUNK // len(counts))
    for first in range(0, resamples, size):
        weights = rng.multinomial(questions, counts / questions, size=min(size, resamples - first))
        yield weights @ distinct.T / questions


def _with_seeds(means: Scores, rng: np.random.Generator) -> Scores:
    """Means ``(chunk, R)`` -> ``(chunk,)``: of R runs drawn with replacement, their spread corrected."""
    draws, runs = means.shape
    if runs == 1:
        return means[:, 0]
    centre = means.mean(1)
    weight = rng.multinomial(runs, np.full(runs, 1 / runs), size=draws) / runs
    return centre + np.sqrt(runs / (runs - 1)) * ((means - centre[:, None]) * weight).sum(1)


def _swapped(differences: Scores, resamples: int, rng: np.random.Generator) -> Scores:
    """Means ``(resamples,)`` of the differences with random signs."""
    sizes, counts = np.unique(np.abs(differences), return_counts=True)
    means = np.empty(resamples)
    size = max(1, _CHUNK // len(counts))
    for first in range(0, resamples, size):
        positive = rng.binomial(counts, 0.5, size=(min(size, resamples - first), len(counts)))
        means[first : first + size] = (2 * positive - counts) @ sizes / len(differences)
    return means


def _share_as_extreme(draws: Scores, observed: float) -> float:
    extreme = np.count_nonzero(np.abs(draws) >= abs(observed) - _TIE * max(1.0, abs(observed)))
    return (1 + int(extreme)) / (1 + len(draws))


def _percentiles(draws: Scores, level: float) -> Interval:
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))
