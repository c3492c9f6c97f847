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
    area_values,
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


def total_f1(odds, f1, answerable, threshold):
    """Summed F1 at ``threshold``, question by question."""
    return sum(float(not a) if o > threshold else v for o, v, a in zip(odds, f1, answerable, strict=True))


def answer(id_: str, text: str | None, odds: float) -> Prediction:
    best = None if text is None else Candidate(text, 0, len(text), 0.0, 1.0)
    return Prediction(id_, best, odds, windows=1)


def test_threshold_by_hand():
    # answerable at -3 and 1, unanswerable at 2 and 5: a threshold between 1 and 2 gets all four right
    assert fit_threshold([-3, 1, 2, 5], [1, 1, 0, 0], [True, True, False, False]) == 1.5
    # with the sign of the odds flipped nothing beats answering all or none: right by threshold, from none
    # answered (at -5 - 1) to all answered (at 3 + 1): 2, 1, 0, 1, 2 of 4
    assert fit_threshold([3, -1, -2, -5], [1, 1, 0, 0], [True, True, False, False]) == 4


def test_questions_with_equal_odds_share_a_decision():
    # at 1.0 one answerable and two unanswerable questions: abstaining on all three is better
    threshold = fit_threshold([0, 1, 1, 1], [1, 1, 0, 0], [True, True, False, False])
    assert threshold == 0.5


def test_threshold_is_never_one_of_the_odds():
    """-0.4 and 1.6 score alike; 0.2 is nearer 0 but does not lie between different odds."""
    threshold = fit_threshold([-1.0, 0.2, 0.2, 3.0], [1.0, 0.0, 0.0, 0.0], [True, True, True, False])
    assert threshold == pytest.approx(-0.4)


def test_ties_take_the_threshold_nearest_zero():
    # F1 0 on an answerable question: answering it makes no difference
    assert fit_threshold([-4.0, 0.5, 3.0], [1.0, 0.0, 0.0], [True, True, False]) == pytest.approx(-1.75)
    assert fit_threshold([-4.0, -0.5, 3.0], [1.0, 0.0, 0.0], [True, True, False]) == pytest.approx(1.25)
    # equally near: the negative one
    assert fit_threshold([-2.0, 0.0, 2.0], [1.0, 0.0, 0.0], [True, True, False]) == -1.0


@pytest.mark.parametrize("odds", [[], [NAN], [INF, -INF], [NAN, INF]])
def test_nothing_to_fit_gives_zero(odds):
    assert fit_threshold(odds, [1.0] * len(odds), [True] * len(odds)) == 0.0


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


@pytest.mark.parametrize("seed", range(8))
def test_fitted_threshold_is_optimal_and_order_independent(seed):
    rng = random.Random(seed)
    n = rng.randint(1, 25)
    odds = [round(rng.gauss(0, 3), rng.choice((0, 1, 6))) for _ in range(n)]
    answerable = [rng.random() < 0.6 for _ in odds]
    f1 = [rng.choice((0.0, 1.0, 0.4, rng.random())) if a else 0.0 for a in answerable]
    threshold = fit_threshold(odds, f1, answerable)
    cuts = [-100.0, *odds, 100.0]
    best = max(total_f1(odds, f1, answerable, cut) for cut in cuts)
    assert total_f1(odds, f1, answerable, threshold) == pytest.approx(best)
    order = list(range(n))
    rng.shuffle(order)
    shuffled = fit_threshold(*([values[i] for i in order] for values in (odds, f1, answerable)))
    assert shuffled == threshold, "depends on the order of the questions"


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
        fitted.append(task.fit(questions, ranking(questions, Answers("", texts, odds, 0, 0))))
    assert fitted[0] == fitted[1]


def test_missing_or_duplicate_answers_are_refused(gold_set):
    questions = gold_set({"a": [], "b": []})
    with pytest.raises(DataError, match="have no prediction: b"):
        at_thresholds(questions, [answer("a", "x", 0.0)], 0.0)
    with pytest.raises(DataError, match="2 answers to 1 questions"):
        best_texts([answer("a", "x", 0.0), answer("a", "y", 0.0)])


def test_threshold_with_a_prior_by_hand():
    # Answerable at 0 and 2, unanswerable at 1, 3 and 4: unweighted, thresholds above 0 and above 2 get four
    # of five right, and the lower is nearer 0. Weighted as a tenth, unanswerable ones may be answered.
    odds, f1, answerable = [0, 2, 1, 3, 4], [1, 1, 0, 0, 0], [True, True, False, False, False]
    assert fit_threshold(odds, f1, answerable) == 0.5
    assert fit_threshold(odds, f1, answerable, prior=0.1) == 2.5
    assert fit_threshold(odds, f1, answerable, prior=0.9) == 0.5
    assert class_weights(answerable, 0.5) == pytest.approx((5 / 6, 5 / 4))


@pytest.mark.parametrize("seed", range(5))
def test_prior_equals_repeating_questions(seed):
    rng = random.Random(seed)
    answerable = [n % 4 != 0 for n in range(40)]  # 30 of 40
    odds = [rng.gauss(0 if a else 1, 1.5) for a in answerable]
    f1 = [rng.choice([0, 0.5, 1]) * a for a in answerable]
    times = [1 if a else 3 for a in answerable]  # 30 of 60
    order = [row for row, count in enumerate(times) for _ in range(count)]
    repeated = ([column[row] for row in order] for column in (odds, f1, answerable))
    assert fit_threshold(odds, f1, answerable, prior=0.5) == fit_threshold(*repeated)


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
    assert fit_threshold([1.0, 1.0], [1, 0], [True, False], None, 0.2) == fit_threshold(
        [1.0, 1.0], [1, 0], [True, False]
    ), "equal odds have no spread to smooth over"
    always = fit_threshold([-1.0, 0.0, 1.0], [1, 1, 1], [True] * 3, None, 0.2)
    assert always > 1.0


def test_smooth_threshold_varies_less_with_the_questions():
    rng, deviations = np.random.default_rng(4), []
    for width in (None, 0.15):
        fits = [fit_threshold(*(c.tolist() for c in answered_odds(rng)), None, width) for _ in range(40)]
        deviations.append(np.std(fits))
    assert deviations[1] < 0.8 * deviations[0]


def sample_odds(questions=4000, *, share=0.4, slope=-0.7, intercept=0.3, seed=0):
    """Null odds and answerability of questions from a logistic model, ``share`` of them unanswerable."""
    rng = np.random.default_rng(seed)
    odds = rng.normal(scale=3, size=8 * questions)
    answerable = rng.random(8 * questions) < 1 / (1 + np.exp(-(intercept + slope * odds)))
    negatives = np.flatnonzero(~answerable)[: int(share * questions)]
    positives = np.flatnonzero(answerable)[: questions - len(negatives)]
    chosen = np.sort(np.concatenate([positives, negatives]))
    return odds[chosen], answerable[chosen]


@pytest.mark.parametrize("prior", [None, 0.5, 0.8])
def test_answerability_fit_minimises_the_weighted_loss(prior):
    odds, answerable = sample_odds(300)
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


def test_answerability_with_a_prior_is_calibrated_on_that_share():
    odds, answerable = sample_odds(share=0.4)
    other_odds, other = sample_odds(share=0.6, seed=1)
    unweighted, weighted = (fit_answerability(odds, answerable, prior) for prior in (None, 0.6))
    errors = [reliability(answerable_probability(other_odds, *f), other).ece for f in (unweighted, weighted)]
    assert errors[1] < 3 < errors[0]


def test_answerability_slope_is_finite_for_separable_and_huge_odds():
    slope, _ = fit_answerability(np.array([-2.0, -1, 1, 2]), np.array([True, True, False, False]))
    assert -10 < slope < 0
    huge = fit_answerability(np.array([-1e100, -1e99, 1e99, 1e100]), np.array([True, True, False, False]))
    assert huge[0] < 0
    assert all(map(math.isfinite, huge))


def test_answerability_of_equal_odds_is_the_share_of_answerable_questions():
    odds = np.full(12, 0.1)
    assert 0 < odds.std() < 1e-16, "no rounding error: try another number"
    probability = answerable_probability(odds, *fit_answerability(odds, np.arange(12) < 8))
    assert probability == pytest.approx((8 * 9 / 10 + 4 * 1 / 6) / 12)  # mean of Platt's targets


def test_answerability_without_data_and_with_nan_odds():
    assert fit_answerability(np.array([1.0, 2]), np.array([True, True])) is None
    assert fit_answerability(np.array([np.inf, 2.0]), np.array([True, False])) is None
    odds = np.array([-np.inf, 0.0, np.inf, np.nan])
    probability = answerable_probability(odds, -1.0, 0.0)
    assert probability[:3].tolist() == pytest.approx([1.0, 0.5, 0.0])
    assert math.isnan(probability[3])
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


def odds_with_ties(seed=0, n=60):
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
        "risk": 100 - mean(answer_values) if answer_values else NAN,
        "precision": mean(correct_abstentions) if correct_abstentions else 100.0,
        "recall": mean([s for s, h in zip(abstained, answerable, strict=True) if not h]),
    }


@pytest.mark.parametrize("seed", range(3))
def test_threshold_curves_match_scoring_question_by_question(seed):
    columns = odds_with_ties(seed)
    curves = thresholds(*columns, points=1000)
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
    assert 100 * area_values(odds, value, answerable).mean() == pytest.approx(sum(risks) / 4)


def test_curves_end_at_an_unknown_value():
    odds, answerable = np.array([-3.0, -2, -1, 0, 1]), np.array([True, False, True, True, True])
    curves = thresholds(odds, np.array([1, NAN, 0.5, NAN, 1]), answerable)
    assert curves["threshold"].tolist() == [-4, -3, -2, -1]  # the value of the unanswerable question is 0
    assert curves["score"].tolist() == [20, 40, 20, 30]


@pytest.mark.parametrize("answerable", [True, False])
def test_sets_with_a_single_kind_of_question(answerable):
    curves = thresholds(np.array([0.0, 1.0]), np.array([1.0, 0.0]), np.array([answerable] * 2))
    assert np.isnan(curves["recall"]).all() == answerable
    assert not np.isnan(curves["score"]).any()


def test_nan_odds_never_abstain_and_infinite_ones_always():
    curves = thresholds(np.array([NAN, math.inf]), np.array([1.0, 0.0]), np.array([True, True]))
    assert curves["threshold"].tolist()[1:] == [-math.inf, math.inf]
    assert curves["score"].tolist() == [0, 50, 50]


def test_reliability_by_hand():
    confidence = np.array([0.05, 0.15, 0.15, 0.95, 1.0, NAN])
    result = reliability(confidence, np.array([False, True, False, True, True, True]))
    assert result.confidence == pytest.approx([0.05, 0.15, 0.975])
    assert result.observed == pytest.approx([0, 0.5, 1])
    assert result.count.tolist() == [1, 2, 2]
    assert result.ece == pytest.approx((5 + 2 * 35 + 2 * 2.5) / 5)
