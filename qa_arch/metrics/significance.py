"""Confidence intervals and tests of differences over articles (or questions), seeds and calibration articles.

Scores are arrays ``(R, N)``: R runs (seeds) of one system on the same N questions, on any scale. What a new
experiment would draw again is crossed: each seed meets each article. With d_j the difference of two systems
on article j, m_r the mean of a run and e_rj their interaction, the variance of the difference of means is

    V = V_articles + sum over systems of (V_seeds - V_articles×seeds) + V_calibration

    V_articles        = J/(J-1) Σ_j d_j² / N²          d_j: sum over the article's questions, centred
    V_seeds           = Σ_r (m_r - m)² / (R (R-1))
    V_articles×seeds  = J/(J-1) Σ_rj e_rj² / (R (R-1) N²)
    V_calibration     = (C-1)/C Σ_c (Δ_c - Δ)²         Δ_c: the difference, article c left out of the fit

Articles and seeds both hold the interaction, so it is taken off once (two-way clustering: Cameron, Gelbach &
Miller 2011, eq. 2.11; Owen 2007 on why neither alone will do); sums in place of means carry the unequal sizes
of articles. The null threshold is fitted on few articles and shared by all seeds; what other ones would have
changed is a delete-one jackknife (Tukey 1958). Degrees of freedom are Satterthwaite's (1946). Rejection rates
of a true null are simulated in ``tests/metrics/test_significance.py``.

Without ``articles`` each question stands for itself. Questions of one article are not independent, and a new
test set would have other articles: such an interval is for the articles that were scored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Scores = npt.NDArray[np.float64]
Articles = npt.NDArray[np.int64]

Unit = Literal["question", "article", "passage"]
"""The units that are drawn again, beside the seeds."""

LEVEL = 0.95
POWER = 0.8
"""Share of repeats in which ``Effect.detectable`` would be found."""
_TIE = 1e-9
"""Rounding tolerance: means that differ by less count as equal."""


class Interval(NamedTuple):
    low: float
    high: float


class Seeds(NamedTuple):
    """The part of R runs of a system (or R pairs of runs) in the variance of a mean over them."""

    runs: int
    own: float
    """Beyond the interaction; by chance it may be below 0."""
    interaction: float
    """With the articles; it is part of what the articles add."""


@dataclass(frozen=True, slots=True)
class Variance:
    """Variance of a difference by where it comes from."""

    units: int
    of_units: float
    """Articles (or questions), the interaction with the seeds included."""
    seeds: tuple[Seeds, ...] = ()
    """The parts of systems with several runs."""
    calibration_units: int = 0
    of_calibration: float = 0.0

    @property
    def total(self) -> float:
        return self.of_units + max(0.0, sum(part.own for part in self.seeds)) + self.of_calibration

    @property
    def freedom(self) -> float:
        """Satterthwaite's degrees of freedom, at least 1."""
        parts = [(self.of_units, self.units - 1), (self.of_calibration, self.calibration_units - 1)]
        parts += [(max(0.0, part.own), part.runs - 1) for part in self.seeds]
        spread = sum(variance**2 / free for variance, free in parts if variance)
        return max(1.0, self.total**2 / spread) if spread else inf

    def planned(self, *, units: int, runs: int, calibration_units: int | None = None) -> Variance:
        """The variance with other numbers of articles, of runs a system, of calibration articles."""
        crossed = sum(part.interaction for part in self.seeds)
        articles = max(0.0, self.of_units - crossed) * self.units / units
        seeds = tuple(
            Seeds(runs, own * of / runs, interaction * of * self.units / (runs * units))
            for of, own, interaction in self.seeds
        )
        of_units = articles + sum(part.interaction for part in seeds)
        there = self.calibration_units
        wanted = calibration_units or there
        return Variance(
            units, of_units, seeds, wanted, self.of_calibration * there / wanted if there else 0.0
        )


@dataclass(frozen=True, slots=True)
class Effect:
    """Difference of system B from system A; two-sided tests by Student's t."""

    delta: float
    """Mean of B minus mean of A."""
    variance: Variance

    @property
    def interval(self) -> Interval:
        """95%, not corrected for other comparisons; cut at ±100, as measures are percentages."""
        half = _quantile(self.variance.freedom, (1 + LEVEL) / 2) * self.error
        return Interval(max(-100.0, self.delta - half), min(100.0, self.delta + half))

    @property
    def error(self) -> float:
        """Standard error of ``delta``."""
        return sqrt(self.variance.total)

    @property
    def p(self) -> float:
        """The p-value of no difference."""
        return 1.0 if abs(self.delta) < _TIE else min(1.0, 2 * self._tail(-abs(self.delta)))

    def p_equivalent(self, margin: float) -> float:
        """The p-value of a difference of ``margin`` or more, by two one-sided tests (Schuirmann 1987)."""
        return max(self._tail(self.delta - margin), self._tail(-self.delta - margin))

    @property
    def detectable(self) -> float:
        """True difference that this test finds in ``POWER`` of repeats with as many runs and articles."""
        freedom = self.variance.freedom
        return (_quantile(freedom, (1 + LEVEL) / 2) + _quantile(freedom, POWER)) * self.error

    def _tail(self, difference: float) -> float:
        """P(T <= difference / error)."""
        from scipy.special import stdtr

        if not self.error:
            return float(difference >= 0)
        return float(stdtr(self.variance.freedom, difference / self.error))


def mean_interval(scores: Scores, articles: Articles | None = None) -> Interval:
    """95% interval of the mean of ``scores`` ``(R, N)`` over articles (or questions), the R runs as given.

    Raises ValueError with a single article, or question.
    """
    mean = scores.mean(0)
    return Effect(float(mean.mean()), _crossed([mean[None]], articles)).interval


def contrast(
    systems: Sequence[Scores], *, articles: Articles | None = None, left_out: Sequence[float] = ()
) -> Effect:
    """Sum of the means of systems ``(R, N)``, each signed as it counts, all on the same N questions.

    ``[-a, b]`` is how much better b is, ``[a, -b, -c, d]`` how much more d gains over c than b over a.
    ``[b - a]`` is the first again where run r of b was made of run r of a: what the runs of a pair share does
    not widen the interval. ``articles`` ``(N,)`` are the numbers of the questions' articles. With one run of
    a system its seed cannot be drawn again: the test is then about that run. ``left_out`` ``(C,)`` are the
    sums with each calibration article in turn left out when null thresholds are fitted.

    Raises ValueError with a single article, or question.
    """
    delta = float(sum(scores.mean() for scores in systems))
    return Effect(delta, _crossed(systems, articles, left_out))


def power(variance: Variance, difference: float) -> float:
    """Chance that a true ``difference`` is found at 1 - ``LEVEL``, two-sided (noncentral t)."""
    from scipy.special import nctdtr

    if not variance.total:
        return 1.0 if difference else 0.0
    shift = abs(difference) / sqrt(variance.total)
    critical = _quantile(variance.freedom, (1 + LEVEL) / 2)
    below = (float(nctdtr(variance.freedom, sign * shift, critical)) for sign in (1, -1))
    return 2 - sum(below)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values with Holm's correction for multiple tests (Holm 1979), in the given order; at most 1."""
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def in_order(families: Iterable[Sequence[float]]) -> list[list[float]]:
    """p-values of families that are tested in an order fixed beforehand: a family only after all before it.

    Holm within a family, and none below the largest of an earlier one (serial gatekeeping: Westfall & Krishen
    2001); with families of one test it is the fixed-sequence procedure, which needs no correction.
    """
    highest, adjusted = 0.0, []
    for family in families:
        adjusted.append([max(highest, p) for p in holm(family)])
        highest = max(adjusted[-1], default=highest)
    return adjusted


def _crossed(
    systems: Sequence[Scores], articles: Articles | None, left_out: Sequence[float] = ()
) -> Variance:
    """The variance of the sum of systems' means; ``systems`` are ``(R, N)`` each, signed as they count."""
    questions = systems[0].shape[1]
    number = np.arange(questions) if articles is None else np.unique(articles, return_inverse=True)[1]
    units = int(number.max()) + 1
    if units < 2:
        what = "question is" if articles is None else "article is"
        raise ValueError(f"a single {what} no sample: an interval needs several")
    corrected = units / (units - 1) / questions**2
    summed, seeds = np.zeros(units), []
    for scores in systems:
        means = scores.mean(1)
        sums = np.stack([np.bincount(number, run, units) for run in scores - means[:, None]])
        summed += sums.mean(0)
        if (runs := len(scores)) > 1:
            crossed = corrected * float(((sums - sums.mean(0)) ** 2).sum()) / (runs * (runs - 1))
            seeds.append(Seeds(runs, float(means.var(ddof=1)) / runs - crossed, crossed))
    of_calibration = (len(left_out) - 1) * float(np.var(left_out)) if len(left_out) > 1 else 0.0
    of_units = corrected * float((summed**2).sum())
    return Variance(units, of_units, tuple(seeds), len(left_out), of_calibration)


def _quantile(freedom: float, share: float) -> float:
    from scipy.special import ndtri, stdtrit

    return float(ndtri(share) if freedom == inf else stdtrit(freedom, share))
