"""Variances against worked examples and analysis of variance, tests against simulated systems."""

from __future__ import annotations

import statistics
from math import inf, sqrt

import numpy as np
import pytest

from qa_arch.metrics.confidence import area_values, auroc, auroc_values, thresholds
from qa_arch.metrics.significance import (
    Effect,
    Seeds,
    Variance,
    contrast,
    holm,
    in_order,
    mean_interval,
    power,
)

T_OF_2, T_OF_4 = 4.302653, 2.776445
"""97.5% quantiles of Student's t."""


def table_of_squares(y):
    """Mean squares of articles, runs and their interaction of ``(R, J)``, as a textbook has them."""
    runs, articles = y.shape
    of_runs, of_articles, mean = y.mean(1), y.mean(0), y.mean()
    rest = y - of_runs[:, None] - of_articles + mean
    return (
        runs * ((of_articles - mean) ** 2).sum() / (articles - 1),
        articles * ((of_runs - mean) ** 2).sum() / (runs - 1),
        (rest**2).sum() / ((runs - 1) * (articles - 1)),
    )


def in_articles(draw, sizes, *, article=0.0, seed=0.0, interaction=0.0, runs=5):
    """Two equal systems ``(R, N)``: what an article, a seed and both together do has these deviations."""
    articles = np.repeat(np.arange(len(sizes)), sizes)
    a, b = (
        draw.normal(scale=interaction, size=(runs, len(sizes))) + draw.normal(scale=seed, size=(runs, 1))
        for _ in range(2)
    )
    suits = draw.normal(scale=article, size=len(sizes))
    return a[:, articles], (b + suits)[:, articles], articles


def test_interval_over_three_articles_is_students_with_two_degrees_of_freedom():
    scores = np.array([[1.0, 3.0, 2.0, 2.0, 9.0, 7.0]])  # means 2, 2, 8 of articles of two questions
    low, high = mean_interval(scores, np.array([5, 5, 0, 0, 7, 7]))
    half = T_OF_2 * statistics.stdev([2, 2, 8]) / sqrt(3)
    assert (low, high) == pytest.approx((4 - half, 4 + half), rel=1e-5)


def test_interval_of_articles_of_unequal_size_is_that_of_a_ratio():
    scores, articles = np.array([[1.0, 0.0, 1.0, 1.0, 0.0]]), np.array([0, 1, 1, 2, 2])
    sums = np.array([1 - 0.6, 1 - 2 * 0.6, 1 - 2 * 0.6])
    half = T_OF_2 * sqrt(3 / 2 * (sums**2).sum()) / 5
    assert mean_interval(scores, articles) == pytest.approx((0.6 - half, 0.6 + half), rel=1e-5)


def test_variance_is_that_of_the_analysis_of_variance():
    draw = np.random.default_rng(0)
    a, b, articles = in_articles(draw, [3] * 7, article=1.0, seed=0.5, interaction=1.0, runs=4)
    of_a, of_b = (scores[:, ::3] for scores in (a, b))  # one number an article
    found = contrast([-a, b], articles=articles).variance
    crossed = [table_of_squares(y)[2] / 28 for y in (of_a, of_b)]
    seeds = [table_of_squares(y)[1] / 28 for y in (of_a, of_b)]
    assert [part.interaction for part in found.seeds] == pytest.approx(crossed)
    assert [part.own for part in found.seeds] == pytest.approx(np.subtract(seeds, crossed))
    assert found.unit_variance == pytest.approx(statistics.variance(of_b.mean(0) - of_a.mean(0)) / 7)
    assert found.total == pytest.approx(found.unit_variance + sum(seeds) - sum(crossed))


def test_pairs_of_runs_are_one_system_of_differences():
    draw = np.random.default_rng(1)
    a = draw.normal(size=(3, 60)) + np.array([[-2.0], [0.0], [2.0]])
    b = a + 0.3 + draw.normal(scale=0.1, size=(3, 60))
    for articles in (None, np.repeat(np.arange(10), 6)):
        paired, apart = (contrast(systems, articles=articles) for systems in ([b - a], [-a, b]))
        assert paired.delta == pytest.approx(apart.delta)
        assert paired.interval.low > 0.2
        assert apart.interval.low < 0
        assert len(paired.variance.seeds) == 1


def test_a_contrast_is_a_difference_of_differences():
    draw = np.random.default_rng(4)
    a, b, articles = in_articles(draw, [4] * 6, article=1.0, seed=0.2, interaction=0.2, runs=4)
    noise = (draw.normal(scale=0.01, size=scores.shape) for scores in (a, b[:3]))
    c, d = (scores + more for scores, more in zip((a, b[:3] + 0.5), noise, strict=True))
    found = contrast([a, -b, -c, d], articles=articles)
    assert found.delta == pytest.approx((d.mean() - c.mean()) - (b.mean() - a.mean()))
    assert found.variance.unit_variance < contrast([-a, b], articles=articles).variance.unit_variance / 10, (
        "articles shared"
    )
    assert [part.runs for part in found.variance.seeds] == [4, 4, 4, 3]


def test_calibration_articles_add_the_variance_of_their_mean():
    draw = np.random.default_rng(2)
    a, b, articles = in_articles(draw, [4] * 6, article=1.0, runs=1)
    moved = np.array([1.0, -0.5, 0.2, 2.0])  # what each calibration article does to the difference
    left_out = (moved.sum() - moved) / 3
    found = contrast([-a, b], articles=articles, left_out=left_out.tolist())
    assert found.variance.calibration_variance == pytest.approx(moved.var(ddof=1) / 4)
    assert found.variance.total == pytest.approx(
        contrast([-a, b], articles=articles).variance.total + moved.var(ddof=1) / 4
    )


def test_degrees_of_freedom_lie_between_those_of_the_parts():
    articles, seeds = Variance(16, 4.0), Seeds(5, 4.0, 1.0)
    assert articles.freedom == 15
    assert Variance(16, 0.0, (seeds,)).freedom == pytest.approx(4)
    assert Variance(16, 4.0, (seeds,)).freedom == pytest.approx(8**2 / (16 / 15 + 16 / 4))
    assert Variance(16, 4.0, (seeds,), 4, 4.0).freedom == pytest.approx(12**2 / (16 / 15 + 16 / 4 + 16 / 3))
    assert Variance(16, 0.0).freedom == inf
    assert Variance(16, 4.0, (Seeds(5, -3.0, 3.0),)).total == 4.0, "never below what the articles have"


@pytest.mark.parametrize("runs", [1, 3])
def test_identical_systems_do_not_differ(runs):
    a = np.random.default_rng(3).random((runs, 40))
    same = contrast([-a, a])
    assert (same.delta, same.p) == (0.0, 1.0)
    assert same.interval.low <= 0 <= same.interval.high
    constant = contrast([np.zeros((1, 4)), np.ones((1, 4))])
    assert (constant.interval, constant.p, constant.detectable) == ((1.0, 1.0), 0.0, 0.0)


def test_p_is_students_and_matches_the_interval():
    found = Effect(1.0, Variance(5, 0.25))  # t = 2 with 4 degrees of freedom
    assert found.p == pytest.approx(0.116117, abs=1e-6)
    assert found.interval == pytest.approx((1 - T_OF_4 / 2, 1 + T_OF_4 / 2), rel=1e-5)
    at_the_end = Effect(T_OF_4 / 2, Variance(5, 0.25))
    assert at_the_end.p == pytest.approx(0.05, abs=1e-5)
    assert Effect(-1.0, Variance(5, 0.25)).p == found.p


def test_equivalence_asks_both_ends():
    near = Effect(0.2, Variance(16, 0.04))
    assert near.p_equivalent(1.0) == pytest.approx(0.00058, abs=1e-5)  # t of 15 at -4, the nearer end
    assert near.p_equivalent(1.0) == Effect(-0.2, Variance(16, 0.04)).p_equivalent(1.0)
    assert near.p_equivalent(0.2) == pytest.approx(0.5)
    assert near.p_equivalent(0.1) > 0.5


def test_a_difference_that_is_detectable_is_detected_in_four_of_five_repeats():
    draw = np.random.default_rng(4)
    trials = [in_articles(draw, [3] * 16, article=1.0, seed=0.3, interaction=1.0) for _ in range(400)]
    effects = [contrast([-a, b], articles=articles) for a, b, articles in trials]
    size = statistics.fmean(found.detectable for found in effects)
    expected = Variance(16, 1 / 16 + 2 / 80, (Seeds(5, 0.09 / 5, 1 / 80),) * 2)
    assert power(expected, size) == pytest.approx(0.8, abs=0.04)
    detected = statistics.fmean(
        contrast([-a, b + size], articles=articles).p < 0.05 for a, b, articles in trials
    )
    assert 0.72 <= detected <= 0.88
    assert power(expected, 0.0) == pytest.approx(0.05)


def test_planned_variance_is_that_of_an_experiment_of_the_planned_size():
    draw = np.random.default_rng(5)
    sizes = {"article": 1.0, "seed": 0.7, "interaction": 1.5}

    def mean_variance(articles, runs):
        made = (in_articles(draw, [2] * articles, runs=runs, **sizes) for _ in range(300))
        return [contrast([-a, b], articles=number).variance for a, b, number in made]

    small = [variance.planned(units=40, runs=9).total for variance in mean_variance(16, 4)]
    large = [variance.total for variance in mean_variance(40, 9)]
    assert statistics.fmean(small) == pytest.approx(statistics.fmean(large), rel=0.1)
    calibrated = Variance(16, 1.0, (), 4, 0.5)
    assert calibrated.planned(units=32, runs=5, calibration_units=8).total == pytest.approx(0.5 + 0.25)
    assert calibrated.planned(units=16, runs=5) == calibrated


def test_articles_must_be_several():
    scores = np.ones((2, 4))
    with pytest.raises(ValueError, match="a single article is not a sample"):
        mean_interval(scores, np.zeros(4, dtype=np.int64))
    with pytest.raises(ValueError, match="a single question is not a sample"):
        mean_interval(scores[:, :1])


@pytest.mark.parametrize(
    ("given", "corrected"),
    [
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),  # 4*.005, 3*.01, 2*.03, then never lower
        ([0.2], [0.2]),
        ([], []),
        ([0.6, 0.5], [1.0, 1.0]),
        ([0.02, 0.02], [0.04, 0.04]),
    ],
)
def test_holm_by_hand(given, corrected):
    assert holm(given) == pytest.approx(corrected)


def test_tests_in_a_fixed_order_stop_at_the_first_that_fails():
    assert in_order([[0.03], [0.2], [0.001]]) == [[0.03], [0.2], [0.2]]
    assert in_order([[0.04], [0.02, 0.001], []]) == [[0.04], [0.04, 0.04], []]
    assert in_order([[0.001], [0.03, 0.02]]) == [[0.001], [0.04, 0.04]]


def test_what_a_question_moves_an_area_by_has_the_area_as_its_mean():
    draw = np.random.default_rng(7)
    odds = np.round(draw.normal(size=300), 1)  # with ties
    odds[:3] = -np.inf, np.inf, np.inf
    answerable, value = draw.random(300) < 0.4, draw.random(300)
    assert auroc_values(-odds, answerable).mean() == pytest.approx(auroc(-odds, answerable))
    area = thresholds(odds, value, answerable).area
    assert 100 * area_values(odds, value, answerable).mean() == pytest.approx(area)
    assert auroc_values(odds, np.ones(300, dtype=bool)) is None


@pytest.mark.parametrize("name", ["auroc", "aurc"])
def test_areas_vary_over_articles_as_their_bootstrap_says(name):
    """Whole articles drawn with replacement, the area computed anew each time."""
    draw = np.random.default_rng(8)
    articles = np.repeat(np.arange(40), 15)
    answerable = draw.random(600) < 0.5
    odds = draw.normal(size=600) - answerable + draw.normal(scale=0.5, size=40)[articles]
    value = (draw.random(600) < 0.7).astype(float)
    members = [np.flatnonzero(articles == article) for article in range(40)]
    areas = []
    for _ in range(1500):
        drawn = np.concatenate([members[article] for article in draw.integers(40, size=40)])
        area = thresholds(odds[drawn], value[drawn], answerable[drawn]).area
        areas.append(area / 100 if name == "aurc" else auroc(-odds[drawn], answerable[drawn]))
    values = auroc_values(-odds, answerable) if name == "auroc" else area_values(odds, value, answerable)
    low, high = mean_interval(values[None], articles)
    assert (high - low) / 2 == pytest.approx(2.0227 * statistics.stdev(areas), rel=0.08)


CASES = {
    "seeds that do not matter": {"article": 1.5, "seed": 0.0, "interaction": 1.8},
    "seeds that do": {"article": 1.3, "seed": 0.7, "interaction": 1.6},
}
"""Deviations as those of F1 in the records of ``experiments/answer``."""
DESIGNS = [(16, 5, 4, 0.7), (15, 5, 8, 0.9), (15, 10, 8, 0.7), (48, 5, 8, 0.7), (16, 3, 4, 0.7)]
"""Articles, runs of each system, calibration articles and the deviation of what one of these does."""


def rejections(design, sizes, *, trials, calibrated=True):
    """Share of experiments with two equal systems whose test finds a difference."""
    articles, runs, calibration, of_one = design
    draw = np.random.default_rng(9)
    found = 0
    for _ in range(trials):
        a, b, number = in_articles(draw, draw.integers(10, 90, size=articles), runs=runs, **sizes)
        moved = draw.normal(scale=of_one, size=calibration)
        b = b + moved.mean()
        left_out = b.mean() - a.mean() - moved.mean() + (moved.sum() - moved) / (calibration - 1)
        tested = contrast([-a, b], articles=number, left_out=left_out.tolist() if calibrated else ())
        found += tested.p < 0.05
    return found / trials


def test_equal_systems_are_found_to_differ_as_often_as_it_says():
    rate = rejections(DESIGNS[0], CASES["seeds that do"], trials=800)
    assert 0.03 <= rate <= 0.07  # 5%, within three standard errors


@pytest.mark.slow
@pytest.mark.parametrize("design", DESIGNS, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_true_nulls_of_the_size_of_our_records_are_rejected_in_4_to_6_of_100(design, case):
    rate = rejections(design, CASES[case], trials=12_000)
    print(f"{design}, {case}: {rate:.2%}")
    assert 0.04 <= rate <= 0.06  # the simulation has a standard error of 0.2%


@pytest.mark.slow
@pytest.mark.parametrize("design", DESIGNS, ids=str)
def test_equivalence_is_claimed_of_systems_at_the_margin_in_at_most_5_of_100(design):
    articles, runs, _, _ = design
    draw, claimed = np.random.default_rng(11), 0
    for _ in range(4000):
        sizes = draw.integers(10, 90, size=articles)
        a, b, number = in_articles(draw, sizes, runs=runs, **CASES["seeds that do"])
        claimed += contrast([-a, b + 2.0], articles=number).p_equivalent(2.0) < 0.05
    assert 0.035 <= claimed / 4000 <= 0.065
