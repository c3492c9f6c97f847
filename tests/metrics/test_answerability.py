"""The fitted probability of "answerable": against a plain minimum, weights, and sets that separate."""

from __future__ import annotations

import math

import numpy as np
import pytest

from qa_arch.metrics.confidence import reliability
from qa_arch.metrics.threshold import Logistic, answerable_probability, fit_answerability


def drawn(questions=4000, *, share=0.4, slope=-0.7, intercept=0.3, seed=0):
    """Null odds and whether questions are answerable, by a logistic law; ``share`` of them unanswerable."""
    rng = np.random.default_rng(seed)
    odds = rng.normal(scale=3, size=8 * questions)
    answerable = rng.random(8 * questions) < 1 / (1 + np.exp(-(intercept + slope * odds)))
    negatives = np.flatnonzero(~answerable)[: int(share * questions)]
    positives = np.flatnonzero(answerable)[: questions - len(negatives)]
    chosen = np.sort(np.concatenate([positives, negatives]))
    return odds[chosen], answerable[chosen]


@pytest.mark.parametrize("prior", [None, 0.5, 0.8])
def test_it_is_the_minimum_of_the_weighted_loss(prior):
    odds, answerable = drawn(300)
    fitted = fit_answerability(odds, answerable, prior)
    n, p = (~answerable).sum(), answerable.sum()
    target = np.where(answerable, (p + 1) / (p + 2), 1 / (n + 2))
    share = n / len(odds) if prior is None else prior
    weight = np.where(answerable, (1 - share) / p, share / n)

    def loss(slope, intercept):
        probability = 1 / (1 + np.exp(-(intercept + slope * odds)))
        return -(weight * (target * np.log(probability) + (1 - target) * np.log(1 - probability))).sum()

    best = loss(*fitted)
    for slope, intercept in ((0.01, 0), (-0.01, 0), (0, 0.01), (0, -0.01)):
        assert loss(fitted.slope + slope, fitted.intercept + intercept) > best


def test_with_the_prior_it_is_calibrated_on_a_set_of_that_share():
    odds, answerable = drawn(share=0.4)
    other_odds, other = drawn(share=0.6, seed=1)
    own, stated = (fit_answerability(odds, answerable, prior) for prior in (None, 0.6))
    errors = [reliability(answerable_probability(other_odds, f), other).ece for f in (own, stated)]
    assert errors[1] < 0.03 < errors[0]


def test_what_separates_has_a_finite_slope_and_odds_of_any_size_are_taken():
    fitted = fit_answerability(np.array([-2.0, -1, 1, 2]), np.array([True, True, False, False]))
    assert -10 < fitted.slope < 0
    huge = fit_answerability(np.array([-1e100, -1e99, 1e99, 1e100]), np.array([True, True, False, False]))
    assert huge.slope < 0
    assert all(map(math.isfinite, huge))


def test_nothing_to_fit_and_odds_that_are_no_numbers():
    assert fit_answerability(np.array([1.0, 2]), np.array([True, True])) is None
    assert fit_answerability(np.array([np.inf, 2.0]), np.array([True, False])) is None
    odds = np.array([-np.inf, 0.0, np.inf, np.nan])
    probability = answerable_probability(odds, Logistic(-1.0, 0.0))
    assert probability[:3].tolist() == pytest.approx([1.0, 0.5, 0.0])
    assert math.isnan(probability[3])
    assert answerable_probability(odds, Logistic(0.0, 0.0))[:3].tolist() == [0.5, 0.5, 0.5]
