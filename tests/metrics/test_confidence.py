"""Calibrated confidence and threshold curves, by hand and question by question."""

import math

import numpy as np
import pytest

from qa_arch.metrics.abstention import BOUNDS, confidences, fit_temperature, reliability, thresholds

INF = math.inf


def sample_candidates(questions: int, temperature: float, seed: int = 0):
    """Scores of 5 candidates each, the null first, and correctness of the best one at ``temperature``."""
    rng = np.random.default_rng(seed)
    size = 5
    score = rng.normal(0, 6, (questions, size))
    weight = np.exp((score - score.max(1, keepdims=True)) / temperature)
    share = weight / weight.sum(1, keepdims=True)
    truth = (share.cumsum(1) > rng.random((questions, 1))).argmax(1)
    offsets = np.arange(questions + 1) * size
    return score.ravel(), offsets[:-1], offsets, truth == score.argmax(1)


def test_confidence_by_hand_with_a_null_threshold():
    score, offsets = np.array([3.0, 1.0, 2.0, 5.0, 4.0]), np.array([0, 3, 5])
    null = np.array([1, 3])
    actual = confidences(score, null, offsets, threshold=-2.0, temperature=2.0)
    first = [math.exp(1.5), math.exp(1.5), math.exp(1.0)]  # the null's 1 is 3 here
    second = [math.exp(3.5), math.exp(2.0)]
    assert actual == pytest.approx(
        [x / sum(first) for x in first] + [x / sum(second) for x in second], rel=1e-12
    )


@pytest.mark.parametrize(("threshold", "null"), [(INF, 0.0), (-INF, 1.0)])
def test_infinite_threshold_decides_the_null(threshold, null):
    actual = confidences(
        np.array([2.0, 1.0, 0.0]), np.array([1]), np.array([0, 3]), threshold=threshold, temperature=1.5
    )
    assert actual[1] == null
    assert actual.sum() == pytest.approx(1)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_fitted_temperature_is_recovered_and_calibrated(temperature):
    score, null, offsets, right = sample_candidates(20_000, temperature)
    fitted = fit_temperature(score, null, offsets, right, threshold=0.0)
    assert fitted == pytest.approx(temperature, rel=0.06)
    all_confidences = confidences(score, null, offsets, threshold=0.0, temperature=fitted)
    assert reliability(all_confidences.reshape(-1, 5).max(1), right).ece < 1


def test_fitted_temperature_minimises_the_loss():
    score, null, offsets, right = sample_candidates(300, 2.0, seed=1)
    fitted = fit_temperature(score, null, offsets, right, threshold=1.0)

    def loss(temperature: float) -> float:
        all_confidences = confidences(score, null, offsets, threshold=1.0, temperature=temperature)
        top = np.maximum.reduceat(all_confidences, offsets[:-1])
        with np.errstate(divide="ignore"):
            return float(-np.mean(np.log(np.where(right, top, 1 - top))))

    others = np.exp(np.linspace(*np.log(BOUNDS), 400))
    assert loss(fitted) <= min(map(loss, others)) + 1e-7


def test_temperature_is_1_if_unfittable_and_bounded_otherwise():
    empty = np.zeros(0), np.zeros(0, int), np.zeros(1, int), np.zeros(0, bool)
    assert fit_temperature(*empty, threshold=0.0) == 1.0
    single = np.array([1.0, INF]), np.array([0, 1]), np.array([0, 1, 2]), np.array([True, False])
    assert fit_temperature(*single, threshold=0.0) == 1.0
    score, null, offsets, _ = sample_candidates(50, 1.0)
    for right, bound in ((True, BOUNDS[0]), (False, BOUNDS[1])):
        assert fit_temperature(score, null, offsets, np.full(50, right), threshold=0.0) == bound


NAN = math.nan


def sample_odds(seed=0, n=60):
    rng = np.random.default_rng(seed)
    answerable = rng.random(n) < 0.6
    value = np.where(answerable, rng.choice([0.0, 0.5, 1.0], size=n), 0.0)
    odds = rng.integers(-6, 7, size=n) / 2 - 2.0 * answerable  # with ties
    return odds, value, answerable


def scores_at(odds, value, answerable, threshold):
    """Scores of every curve at one null threshold, question by question."""
    answered = [o <= threshold for o in odds]
    scores = [v if a else float(not h) for v, a, h in zip(value, answered, answerable, strict=True)]
    abstained = [not a for a in answered]

    def mean(values):
        return 100 * sum(values) / len(values)

    answer_values = [v if h else 0.0 for v, a, h in zip(value, answered, answerable, strict=True) if a]
    correct_abstentions = [not h for h, s in zip(answerable, abstained, strict=True) if s]
    return {
        "coverage": mean(answered),
        "score": mean(scores),
        "has_answer": mean([s for s, h in zip(scores, answerable, strict=True) if h]),
        "no_answer": mean([s for s, h in zip(scores, answerable, strict=True) if not h]),
        "risk": 100 - mean(answer_values) if answer_values else NAN,
        "precision": mean(correct_abstentions) if correct_abstentions else 100.0,
        "recall": mean([s for s, h in zip(abstained, answerable, strict=True) if not h]),
    }


@pytest.mark.parametrize("seed", range(3))
def test_threshold_curves_match_scoring_question_by_question(seed):
    columns = sample_odds(seed)
    curves, _ = thresholds(*columns, points=1000)
    assert len(curves["threshold"]) == len(set(columns[0])) + 1
    for index, threshold in enumerate(curves["threshold"]):
        expected = scores_at(*columns, threshold)
        assert {name: curves[name][index] for name in expected} == pytest.approx(expected, nan_ok=True)


def test_area_is_the_mean_risk_over_coverages():
    odds, value, answerable = (
        np.array([1.0, 2, 3, 4]),
        np.array([1.0, 0, 1, 0]),
        np.array([True] * 3 + [False]),
    )
    risks = [0, 50, 100 / 3, 50]
    assert thresholds(odds, value, answerable)[1] == pytest.approx(sum(risks) / 4)


def test_curves_end_at_an_unknown_value():
    odds, answerable = np.array([-3.0, -2, -1, 0, 1]), np.array([True, False, True, True, True])
    curves, area = thresholds(odds, np.array([1, NAN, 0.5, NAN, 1]), answerable)
    assert curves["threshold"].tolist() == [-4, -3, -2, -1]  # the value of the unanswerable question is 0
    assert area is None
    assert curves["score"].tolist() == [20, 40, 20, 30]


@pytest.mark.parametrize("answerable", [True, False])
def test_sets_with_a_single_kind_of_question(answerable):
    curves, _ = thresholds(np.array([0.0, 1.0]), np.array([1.0, 0.0]), np.array([answerable] * 2))
    assert np.isnan(curves["no_answer"] if answerable else curves["has_answer"]).all()
    assert not np.isnan(curves["score"]).any()


def test_nan_odds_never_abstain_and_infinite_ones_always():
    curves, _ = thresholds(np.array([NAN, math.inf]), np.array([1.0, 0.0]), np.array([True, True]))
    assert curves["threshold"].tolist()[1:] == [-math.inf, math.inf]
    assert curves["score"].tolist() == [0, 50, 50]


def test_reliability_by_hand():
    confidence = np.array([0.05, 0.15, 0.15, 0.95, 1.0, NAN])
    result = reliability(confidence, np.array([False, True, False, True, True, True]))
    assert result.confidence == pytest.approx([0.05, 0.15, 0.975])
    assert result.observed == pytest.approx([0, 0.5, 1])
    assert result.count.tolist() == [1, 2, 2]
    assert result.ece == pytest.approx((5 + 2 * 35 + 2 * 2.5) / 5)
