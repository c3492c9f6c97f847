"""Probability that a question is answerable: a logistic function of the null odds, fitted on calibration."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from qa_arch.metrics.threshold import class_weights

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
_STEPS = 100
_SETTLED = 1e-10


class Logistic(NamedTuple):
    """P(answerable) = 1 / (1 + exp(-(intercept + slope * odds)))."""

    slope: float
    intercept: float


def answerable_probability(odds: Floats, fitted: Logistic) -> Floats:
    """Of each question by its null odds; infinite odds are sure of it either way, NaN odds stay NaN."""
    with np.errstate(invalid="ignore"):  # infinite odds and a slope of 0
        logit = np.nan_to_num(fitted.intercept + fitted.slope * odds, nan=fitted.intercept)
    probability = 1 / (1 + np.exp(-np.clip(logit, -700, 700)))
    return np.where(np.isnan(odds), np.nan, probability)


def fit_answerability(odds: Floats, answerable: Bools, prior: float | None = None) -> Logistic | None:
    """Logistic regression of ``answerable`` on the null odds, classes weighted as ``class_weights`` has it.

    Platt 1999: the targets are (N+ + 1) / (N+ + 2) and 1 / (N- + 2), so that questions which a threshold
    separates without an error have a finite slope. Newton's method with halved steps, on standardised odds
    (Lin et al. 2007). Questions with odds that are not finite are left out; None without both kinds.
    """
    finite = np.isfinite(odds)
    odds, answerable = odds[finite], answerable[finite]
    positives = int(answerable.sum())
    negatives = len(answerable) - positives
    if not positives or not negatives:
        return None
    centre, scale = float(odds.mean()), float(odds.std()) or 1.0
    inputs = np.stack([(odds - centre) / scale, np.ones(len(odds))])
    target = np.where(answerable, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    of_negative, of_positive = class_weights(answerable.tolist(), prior)
    weight = np.where(answerable, of_positive, of_negative)
    slope, intercept = _newton(inputs, target, weight).tolist()
    return Logistic(slope / scale, intercept - slope * centre / scale)


def _newton(inputs: Floats, target: Floats, weight: Floats) -> Floats:
    """The ``(2,)`` coefficients of least weighted cross-entropy; ``inputs`` is ``(2, N)``."""
    coefficients = np.zeros(2)
    loss = _cross_entropy(inputs, target, weight, coefficients)
    for _ in range(_STEPS):
        probability = 1 / (1 + np.exp(-coefficients @ inputs))
        gradient = inputs @ (weight * (probability - target))
        curvature = (inputs * weight * probability * (1 - probability)) @ inputs.T
        step = np.linalg.solve(curvature + 1e-12 * np.eye(2), gradient)
        size = 1.0
        while (new := _cross_entropy(inputs, target, weight, coefficients - size * step)) > loss:
            size /= 2
            if size < _SETTLED:
                return coefficients
        coefficients, settled, loss = coefficients - size * step, loss - new < _SETTLED, new
        if settled:
            break
    return coefficients


def _cross_entropy(inputs: Floats, target: Floats, weight: Floats, coefficients: Floats) -> float:
    logit = coefficients @ inputs
    return float(np.sum(weight * (np.logaddexp(0, logit) - target * logit)))
