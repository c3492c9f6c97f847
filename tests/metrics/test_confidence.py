"""Calibrated confidence: softmax by hand, the temperature that data was drawn at, the answer given on top."""

from __future__ import annotations

import math

import numpy as np
import pytest

from qa_arch.metrics.confidence import BOUNDS, confidences, fit_temperature, reliability

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
