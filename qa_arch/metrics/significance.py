"""Confidence intervals and significance tests over questions or articles, and seeds.

Scores are arrays ``(R, N)``: R runs (seeds) of one system on the same N questions, on any scale.
Everything is seeded. What is drawn is named by the caller:

- Questions (``articles=None``). Questions with equal scores in all runs are interchangeable, so a resample
  draws the counts of the distinct columns (a multinomial) instead of single questions: the same distribution
  for less work. Questions of one article are not independent, and a new test set would have other articles:
  on half of SQuAD 2.0's dev set standard errors over articles are 1.4 to 1.8 times those over questions for a
  difference of two systems and twice them for a score (``experiments/answer/article_errors.py``), so these
  intervals are for the articles that were scored.
- Articles (``articles``, the number of each question's article): whole articles are drawn, each with all its
  questions (the cluster bootstrap: Davison & Hinkley 1997, section 3.8), and few articles or seeds are
  corrected for by Student's t.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Scores = npt.NDArray[np.float64]
Articles = npt.NDArray[np.int64]

Unit = Literal["question", "article"]
"""What is resampled."""

RESAMPLES = 10_000
LEVEL = 0.95
POWER = 0.8
"""Share of repeats in which ``Effect.detectable`` would be found."""
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
    """Of ``delta``, by the bootstrap over questions or articles, and seeds."""
    p_bootstrap: float
    p_randomisation: float
    """Of these very runs: where seeds differ it rejects a true null far more often than it says, so it is no
    statement about systems."""
    detectable: float
    """True difference that this test, at 1 - ``level``, finds in ``POWER`` of repeats with as many runs."""


def mean_sd(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation (n - 1); None for a single value."""
    array = np.asarray(values, dtype=np.float64)
    return float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else None


def bootstrap_interval(
    scores: Scores,
    *,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
    articles: Articles | None = None,
) -> Interval:
    """Percentile interval of the mean of ``scores`` ``(R, N)`` over questions, the R runs as given.

    Efron & Tibshirani 1993, chapter 13; with ``articles`` ``(N,)`` over articles, and by Student's t.
    Raises ValueError without questions, or with a single article.
    """
    scores = _checked(scores)
    mean, rng = scores.mean(0, keepdims=True), np.random.default_rng(seed)
    if articles is None:
        draws = np.concatenate(list(_resampled_means(mean, resamples, rng)))[:, 0]
    else:
        deviations, freedom = _over_articles(mean[0], articles, resamples, rng)
        draws = mean.mean() + _student(deviations, freedom, rng)
    return _percentiles(draws, level)


def effect(
    a: Scores,
    b: Scores,
    *,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
    articles: Articles | None = None,
    paired: bool = False,
) -> Effect:
    """Compare systems on the same N questions: ``a`` is ``(R, N)``, ``b`` is ``(S, N)``.

    ``p_bootstrap`` asks whether the systems differ beyond questions and seeds: both are resampled,
    runs of A and of B independently, and the distribution is shifted to a difference of 0 (Efron &
    Tibshirani 1993, section 16.4). Deviations of a run from its system's mean are stretched by
    sqrt(R / (R - 1)), else few seeds would underestimate the variance (Rao & Wu 1988). With
    one run of a system its seed cannot be resampled; the p-value is then about these runs.

    With ``articles`` ``(N,)`` articles are resampled in place of questions. Few seeds have few distinct
    resamples, so their part is drawn from a normal distribution with the variance of a mean of R runs, and
    the sum is widened to Student's t, with the degrees of freedom of Welch (1947) for its three variances:
    of articles, of seeds of A and of seeds of B.

    With ``paired`` run r of B was made of run r of A (R = S): seeds are drawn in pairs, and what the runs of
    a pair share does not widen the interval.

    ``p_randomisation`` asks whether these very runs differ beyond the questions: of each question (each
    article) the two systems' mean scores are swapped at random (approximate randomisation, Noreen 1989).

    Both are two-sided and never 0: (1 + number as extreme) / (1 + ``resamples``).
    """
    a, b = _checked(a), _checked(b)
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"systems were scored on {a.shape[1]} and {b.shape[1]} questions")
    if paired:
        if len(a) != len(b):
            raise ValueError(f"{len(a)} and {len(b)} runs make no pairs")
        a, b = np.zeros_like(a[:1]), b - a
    delta = float(b.mean() - a.mean())
    rng = np.random.default_rng(seed)
    swapped = b.mean(0) - a.mean(0)
    if articles is None:
        draws = [
            _with_seeds(means[:, len(a) :], rng) - _with_seeds(means[:, : len(a)], rng)
            for means in _resampled_means(np.concatenate([a, b]), resamples, rng)
        ]
        differences = np.concatenate(draws)
    else:
        differences = delta + _articles_and_seeds(a, b, articles, resamples, rng)
        sums = np.bincount(_numbered(articles), swapped)
        swapped = sums * len(sums) / a.shape[1]
    deviations = differences - delta
    return Effect(
        delta,
        _percentiles(differences, level),
        _share_as_extreme(deviations, delta),
        _share_as_extreme(_swapped(swapped, resamples, rng), delta),
        float(np.quantile(np.abs(deviations), level) + np.quantile(deviations, POWER)),
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


def _articles_and_seeds(
    a: Scores, b: Scores, articles: Articles, resamples: int, rng: np.random.Generator
) -> Scores:
    """Deviations ``(resamples,)`` of B's mean from A's, over articles and the seeds of both."""
    deviations, freedom = _over_articles(b.mean(0) - a.mean(0), articles, resamples, rng)
    variances, freedoms = [float(deviations.var())], [freedom]
    for runs in (a, b):
        if len(runs) > 1:
            variances.append(float(runs.mean(1).var(ddof=1)) / len(runs))
            freedoms.append(len(runs) - 1)
            deviations = deviations + rng.normal(scale=variances[-1] ** 0.5, size=resamples)
    total = sum(variances)
    welch = sum(variance**2 / free for variance, free in zip(variances, freedoms, strict=True))
    return _student(deviations, total**2 / welch if welch else freedom, rng)


def _over_articles(
    scores: Scores, articles: Articles, resamples: int, rng: np.random.Generator
) -> tuple[Scores, int]:
    """Deviations ``(resamples,)`` of the mean of ``scores`` ``(N,)`` over articles, and degrees of freedom.

    The spread is stretched as that of seeds is.
    """
    number = _numbered(articles)
    if len(number) != len(scores):
        raise ValueError(f"{len(number)} articles of {len(scores)} questions: each question has one")
    sums, sizes = np.bincount(number, scores), np.bincount(number).astype(np.float64)
    count = len(sizes)
    if count < 2:
        raise ValueError("all questions are of one article: an interval over articles needs several")
    weights = rng.multinomial(count, np.full(count, 1 / count), size=resamples)
    return np.sqrt(count / (count - 1)) * ((weights @ sums) / (weights @ sizes) - scores.mean()), count - 1


def _numbered(articles: Articles) -> Articles:
    return np.unique(articles, return_inverse=True)[1]


def _student(deviations: Scores, freedom: float, rng: np.random.Generator) -> Scores:
    """Deviations divided by the root of chi² / freedom: normal ones become Student's t."""
    return deviations / np.sqrt(rng.chisquare(freedom, size=len(deviations)) / freedom)


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
