"""Abstention: fitted thresholds and probabilities, scores at operating points, confidence, curves."""

import math
import random

import numpy as np
import pytest

from qa_arch.adopt import ranking
from qa_arch.data.answer_files import Answers
from qa_arch.errors import DataError
from qa_arch.metrics.abstention import (
    BOUNDS,
    answerable_probability,
    at_thresholds,
    best_texts,
    calibrated_threshold,
    class_weights,
    confidences,
    fit_answerability,
    fit_temperature,
    fit_threshold,
    reliability,
    thresholds,
)
from qa_arch.metrics.squad import score
from qa_arch.qa import task
from qa_arch.qa.files import operating_points, question_rows
from qa_arch.types import Candidate, Prediction

INF, NAN = math.inf, math.nan


def answer(id_: str, text: str | None, odds: float) -> Prediction:
    best = None if text is None else Candidate(text, 0, len(text), 0.0, 1.0)
    return Prediction(id_, best, odds, windows=1)


@pytest.mark.parametrize(
    ("odds", "f1", "answerable", "prior", "threshold"),
    [
        # answerable at -3 and 1, unanswerable at 2 and 5: a threshold between 1 and 2 gets all four right
        ([-3, 1, 2, 5], [1, 1, 0, 0], [1, 1, 0, 0], None, 1.5),
        # with the sign of the odds flipped nothing beats answering all or none: right by threshold, from none
        # answered (at -5 - 1) to all answered (at 3 + 1): 2, 1, 0, 1, 2 of 4
        ([3, -1, -2, -5], [1, 1, 0, 0], [1, 1, 0, 0], None, 4),
        # equal odds share a decision: at 1.0 abstaining on all three is better
        ([0, 1, 1, 1], [1, 1, 0, 0], [1, 1, 0, 0], None, 0.5),
        # -0.4 and 1.6 score alike; 0.2 is nearer 0 but does not lie between different odds
        ([-1.0, 0.2, 0.2, 3.0], [1, 0, 0, 0], [1, 1, 1, 0], None, -0.4),
        # F1 0 on an answerable question: answering it makes no difference; of ties the nearest to 0 is taken
        ([-4.0, 0.5, 3.0], [1, 0, 0], [1, 1, 0], None, -1.75),
        ([-4.0, -0.5, 3.0], [1, 0, 0], [1, 1, 0], None, 1.25),
        ([-2.0, 0.0, 2.0], [1, 0, 0], [1, 1, 0], None, -1.0),  # equally near: the negative one
        # Answerable at 0 and 2, unanswerable at 1, 3 and 4: unweighted, thresholds above 0 and 2 get four
        # of five right, and the lower is nearer 0. Weighted as a tenth, unanswerable ones may be answered.
        ([0, 2, 1, 3, 4], [1, 1, 0, 0, 0], [1, 1, 0, 0, 0], None, 0.5),
        ([0, 2, 1, 3, 4], [1, 1, 0, 0, 0], [1, 1, 0, 0, 0], 0.1, 2.5),
        ([0, 2, 1, 3, 4], [1, 1, 0, 0, 0], [1, 1, 0, 0, 0], 0.9, 0.5),
        ([], [], [], None, 0),
        ([NAN, INF], [1, 1], [1, 1], None, 0),
    ],
)
def test_threshold_by_hand(odds, f1, answerable, prior, threshold):
    assert fit_threshold(odds, f1, list(map(bool, answerable)), prior) == pytest.approx(threshold)


def test_threshold_separates_neighbouring_and_huge_floats():
    low = 1.0
    high = math.nextafter(low, INF)
    threshold = fit_threshold([low, high], [1, 0], [True, False])
    assert low <= threshold < high
    for odds in ([-1.7e308, 1.7e308], [1e300, 1.7e308]):
        threshold = fit_threshold(odds, [1, 0], [True, False])
        assert odds[0] <= threshold < odds[1]
        assert fit_threshold(odds, [0, 0], [False, False]) < odds[0]
        assert fit_threshold(odds, [1, 1], [True, True]) >= odds[1]


@pytest.mark.parametrize("seed", range(4))
def test_fitted_threshold_is_optimal_and_order_independent(seed):
    rng = random.Random(seed)
    n = rng.randint(1, 25)
    odds = [round(rng.gauss(0, 3), rng.choice((0, 1, 6))) for _ in range(n)]
    answerable = [rng.random() < 0.6 for _ in odds]
    f1 = [rng.choice((0.0, 1.0, 0.4, rng.random())) if a else 0.0 for a in answerable]
    rows = list(zip(odds, f1, answerable, strict=True))

    def total_f1(threshold):
        return sum(float(not a) if o > threshold else value for o, value, a in rows)

    threshold = fit_threshold(odds, f1, answerable)
    assert total_f1(threshold) == pytest.approx(max(map(total_f1, [-100.0, *odds, 100.0])))
    rng.shuffle(rows)
    assert fit_threshold(*zip(*rows, strict=True)) == threshold, "depends on the order of the questions"


def test_three_operating_points(gold_set):
    golds = {"a": ["mill"], "b": ["ferry"], "c": [], "d": []}
    answers = [
        answer("a", "mill", -2.0),
        answer("b", "ferry", 1.0),
        answer("c", "oar", 3.0),
        answer("d", "oar", -1),
    ]
    points = at_thresholds(gold_set(golds), answers, calibrated=5.0)
    # Threshold 0 answers a (right) and d (wrong): a, c right. 5 answers all: a, b right. Three are right
    # between -2 and -1 (a, c, d) and between 1 and 3 (a, b, c); the former is nearer 0.
    assert [(name, scores.exact, scores.threshold) for name, scores in list(points.items())[:3]] == [
        ("threshold_0", 50.0, 0.0),
        ("calibrated", 50.0, 5.0),
        ("oracle", 75.0, -1.5),
    ]
    assert points["calibrated"].official["NoAns_exact"] == 0.0
    spans = points["forced"].official
    assert (spans["HasAns_exact"], spans["NoAns_exact"]) == (100.0, 0.0)
    assert calibrated_threshold(gold_set(golds), answers) == -1.5
    for scores in list(points.values())[:3]:
        texts = {a.id: a.text(scores.threshold) for a in answers}
        assert score(gold_set(golds), texts).f1 == scores.f1, "answers at that threshold score differently"


def test_abstaining_is_wrong_even_if_the_gold_answer_is_only_an_article(gold_set):
    """ "" and "A" are equal once normalised; rows and fits must agree with the scores at the threshold."""
    texts, odds = dict.fromkeys("abcd", "mill"), {"a": 2.0, "b": -1.0, "c": 3.0, "d": 1.0}
    answers = [answer(id_, texts[id_], odds[id_]) for id_ in texts]
    fitted = []
    for gold in ("A", "Dam"):
        questions = gold_set({"a": [gold], "b": ["mill"], "c": [], "d": []})
        rows = question_rows(questions, answers, 0.0)
        assert (rows["exact"], rows["abstained"]) == ([0, 1, 1, 1], [True, False, True, True])
        assert 100 * np.mean(rows["f1"]) == operating_points(questions, answers, 0.0)["calibrated"].f1
        fitted.append(task.fit_calibration(questions, ranking(questions, Answers("", texts, odds, 0, 0))))
    assert fitted[0] == fitted[1]


def test_missing_or_duplicate_answers_are_refused(gold_set):
    questions = gold_set({"a": [], "b": []})
    with pytest.raises(DataError, match="have no prediction: b"):
        at_thresholds(questions, [answer("a", "x", 0.0)], 0.0)
    with pytest.raises(DataError, match="2 answers to 1 questions"):
        best_texts([answer("a", "x", 0.0), answer("a", "y", 0.0)])


def answered_odds(rng, questions=600):
    """Null odds, F1 of the best spans and answerability."""
    answerable = rng.random(questions) < 0.6
    return rng.normal(np.where(answerable, -1.0, 1.0), 2.0), answerable * rng.random(questions), answerable


def test_smooth_threshold_is_the_argmax_of_smoothed_f1():
    odds, f1, answerable = answered_odds(np.random.default_rng(3))
    odds[:2] = np.inf, np.nan  # the same at every threshold
    fitted = fit_threshold(odds.tolist(), f1.tolist(), answerable.tolist(), 0.5, 0.2)
    unanswerable_weight, answerable_weight = class_weights(answerable.tolist(), 0.5)
    finite, h = odds[2:], 0.2 * odds[2:].std()
    weight = np.where(answerable, answerable_weight, unanswerable_weight)[2:]
    grid = np.linspace(-6, 6, 4001)
    share = 1 / (1 + np.exp(-(grid[:, None] - finite) / h))  # of answering
    smoothed = (share * f1[2:] + (1 - share) * ~answerable[2:]) @ weight
    assert fitted == pytest.approx(grid[smoothed.argmax()], abs=0.01)
    equal = [1.0, 1.0], [1, 0], [True, False]  # no spread to smooth over
    assert fit_threshold(*equal, None, 0.2) == fit_threshold(*equal)
    assert fit_threshold([-1.0, 0.0, 1.0], [1, 1, 1], [True] * 3, None, 0.2) > 1.0


def test_smooth_threshold_varies_less_with_the_questions():
    rng, deviations = np.random.default_rng(4), []
    for width in (None, 0.15):
        fits = [fit_threshold(*(c.tolist() for c in answered_odds(rng)), None, width) for _ in range(40)]
        deviations.append(np.std(fits))
    assert deviations[1] < 0.8 * deviations[0]


@pytest.mark.parametrize("prior", [None, 0.8])
def test_answerability_fit_minimises_the_weighted_loss(prior):
    rng = np.random.default_rng(0)
    odds = rng.normal(scale=3, size=300)
    answerable = rng.random(300) < 1 / (1 + np.exp(-(0.3 - 0.7 * odds)))
    slope, intercept = fit_answerability(odds, answerable, prior)
    n, p = (~answerable).sum(), answerable.sum()
    target = np.where(answerable, (p + 1) / (p + 2), 1 / (n + 2))
    share = n / len(odds) if prior is None else prior
    weight = np.where(answerable, (1 - share) / p, share / n)

    def loss(slope, intercept):
        probability = 1 / (1 + np.exp(-(intercept + slope * odds)))
        return -(weight * (target * np.log(probability) + (1 - target) * np.log(1 - probability))).sum()

    best = loss(slope, intercept)
    for more_slope, more in ((0.01, 0), (-0.01, 0), (0, 0.01), (0, -0.01)):
        assert loss(slope + more_slope, intercept + more) > best


def test_answerability_of_separable_equal_and_unknown_odds():
    for scale in (1, 1e100):
        fitted = fit_answerability(scale * np.array([-2.0, -1, 1, 2]), np.array([True, True, False, False]))
        assert all(map(math.isfinite, fitted))
        assert fitted[0] < 0
    equal = np.full(12, 0.1)
    assert 0 < equal.std() < 1e-16, "no rounding error: try another number"
    probability = answerable_probability(equal, *fit_answerability(equal, np.arange(12) < 8))
    assert probability == pytest.approx((8 * 9 / 10 + 4 * 1 / 6) / 12)  # mean of Platt's targets
    assert fit_answerability(np.array([1.0, 2]), np.array([True, True])) is None
    assert fit_answerability(np.array([np.inf, 2.0]), np.array([True, False])) is None
    odds = np.array([-np.inf, 0.0, np.inf, np.nan])
    expected = pytest.approx([1.0, 0.5, 0.0, NAN], nan_ok=True)
    assert answerable_probability(odds, -1.0, 0.0).tolist() == expected
    assert answerable_probability(odds, 0.0, 0.0)[:3].tolist() == [0.5, 0.5, 0.5]


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
    score, null, offsets = np.array([3.0, 1.0, 2.0, 5.0, 4.0]), np.array([1, 3]), np.array([0, 3, 5])
    actual = confidences(score, null, offsets, threshold=-2.0, temperature=2.0)
    first = np.exp([1.5, 1.5, 1.0])  # the null's 1 is 3 here
    second = np.exp([3.5, 2.0])
    assert actual == pytest.approx([*first / first.sum(), *second / second.sum()], rel=1e-12)
    for threshold, share in ((INF, 0.0), (-INF, 1.0)):
        of_one = confidences(score[:3], null[:1], offsets[:2], threshold=threshold, temperature=1.5)
        assert (of_one[1], of_one.sum()) == (share, pytest.approx(1))


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


def test_threshold_curves_match_scoring_question_by_question():
    rng = np.random.default_rng(0)
    answerable = rng.random(60) < 0.6
    value = np.where(answerable, rng.choice([0.0, 0.5, 1.0], size=60), 0.0)
    odds = rng.integers(-6, 7, size=60) / 2 - 2.0 * answerable  # with ties
    curves = thresholds(odds, value, answerable, points=1000)
    assert len(curves["threshold"]) == len(set(odds)) + 1
    for index, threshold in enumerate(curves["threshold"]):
        rows = list(zip(odds <= threshold, value, answerable, strict=True))  # answered, F1, answerable
        risks = [1 - v for answered, v, _ in rows if answered]
        abstentions = [not a for answered, _, a in rows if not answered]
        expected = {
            "coverage": np.mean([answered for answered, *_ in rows]),
            "score": np.mean([v if answered else not a for answered, v, a in rows]),
            "risk": np.mean(risks) if risks else NAN,
            "precision": np.mean(abstentions) if abstentions else 1.0,
            "recall": np.mean([not answered for answered, _, a in rows if not a]),
        }
        for name, share in expected.items():
            assert curves[name][index] == pytest.approx(100 * share, nan_ok=True), name


def test_curves_of_unknown_values_and_odds():
    """They end at an unknown value; odds that are NaN never abstain and infinite ones always."""
    odds, answerable = np.array([-3.0, -2, -1, 0, 1]), np.array([True, False, True, True, True])
    curves = thresholds(odds, np.array([1, NAN, 0.5, NAN, 1]), answerable)
    assert curves["threshold"].tolist() == [-4, -3, -2, -1]  # the value of the unanswerable question is 0
    assert curves["score"].tolist() == [20, 40, 20, 30]
    curves = thresholds(np.array([NAN, INF]), np.array([1.0, 0.0]), np.array([True, True]))
    assert curves["threshold"].tolist()[1:] == [-INF, INF]
    assert curves["score"].tolist() == [0, 50, 50]
    assert np.isnan(curves["recall"]).all()


def test_reliability_by_hand():
    confidence = np.array([0.05, 0.15, 0.15, 0.95, 1.0, NAN])
    result = reliability(confidence, np.array([False, True, False, True, True, True]))
    assert result.confidence == pytest.approx([0.05, 0.15, 0.975])
    assert result.observed == pytest.approx([0, 0.5, 1])
    assert result.count.tolist() == [1, 2, 2]
    assert result.ece == pytest.approx((5 + 2 * 35 + 2 * 2.5) / 5)
