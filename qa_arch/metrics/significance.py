"""Confidence intervals and tests of differences over articles (or questions), seeds and calibration articles.

Scores are arrays ``(R, N)``: R runs (seeds) of one system on the same N questions, on any scale. The factors
that a new experiment would draw again are crossed: each seed meets each article. With d_j the difference of
two systems on article j, m_r the mean of a run and e_rj their interaction, the variance of the difference of
means is

    V = V_articles + sum over systems of (V_seeds - V_articles×seeds) + V_calibration

    V_articles        = J/(J-1) Σ_j d_j² / N²          d_j: sum over the article's questions, centred
    V_seeds           = Σ_r (m_r - m)² / (R (R-1))
    V_articles×seeds  = J/(J-1) Σ_rj e_rj² / (R (R-1) N²)
    V_calibration     = (C-1)/C Σ_c (Δ_c - Δ)²         Δ_c: without article c in the fit; Δ: their mean

The article and the seed term both contain the interaction, so it is subtracted once (two-way clustering:
Cameron, Gelbach & Miller 2011, eq. 2.11; Owen 2007 on why neither alone suffices); sums instead of means
account for unequal article sizes. The null threshold is fitted on few articles and shared by all seeds; a
delete-one jackknife over these articles, or ``GROUPS`` groups of them, estimates its variance (Tukey 1958).
Degrees of freedom are Satterthwaite's (1946). Rejection rates of a true null are simulated in
``tests/metrics/test_significance.py``.

Without ``articles`` each question is its own cluster. Questions of one article are not independent, and a new
test set would have other articles: such an interval holds only for the articles that were scored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from qa_arch.errors import RunError

Scores = npt.NDArray[np.float64]
Articles = npt.NDArray[np.int64]

Unit = Literal["question", "article", "passage"]
"""Sampling unit of intervals and tests, besides the seeds."""

LEVEL = 0.95
POWER = 0.8
"""Power at which ``Effect.detectable`` would be found."""
GROUPS = 20
"""Maximum number of groups of calibration articles: up to this many articles are left out one by one."""
_TIE = 1e-9
"""Rounding tolerance: means that differ by less count as equal."""


class Interval(NamedTuple):
    low: float
    high: float


class Seeds(NamedTuple):
    """Variance that R runs of a system (or R pairs of runs) contribute to a mean over them."""

    runs: int
    own: float
    """Seed variance excluding the interaction; the estimate may be negative."""
    interaction: float
    """Between seeds and articles; the article term contains it."""


@dataclass(frozen=True, slots=True)
class Variance:
    """Variance of a difference, by source."""

    units: float
    """Articles (or questions); a pooled effect has one more than its degrees of freedom, which need not be
    whole."""
    unit_variance: float
    """Articles (or questions), including their interaction with the seeds."""
    seeds: tuple[Seeds, ...] = ()
    """One item per system with several runs."""
    calibration_units: int = 0
    """Calibration articles."""
    calibration_variance: float = 0.0

    @property
    def interaction(self) -> float:
        """Between seeds and articles, of all systems; ``unit_variance`` contains it."""
        return sum(part.interaction for part in self.seeds)

    @property
    def seed_variance(self) -> float:
        """Of all systems; a negative estimate of one lowers that of the others."""
        return max(0.0, sum(part.own for part in self.seeds))

    @property
    def total(self) -> float:
        return self.unit_variance + self.seed_variance + self.calibration_variance

    @property
    def freedom(self) -> float:
        """Satterthwaite's degrees of freedom, at least 1."""
        parts = [
            (self.unit_variance, self.units - 1),
            (self.calibration_variance, min(self.calibration_units, GROUPS) - 1),  # left out in groups
            *((max(0.0, part.own), part.runs - 1) for part in self.seeds),
        ]
        # Welch and Satterthwaite: degrees of freedom of a sum of estimated variances.
        spread = sum(variance**2 / free for variance, free in parts if variance)
        return max(1.0, self.total**2 / spread) if spread else inf

    def planned(self, *, units: float, runs: int, calibration_units: int | None = None) -> Variance:
        """Variance expected with other numbers of articles, runs per system and calibration articles.

        The part of a seed variance that another system's negative estimate cancels is chance, which more
        articles reduce as they do the interaction; so is the part of the interaction that exceeds the
        variance over articles, which contains it. At the present sizes the plan is the variance itself.
        """
        interactions = self.interaction
        articles = max(0.0, self.unit_variance - interactions) * self.units / units
        contained = min(1.0, self.unit_variance / interactions) if interactions else 1.0
        positive = sum(max(0.0, part.own) for part in self.seeds)
        share = self.seed_variance / positive if positive else 0.0
        # ``lasting`` is what more articles do not reduce: a share of every positive estimate.
        seeds = tuple(
            Seeds(
                runs,
                (lasting + (own - lasting) * self.units / units) * current / runs,
                contained * interaction * current * self.units / (runs * units),
            )
            for current, own, interaction in self.seeds
            for lasting in [share * max(0.0, own)]
        )
        unit_variance = articles + sum(part.interaction for part in seeds)
        current = self.calibration_units
        planned = calibration_units or current
        calibration_variance = self.calibration_variance * current / planned if current else 0.0
        return Variance(units, unit_variance, seeds, planned, calibration_variance)


@dataclass(frozen=True, slots=True)
class Effect:
    """Difference of system B from system A; two-sided tests by Student's t."""

    delta: float
    """Mean of B minus mean of A."""
    variance: Variance

    @property
    def interval(self) -> Interval:
        """95% interval, not corrected for multiple comparisons; clipped to ±100 (percentages)."""
        half = _quantile(self.variance.freedom, (1 + LEVEL) / 2) * self.error
        return Interval(max(-100.0, self.delta - half), min(100.0, self.delta + half))

    @property
    def error(self) -> float:
        """Standard error of ``delta``."""
        return sqrt(self.variance.total)

    @property
    def p(self) -> float:
        """The p-value of the null hypothesis of no difference."""
        return 1.0 if abs(self.delta) < _TIE else min(1.0, 2 * self._tail(-abs(self.delta)))

    def p_equivalent(self, margin: float) -> float:
        """The p-value of a difference of ``margin`` or more, by two one-sided tests (Schuirmann 1987)."""
        return max(self._tail(self.delta - margin), self._tail(-self.delta - margin))

    @property
    def detectable(self) -> float:
        """Minimum detectable effect: the true difference found with power ``POWER`` at these sample sizes."""
        freedom = self.variance.freedom
        return (_quantile(freedom, (1 + LEVEL) / 2) + _quantile(freedom, POWER)) * self.error

    def _tail(self, difference: float) -> float:
        """P(T <= difference / error)."""
        from scipy.special import stdtr

        if not self.error:
            return float(difference >= 0)
        return float(stdtr(self.variance.freedom, difference / self.error))


def mean_interval(scores: Scores, articles: Articles | None = None) -> Interval:
    """95% interval of the mean of ``scores`` ``(R, N)`` over articles (or questions), with the R runs fixed;
    clipped to 0 to 100.

    Raises RunError with a single article, or question.
    """
    mean = scores.mean(0)
    # As a single run, which has no variance over seeds.
    low, high = Effect(float(mean.mean()), _crossed_variance([mean[None]], articles)).interval
    return Interval(max(0.0, low), high)  # 100 is a bound of every effect


def contrast(
    systems: Sequence[Scores],
    *,
    articles: Articles | None = None,
    left_out: Sequence[float] = (),
    calibration_units: int | None = None,
) -> Effect:
    """Sum of the means of ``systems``, signed score arrays ``(R, N)`` on the same N questions.

    ``[-a, b]`` is how much better b is, ``[a, -b, -c, d]`` how much more d gains over c than b over a.
    ``[b - a]`` is the paired form of the first, for run r of b derived from run r of a: what the runs of a
    pair share does not widen the interval. ``articles`` ``(N,)`` are the questions' article numbers. With one
    run of a system its seed variance is unknown: the test is then about that run. ``left_out`` ``(C,)`` are
    the sums with null thresholds fitted without each calibration article in turn, or each group of the
    ``calibration_units`` articles.

    Raises RunError with a single article, or question.
    """
    delta = float(sum(scores.mean() for scores in systems))
    return Effect(delta, _crossed_variance(systems, articles, left_out, calibration_units or len(left_out)))


def pool(effects: Sequence[Effect]) -> tuple[Effect, float]:
    """The effect common to independent experiments, and the p-value of its heterogeneity.

    Fixed effect with weights w_k = 1 / V_k: δ = Σ w_k δ_k / Σ w_k, V = 1 / Σ w_k; degrees of freedom as
    Satterthwaite's. Heterogeneity: Q = Σ w_k (δ_k - δ)², chi-square with K - 1 degrees of freedom (Cochran
    1954). Raises RunError if an effect has no variance.
    """
    from scipy.special import chdtrc

    if not all(effect.variance.total for effect in effects):
        raise RunError("an experiment's difference has no variance, so it cannot be weighted against others")
    weights = np.array([1 / effect.variance.total for effect in effects])
    deltas, shares = np.array([effect.delta for effect in effects]), weights / weights.sum()
    delta, variance = float(shares @ deltas), float(1 / weights.sum())
    freedoms = np.array([effect.variance.freedom for effect in effects])
    freedom = float(1 / (shares**2 / freedoms).sum())  # V_k w_k² / (Σ w)² = V share_k
    heterogeneity = float(weights @ (deltas - delta) ** 2)
    return Effect(delta, Variance(freedom + 1, variance)), float(chdtrc(len(effects) - 1, heterogeneity))


def power(variance: Variance, difference: float) -> float:
    """Power to detect a true ``difference`` at level 1 - ``LEVEL``, two-sided (noncentral t)."""
    from scipy.special import nctdtr

    if not variance.total:
        return 1.0 if difference else 0.0
    shift = abs(difference) / sqrt(variance.total)
    critical = _quantile(variance.freedom, (1 + LEVEL) / 2)
    # SciPy gives NaN at some large shifts, which leave nothing below ``critical``, or above it.
    missed = np.nan_to_num(nctdtr(variance.freedom, shift, critical), nan=0.0)
    missed_below = np.nan_to_num(nctdtr(variance.freedom, -shift, critical), nan=1.0)
    return float(2 - missed - missed_below)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values with Holm's correction for multiple tests (Holm 1979), in the given order; at most 1."""
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        # Never below an earlier one: a larger p must not become significant before a smaller.
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def in_order(families: Iterable[Sequence[float]]) -> list[list[float]]:
    """Adjusted p-values of families tested in an order fixed in advance, each only after all before it.

    Holm within a family, and none below the largest of an earlier family (serial gatekeeping: Westfall &
    Krishen 2001); with families of one test this is the fixed-sequence procedure, which needs no correction.
    """
    highest, adjusted = 0.0, []
    for family in families:
        adjusted.append([max(highest, p) for p in holm(family)])
        highest = max(adjusted[-1], default=highest)
    return adjusted


def _crossed_variance(
    systems: Sequence[Scores],
    articles: Articles | None,
    left_out: Sequence[float] = (),
    calibration_units: int = 0,
) -> Variance:
    """Variance of the sum of the means of ``systems``, signed score arrays ``(R, N)``."""
    questions = systems[0].shape[1]
    # Numbered without gaps, as a part of the questions lacks some of the articles.
    number = np.arange(questions) if articles is None else np.unique(articles, return_inverse=True)[1]
    units = int(number.max()) + 1
    if units < 2:
        unit = "question" if articles is None else "article"
        raise RunError(f"an interval over {unit}s needs several, and the scores are of a single {unit}")
    # n/(n-1): deviations from a mean of the same articles are too small.
    corrected = units / (units - 1) / questions**2
    summed, seeds = np.zeros(units), []
    for scores in systems:
        means = scores.mean(1)
        sums = np.stack([np.bincount(number, run, units) for run in scores - means[:, None]])  # (R, J)
        # Systems answer the same articles, so their deviations are added before they are squared.
        summed += sums.mean(0)
        if (runs := len(scores)) > 1:
            # What seeds and articles do together is in both variances: that of the seeds leaves it out.
            crossed = corrected * float(((sums - sums.mean(0)) ** 2).sum()) / (runs * (runs - 1))
            seeds.append(Seeds(runs, float(means.var(ddof=1)) / runs - crossed, crossed))
    # Jackknife: left-out estimates lie (n-1) times closer together than independent ones.
    calibration_variance = (len(left_out) - 1) * float(np.var(left_out)) if len(left_out) > 1 else 0.0
    unit_variance = corrected * float((summed**2).sum())
    return Variance(units, unit_variance, tuple(seeds), calibration_units, calibration_variance)


def _quantile(freedom: float, share: float) -> float:
    from scipy.special import ndtri, stdtrit

    return float(ndtri(share) if freedom == inf else stdtrit(freedom, share))
