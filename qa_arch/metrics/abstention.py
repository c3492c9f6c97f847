"""Abstaining: null threshold, probability that a question is answerable, confidence in an answer.

Also the curves of risk, coverage and reliability.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, nextafter

import numpy as np
import numpy.typing as npt

from qa_arch.errors import DataError
from qa_arch.metrics.squad import QuestionScore, Scores, aggregate, require_predictions, score_questions
from qa_arch.records import CALIBRATED, FORCED, GIVEN, ORACLE, THRESHOLD_0
from qa_arch.types import Prediction, QuestionSet

_TIE = 1e-9
"""Rounding tolerance: sums of F1 that differ by less count as equal."""


def class_weights(answerable: Sequence[bool], prior: float | None) -> tuple[float, float]:
    """Weights of an unanswerable and an answerable question that give the former the share ``prior``.

    Their mean over the questions is 1. Both are 1 without a prior or if one kind is missing.
    """
    positives = sum(answerable)
    negatives = len(answerable) - positives
    if prior is None or not positives or not negatives:
        return 1.0, 1.0
    return prior * len(answerable) / negatives, (1 - prior) * len(answerable) / positives


def fit_threshold(
    null_odds: Sequence[float],
    f1: Sequence[float],
    answerable: Sequence[bool],
    prior: float | None = None,
    width: float | None = None,
) -> float:
    """Null threshold with the highest mean F1, abstaining where ``null_odds > threshold``.

    Args:
        null_odds: null score minus best span score, per question.
        f1: F1 of the best span as the answer, in 0..1.
        answerable: whether the question has an answer; if not, abstaining is right.
        prior: share that the unanswerable questions are weighted to; None: their own share.
        width: None, or the width of the smoothing in standard deviations of the finite null odds.

    Only cuts between distinct odds are considered. The threshold lies midway between the odds on its two
    sides, or 1 beyond the outermost. On ties the threshold nearest 0 wins, and of two equally near the
    negative one. Questions with NaN or infinite odds behave the same at every threshold and are left out; if
    no other questions remain, the threshold is 0.

    F1 is a step function of the threshold t, whose highest step depends on single questions: a jackknife over
    articles then overstates the variance of its argmax. With ``width`` the function is smoothed, and the
    threshold is that of the highest Σ_i gain_i σ((t - odds_i) / h), h = width times the standard deviation.
    """
    rows = zip(null_odds, f1, answerable, strict=True)
    weights = class_weights(answerable, prior)
    ranked = sorted(
        (odds, weights[has_answer] * (value - (not has_answer)))  # gain of answering over abstaining
        for odds, value, has_answer in rows
        if isfinite(odds)
    )
    if not ranked:
        return 0.0
    if width is not None and ranked[0][0] < ranked[-1][0]:  # equal odds have no spread
        return _smooth_argmax(np.array(ranked), width)
    gain = best_gain = 0.0  # from answering the questions so far, over abstaining everywhere
    lowest = ranked[0][0]
    best = min(lowest - 1, nextafter(lowest, -inf))  # huge odds minus 1 are themselves
    # A threshold cannot part equal odds, so a cut is tried only where they change.
    following = [odds for odds, _ in ranked[1:]] + [None]
    for (odds, change), above in zip(ranked, following, strict=True):
        gain += change
        if above == odds:
            continue
        cut = odds + 1 if above is None else _between(odds, above)
        # Among equally good thresholds the one nearest to 0, so that small noise decides nothing.
        nearer = (abs(cut), cut) < (abs(best), best)
        if gain > best_gain + _TIE or (gain > best_gain - _TIE and nearer):
            best, best_gain = cut, max(gain, best_gain)  # a row of ties must not lower the bar
    return best


def _smooth_argmax(ranked: Floats, width: float) -> float:
    """Threshold of the highest sum of gains (of answering), each smoothed around its null odds; ``ranked``
    holds pairs of the two, shape (N, 2), by increasing odds."""
    from scipy.optimize import minimize_scalar
    from scipy.special import expit

    odds, gains = ranked.T
    scale = width * float(odds.std())

    def lost(threshold: float) -> float:
        return -float(gains @ expit((threshold - odds) / scale))

    step = scale / 4  # finer than anything that the smoothing leaves
    grid = np.arange(odds[0] - 4 * scale, odds[-1] + 4 * scale + step, step)
    # The smoothed sum has several peaks: the highest is found on a grid, then refined.
    start = float(min(grid, key=lost))
    return float(minimize_scalar(lost, bounds=(start - step, start + step), method="bounded").x)


def calibrated_threshold(
    questions: QuestionSet,
    answers: Sequence[Prediction],
    prior: float | None = None,
    width: float | None = None,
) -> float:
    """Null threshold of the highest F1 on a calibration split, ``questions`` and the model's ``answers``; inf
    for SQuAD 1.1, all of whose questions have an answer.

    Raises DataError if a question has no answer record, or several.
    """
    if questions.protocol == "1.1":
        return inf
    return _fit(*_score(questions, answers), prior, width)


def at_thresholds(
    questions: QuestionSet, answers: Sequence[Prediction], calibrated: float, given: float | None = None
) -> dict[str, Scores]:
    """Scores of the answers by operating point: threshold 0, calibrated, oracle, given and forced answer.

    The texts are scored only once. Raises DataError if a question has no answer record, or several.
    """
    scored, odds = _score(questions, answers)
    thresholds = {THRESHOLD_0: 0.0, CALIBRATED: calibrated, ORACLE: _fit(scored, odds)}
    if given is not None:
        thresholds[GIVEN] = given
    points = {
        name: aggregate(scored, "2.0", null_scores=odds, threshold=threshold)
        for name, threshold in thresholds.items()
    }
    return {**points, FORCED: aggregate(scored, "2.0")}


def best_texts(answers: Sequence[Prediction]) -> dict[str, str]:
    """Id -> text of the best span, regardless of the null score; "" if no span had a finite score.

    Raises DataError if two answers have the same id.
    """
    texts = {answer.id: answer.best.text if answer.best else "" for answer in answers}
    if len(texts) < len(answers):
        raise DataError(f"{len(answers)} answers to {len(texts)} questions; give one answer per question")
    return texts


def _score(
    questions: QuestionSet, answers: Sequence[Prediction]
) -> tuple[tuple[QuestionScore, ...], dict[str, float]]:
    """Scores of the best spans, and id -> null odds."""
    texts = best_texts(answers)
    require_predictions(questions, texts)
    return score_questions(questions, texts, "2.0"), {answer.id: answer.null_odds for answer in answers}


def _fit(
    scored: Sequence[QuestionScore],
    odds: Mapping[str, float],
    prior: float | None = None,
    width: float | None = None,
) -> float:
    columns = [odds[s.id] for s in scored], [s.f1 for s in scored], [s.answerable for s in scored]
    return fit_threshold(*columns, prior, width)


def _between(low: float, high: float) -> float:
    """A float in ``[low, high)``: the midpoint, if representable."""
    middle = low + (high - low) / 2
    # Between neighbouring floats there is none: the midpoint rounds to one of the two, perhaps ``high``. That
    # of huge odds, whose difference overflows, is infinite.
    return middle if low <= middle < high else nextafter(high, low)


def answerable_probability(odds: Floats, slope: float, intercept: float) -> Floats:
    """P(answerable) = 1 / (1 + exp(-(intercept + slope * odds))) of each question from its null odds; 0 or 1
    for infinite odds, NaN for NaN."""
    with np.errstate(invalid="ignore"):  # infinite odds and a slope of 0
        logit = np.nan_to_num(intercept + slope * odds, nan=intercept)
    probability = 1 / (1 + np.exp(-np.clip(logit, -700, 700)))  # exp overflows at 710
    return np.where(np.isnan(odds), np.nan, probability)


def fit_answerability(
    odds: Floats, answerable: Bools, prior: float | None = None
) -> tuple[float, float] | None:
    """Slope and intercept of the logistic regression of ``answerable`` on the null odds, with the classes
    weighted by ``class_weights``.

    The targets are (N+ + 1) / (N+ + 2) and 1 / (N- + 2) (Platt 1999), so the slope stays finite even if a
    threshold separates the classes. Fitted by BFGS on standardised odds. Questions with non-finite odds are
    left out; None without both kinds.
    """
    from scipy.optimize import minimize
    from scipy.special import expit

    finite = np.isfinite(odds)
    odds, answerable = odds[finite], answerable[finite]
    positives = int(answerable.sum())
    negatives = len(answerable) - positives
    if not positives or not negatives:
        return None
    # The standard deviation of equal odds is often not 0 but a rounding error.
    centre, scale = float(odds.mean()), float(odds.std()) if np.ptp(odds) else 1.0
    inputs = np.stack([(odds - centre) / scale, np.ones(len(odds))])  # (2, N)
    target = np.where(answerable, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    negative_weight, positive_weight = class_weights(answerable.tolist(), prior)
    weight = np.where(answerable, positive_weight, negative_weight)

    def cross_entropy(coefficients: Floats) -> tuple[float, Floats]:
        """Weighted mean loss and its gradient."""
        logit = coefficients @ inputs
        loss = weight * (np.logaddexp(0, logit) - target * logit)  # log(1 + e^x) - t x
        return loss.mean(), inputs @ (weight * (expit(logit) - target)) / len(odds)

    fitted = minimize(cross_entropy, np.zeros(2), jac=True, method="BFGS", options={"gtol": 1e-10})
    slope, intercept = fitted.x.tolist()
    return slope / scale, intercept - slope * centre / scale  # on the odds as they are


Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

POINTS = 120
"""Maximum number of points on a curve."""
BINS = 10
BOUNDS = 0.1, 10.0
"""Lowest and highest temperature: a small calibration split cannot claim certainty."""
_ROUNDS, _POINTS = 4, 21
"""Each round of the search is between the neighbours of the best point so far."""


def softmax(
    score: npt.NDArray, offsets: Ints, temperature: float = 1.0, counted: Bools | None = None
) -> Floats:
    """Softmax of ``score / temperature`` within each question, shape (M,); a score of +inf takes all mass.

    Candidates with ``counted`` false are left out of the denominator.
    """
    if not len(score):
        return np.zeros(0)
    weight = np.exp(-_distance(score, offsets) / temperature)
    # ``reduceat`` needs a candidate in every question, which "no answer" always is.
    total = np.add.reduceat(weight if counted is None else weight * counted, offsets[:-1])
    return weight / np.repeat(total, np.diff(offsets))


def confidences(
    score: npt.NDArray,
    null: Ints,
    offsets: Ints,
    *,
    threshold: float,
    temperature: float,
    counted: Bools | None = None,
) -> Floats:
    """Probability that each candidate is right, shape (M,); ``null`` (Q,) are the rows of "no answer".

    At threshold ``inf``, "no answer" has probability 0. ``counted`` as in ``softmax``.
    """
    return softmax(_shifted(score, null, threshold), offsets, temperature, counted)


def fit_temperature(
    score: npt.NDArray, null: Ints, offsets: Ints, right: Bools, *, threshold: float
) -> float:
    """Temperature that minimises the log loss of the confidence in the answers given.

    ``right`` (Q,): whether the answer given at ``threshold`` is right (a span that matches a gold answer
    exactly, "no answer" to an unanswerable question). The loss is that of this event, not the likelihood of
    the gold candidate (Guo et al. 2017, section 2): it fits the probability that users see, and it counts
    questions whose gold answer is not among the candidates (too long, or cut by the tokens), for which that
    likelihood is 0 at any temperature. The two agree where the answer given is right. A loss over all
    candidates would be dominated by the many wrong ones, and by near-duplicates that are right together but
    share one probability.

    Bounded grid search over log T, identical on every machine, to four decimals; 1 without questions or if
    the temperature makes no difference.
    """
    if not len(right):
        return 1.0
    distance = _distance(_shifted(score, null, threshold), offsets)
    first = np.flatnonzero(distance == 0)
    # One of the tops is the answer given; equal ones compete with it.
    _, place = np.unique(np.repeat(np.arange(len(right)), np.diff(offsets))[first], return_index=True)
    distance[first[place]] = np.inf  # leaves the other candidates

    # With o = Σ exp(-d / T) over the others, p = 1 / (1 + o), -log p = log(1 + o), and
    # -log(1 - p) = log(1 + o) - log(o).
    def loss(log_temperature: float) -> float:
        others = np.add.reduceat(np.exp(-distance / np.exp(log_temperature)), offsets[:-1])
        others = np.maximum(others, np.finfo(np.float64).tiny)  # log(0) if there are no others
        return float(np.mean(np.log1p(others) - np.where(right, 0.0, np.log(others))))

    return round(float(np.exp(_minimise(loss, *np.log(BOUNDS)))), 4)


def _minimise(loss: Callable[[float], float], low: float, high: float) -> float:
    """Grid search for the minimum of ``loss`` between ``low`` and ``high``; on ties the point nearest 0."""
    best = 0.0
    for _ in range(_ROUNDS):
        points = sorted(np.linspace(low, high, _POINTS).tolist(), key=abs)
        best = min(points, key=loss)
        step = (high - low) / (_POINTS - 1)
        low, high = max(low, best - step), min(high, best + step)
    return best


def _shifted(score: npt.NDArray, null: Ints, threshold: float) -> Floats:
    """Scores with "no answer" lowered by the threshold: the answer given has the highest."""
    shifted = score.astype(np.float64)
    shifted[null] = shifted[null] - threshold if np.isfinite(threshold) else -threshold  # not inf - inf
    return shifted


def _distance(score: npt.NDArray, offsets: Ints) -> Floats:
    """Distance of each score below the highest of its question, shape (M,); 0 for the highest itself."""
    top = np.repeat(np.maximum.reduceat(score, offsets[:-1]).astype(np.float64), np.diff(offsets))
    with np.errstate(invalid="ignore"):  # inf - inf is the top itself
        return np.where(np.isinf(top), np.where(score == top, 0.0, np.inf), top - score)


@dataclass(frozen=True, eq=False)
class Reliability:
    """Reliability diagram: confidence and observed frequency in bins of equal width, without empty bins."""

    confidence: Floats
    observed: Floats
    count: npt.NDArray[np.int64]
    ece: float
    """Expected calibration error (Naeini et al. 2015) in percent: count-weighted mean gap between the two."""


def thresholds(odds: Floats, value: Floats, answerable: Bools, *, points: int = POINTS) -> dict[str, Floats]:
    """Curves over rising null thresholds, in percent.

    There is a point at every cut between distinct null odds, at most ``points`` of them, evenly spaced by
    rank. Questions with NaN odds are never abstained from. The curves end before an answerable question of
    unknown (NaN) value:

    - ``threshold``: the null threshold itself
    - ``coverage``: share of the questions that are answered
    - ``score``: mean over all questions of the value of the span, or 1 for a correct abstention
    - ``risk``: 100 minus the mean value of the answered questions; a false answer has value 0
    - ``precision``: share of the abstentions that are correct; 100 without abstentions
    - ``recall``: share of the unanswerable questions that are abstained from; NaN without any
    """
    odds = np.where(np.isnan(odds), -np.inf, odds)
    order = np.argsort(odds, kind="stable")
    odds, value, answerable = odds[order], value[order], answerable[order]
    n, unknown = len(odds), np.flatnonzero(np.isnan(value) & answerable)
    value = np.where(answerable, value, np.nan_to_num(value))  # unknown false answers are worth nothing
    cuts = np.flatnonzero(np.append(odds[1:] != odds[:-1], True)) + 1  # answered questions at each cut
    cuts = np.concatenate([[0], cuts])
    if len(unknown):
        cuts = cuts[cuts <= unknown[0]]
    answer_gain = _cumulative(np.where(answerable, value, 0.0))[cuts]
    chance_gain = _cumulative(np.where(answerable, 0.0, value))[cuts]  # e.g. "the", empty once normalised
    passed_unanswerable = _cumulative(~answerable)[cuts]
    total_unanswerable = int((~answerable).sum())
    abstained_unanswerable = total_unanswerable - passed_unanswerable
    abstained = n - cuts
    with np.errstate(invalid="ignore", divide="ignore"):
        curves = {
            "threshold": np.append(odds[0] - 1, odds[cuts[1:] - 1]),  # odds of the last answered
            "coverage": 100 * cuts / n,
            "score": 100 * (answer_gain + chance_gain + abstained_unanswerable) / n,
            "risk": np.where(cuts > 0, 100 * (1 - answer_gain / np.maximum(cuts, 1)), np.nan),
            "precision": np.where(
                abstained > 0, 100 * abstained_unanswerable / np.maximum(abstained, 1), 100.0
            ),
            "recall": 100 * abstained_unanswerable / np.float64(total_unanswerable),
        }
    evenly_spaced = np.linspace(0, len(cuts) - 1, min(len(cuts), points))
    selected = np.unique(evenly_spaced.round().astype(np.int64))
    return {name: curve[selected] for name, curve in curves.items()}


def reliability(confidence: Floats, true: Bools) -> Reliability:
    """Observed frequency of ``true`` by bins of ``confidence`` (0..1)."""
    finite = np.isfinite(confidence)
    confidence, true = confidence[finite], true[finite].astype(np.float64)
    bin_of = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)  # 1.0 is in the last bin
    count = np.bincount(bin_of, minlength=BINS)
    nonempty = count > 0
    mean = np.bincount(bin_of, confidence, BINS)[nonempty] / count[nonempty]
    observed = np.bincount(bin_of, true, BINS)[nonempty] / count[nonempty]
    ece = 100 * float(np.sum(np.abs(mean - observed) * count[nonempty]) / max(len(confidence), 1))
    return Reliability(mean, observed, count[nonempty], ece)


def auroc(score: Floats, positive: Bools) -> float | None:
    """Area under the ROC curve, 0..1: how often a positive scores above a negative, ties counting half.

    A NaN score counts as the highest. By the ranks of Mann & Whitney 1947; None if either class is missing or
    no score is known.
    """
    positives = int(positive.sum())
    pairs = positives * (len(positive) - positives)
    if not pairs or np.isnan(score).all():
        return None
    known = np.where(np.isnan(score), np.inf, score)
    _, place, count = np.unique(known, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(count) - (count - 1) / 2  # of equal scores
    return float((mean_rank[place][positive].sum() - positives * (positives + 1) / 2) / pairs)


def auroc_values(score: Floats, positive: Bools) -> Floats | None:
    """Per-question values whose mean is the area under the ROC curve, shape (N,).

    A positive counts by the share of negatives below it, a negative by the share of positives above it, ties
    half (the placements of DeLong et al. 1988), so variances of areas and of their differences are those of
    means. None if either class is missing.
    """
    area = auroc(score, positive)
    if area is None:
        return None
    score, values = np.where(np.isnan(score), np.inf, score), np.empty(len(score))
    for own, sign in ((positive, 1), (~positive, -1)):
        others = np.sort(sign * score[~own])
        own_scores = sign * score[own]
        below = np.searchsorted(others, own_scores, "left") + np.searchsorted(others, own_scores, "right")
        # N / n times the deviation of the placement is the influence on the area; its sum is 0.
        values[own] = area + len(score) / own.sum() * (below / (2 * len(others)) - area)
    return values


def area_values(odds: Floats, value: Floats, answerable: Bools) -> Floats:
    """Per-question values (0..1), shape (N,), whose mean is the area under the risk-coverage curve (Geifman &
    El-Yaniv 2017).

    With k_q questions answered no later than q, whose loss is l_q, the area is Σ_q l_q h_q / N, where h_q
    sums 1 / k over the cuts from k_q on. A question adds its own term and to the coverage of all later ones.
    """
    odds = np.where(np.isnan(odds), -np.inf, odds)
    _, place, size = np.unique(odds, return_inverse=True, return_counts=True)
    # One entry per distinct null odds: the questions that a cut there adds, and all that it answers.
    answered = np.cumsum(size)
    loss = 1 - np.where(answerable, value, 0.0)
    later = np.cumsum((size / answered)[::-1])[::-1]
    crowding = np.cumsum((np.bincount(place, loss) / answered)[::-1])[::-1]
    # The last two terms, of the coverage, cancel in the mean.
    return loss * later[place] + loss.mean() - crowding[place]


def _cumulative(values: npt.NDArray) -> Floats:
    return np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
