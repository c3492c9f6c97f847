"""Calibrated confidence, and the curves over null thresholds: by hand and against the official arithmetic."""

from __future__ import annotations

import math

import numpy as np
import pytest

from qa_arch.metrics.confidence import BOUNDS, confidences, fit_temperature, reliability, thresholds

INF = math.inf


def drawn(questions: int, temperature: float, seed: int = 0):
    """Candidates whose first row is the null, and whether the best is right: drawn at ``temperature``."""
    draw = np.random.default_rng(seed)
    size = 5
    score = draw.normal(0, 6, (questions, size))
    weight = np.exp((score - score.max(1, keepdims=True)) / temperature)
    share = weight / weight.sum(1, keepdims=True)
    truth = (share.cumsum(1) > draw.random((questions, 1))).argmax(1)
    offsets = np.arange(questions + 1) * size
    return score.ravel(), offsets[:-1], offsets, truth == score.argmax(1)


def test_by_hand_with_the_null_lowered_by_the_threshold():
    score, offsets = np.array([3.0, 1.0, 2.0, 5.0, 4.0]), np.array([0, 3, 5])
    null = np.array([1, 3])
    actual = confidences(score, null, offsets, threshold=-2.0, temperature=2.0)
    first = [math.exp(1.5), math.exp(1.5), math.exp(1.0)]  # the null's 1 is 3 here
    second = [math.exp(3.5), math.exp(2.0)]
    assert actual == pytest.approx(
        [x / sum(first) for x in first] + [x / sum(second) for x in second], rel=1e-12
    )


@pytest.mark.parametrize(("threshold", "null"), [(INF, 0.0), (-INF, 1.0)])
def test_an_infinite_threshold_settles_it(threshold, null):
    actual = confidences(
        np.array([2.0, 1.0, 0.0]), np.array([1]), np.array([0, 3]), threshold=threshold, temperature=1.5
    )
    assert actual[1] == null
    assert actual.sum() == pytest.approx(1)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_temperature_of_the_data_is_recovered_and_its_confidence_is_calibrated(temperature):
    score, null, offsets, right = drawn(20_000, temperature)
    fitted = fit_temperature(score, null, offsets, right, threshold=0.0)
    assert fitted == pytest.approx(temperature, rel=0.06)
    every = confidences(score, null, offsets, threshold=0.0, temperature=fitted)
    assert reliability(every.reshape(-1, 5).max(1), right).ece < 0.01


def test_no_other_temperature_has_a_lower_loss():
    score, null, offsets, right = drawn(300, 2.0, seed=1)
    fitted = fit_temperature(score, null, offsets, right, threshold=1.0)

    def loss(temperature: float) -> float:
        every = confidences(score, null, offsets, threshold=1.0, temperature=temperature)
        top = np.maximum.reduceat(every, offsets[:-1])
        with np.errstate(divide="ignore"):
            return float(-np.mean(np.log(np.where(right, top, 1 - top))))

    others = np.exp(np.linspace(*np.log(BOUNDS), 400))
    assert loss(fitted) <= min(map(loss, others)) + 1e-7


def test_what_cannot_be_fitted_is_1_and_certainty_is_bounded():
    nothing = np.zeros(0), np.zeros(0, int), np.zeros(1, int), np.zeros(0, bool)
    assert fit_temperature(*nothing, threshold=0.0) == 1.0
    alone = np.array([1.0, INF]), np.array([0, 1]), np.array([0, 1, 2]), np.array([True, False])
    assert fit_temperature(*alone, threshold=0.0) == 1.0
    score, null, offsets, _ = drawn(50, 1.0)
    for right, bound in ((True, BOUNDS[0]), (False, BOUNDS[1])):
        assert fit_temperature(score, null, offsets, np.full(50, right), threshold=0.0) == bound


NAN = math.nan


def made(seed=0, n=60):
    rng = np.random.default_rng(seed)
    answerable = rng.random(n) < 0.6
    value = np.where(answerable, rng.choice([0.0, 0.5, 1.0], size=n), 0.0)
    odds = rng.integers(-6, 7, size=n) / 2 - 2.0 * answerable  # with ties
    return odds, value, answerable


def plain(odds, value, answerable, margin):
    """Everything at one margin, question by question."""
    answered = [o <= margin for o in odds]
    marks = [v if a else float(not h) for v, a, h in zip(value, answered, answerable, strict=True)]
    silent = [not a for a in answered]

    def mean(picked):
        return 100 * sum(picked) / len(picked)

    given = [v if h else 0.0 for v, a, h in zip(value, answered, answerable, strict=True) if a]
    right_to_abstain = [not h for h, s in zip(answerable, silent, strict=True) if s]
    return {
        "coverage": mean(answered),
        "score": mean(marks),
        "has_answer": mean([m for m, h in zip(marks, answerable, strict=True) if h]),
        "no_answer": mean([m for m, h in zip(marks, answerable, strict=True) if not h]),
        "risk": 100 - mean(given) if given else NAN,
        "precision": mean(right_to_abstain) if right_to_abstain else 100.0,
        "recall": mean([s for s, h in zip(silent, answerable, strict=True) if not h]),
    }


@pytest.mark.parametrize("seed", range(3))
def test_every_margin_scores_as_question_by_question(seed):
    columns = made(seed)
    found = thresholds(*columns, points=1000)
    assert len(found.margin) == len(set(columns[0])) + 1
    for index, margin in enumerate(found.margin):
        expected = plain(*columns, margin)
        assert {name: getattr(found, name)[index] for name in expected} == pytest.approx(
            expected, nan_ok=True
        )


def test_area_is_the_mean_risk_over_coverages():
    odds, value, answerable = (
        np.array([1.0, 2, 3, 4]),
        np.array([1.0, 0, 1, 0]),
        np.array([True] * 3 + [False]),
    )
    risks = [0, 50, 100 / 3, 50]
    assert thresholds(odds, value, answerable).area == pytest.approx(sum(risks) / 4)


def test_curves_end_where_a_value_is_not_known():
    odds, answerable = np.array([-3.0, -2, -1, 0, 1]), np.array([True, False, True, True, True])
    found = thresholds(odds, np.array([1, NAN, 0.5, NAN, 1]), answerable)
    assert found.margin.tolist() == [-4, -3, -2, -1]  # the unanswerable question's own value is 0
    assert found.area is None
    assert found.score.tolist() == [20, 40, 20, 30]


@pytest.mark.parametrize("answerable", [True, False])
def test_sets_of_one_sort(answerable):
    found = thresholds(np.array([0.0, 1.0]), np.array([1.0, 0.0]), np.array([answerable] * 2))
    assert np.isnan(found.no_answer if answerable else found.has_answer).all()
    assert not np.isnan(found.score).any()


def test_nan_odds_never_abstain_and_infinite_ones_always():
    found = thresholds(np.array([NAN, math.inf]), np.array([1.0, 0.0]), np.array([True, True]))
    assert found.margin.tolist()[1:] == [-math.inf, math.inf]
    assert found.score.tolist() == [0, 50, 50]


def test_reliability_by_hand():
    confidence = np.array([0.05, 0.15, 0.15, 0.95, 1.0, NAN])
    found = reliability(confidence, np.array([False, True, False, True, True, True]))
    assert found.confidence == pytest.approx([0.05, 0.15, 0.975])
    assert found.observed == pytest.approx([0, 0.5, 1])
    assert found.count.tolist() == [1, 2, 2]
    assert found.ece == pytest.approx((0.05 + 2 * 0.35 + 2 * 0.025) / 5)
