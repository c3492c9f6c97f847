"""Intervals and tests against slow plain references, worked examples and simulated systems."""

from __future__ import annotations

import itertools
import random
import statistics

import numpy as np
import pytest

from qa_arch.metrics.significance import bootstrap_interval, effect, holm, mean_sd


def plain_interval(rows, *, draws=3000, seed=1):
    """The percentile bootstrap as a textbook writes it: questions drawn one by one."""
    rng = random.Random(seed)
    per_question = [statistics.fmean(column) for column in zip(*rows, strict=True)]
    means = sorted(statistics.fmean(rng.choices(per_question, k=len(per_question))) for _ in range(draws))
    return means[int(0.025 * draws)], means[int(0.975 * draws)]


def plain_bootstrap_p(a, b, *, draws=3000, seed=1):
    """Questions and runs drawn one by one, moved to no difference; ``a`` and ``b`` lists of runs."""
    rng = random.Random(seed)

    def system(runs, questions):
        means = [statistics.fmean([run[q] for q in questions]) for run in runs]
        if len(runs) == 1:
            return means[0]
        centre, stretch = statistics.fmean(means), (len(runs) / (len(runs) - 1)) ** 0.5
        return centre + stretch * (statistics.fmean(rng.choices(means, k=len(means))) - centre)

    every = range(len(a[0]))
    observed = statistics.fmean(itertools.chain(*b)) - statistics.fmean(itertools.chain(*a))
    extreme = 0
    for _ in range(draws):
        questions = rng.choices(every, k=len(every))
        difference = system(b, questions) - system(a, questions)
        extreme += abs(difference - observed) >= abs(observed) - 1e-12
    return (1 + extreme) / (1 + draws)


def exact_randomisation_p(a, b):
    """All 2^N ways to swap the systems' answers."""
    differences = [y - x for x, y in zip(a, b, strict=True)]
    observed = abs(sum(differences))
    signs = itertools.product((-1, 1), repeat=len(differences))
    sums = [abs(sum(s * d for s, d in zip(sign, differences, strict=True))) for sign in signs]
    return sum(total >= observed - 1e-12 for total in sums) / len(sums)


def systems(questions, runs, *, seed=0, better=0.0, run_sd=0.0):
    """``(runs, questions)`` of 0/1: a question's difficulty is shared, a run has a level of its own."""
    rng = np.random.default_rng(seed)
    difficulty = rng.normal(size=questions)
    made = []
    for shift in (0.0, better):
        level = rng.normal(scale=run_sd, size=(runs, 1)) if run_sd else np.zeros((runs, 1))
        noise = rng.normal(scale=0.5, size=(runs, questions))
        made.append((difficulty + noise + level + shift > 0).astype(float))
    return made


def test_mean_and_sample_deviation():
    assert mean_sd([2.0, 4.0, 9.0]) == (5.0, pytest.approx(statistics.stdev([2.0, 4.0, 9.0])))
    assert mean_sd([7.0]) == (7.0, None)


@pytest.mark.parametrize("runs", [1, 3])
def test_interval_is_the_plain_bootstrap(runs):
    scores, _ = systems(80, runs)
    assert bootstrap_interval(scores) == pytest.approx(plain_interval(scores.tolist()), abs=0.02)


def test_interval_covers_the_true_mean_as_often_as_it_says():
    rng = np.random.default_rng(5)
    inside = 0
    for trial in range(300):
        scores = rng.beta(2, 1, size=(1, 120))  # mean 2/3
        low, high = bootstrap_interval(scores, resamples=600, seed=trial)
        inside += low <= 2 / 3 <= high
    assert 0.91 <= inside / 300 <= 0.985  # 95%, within three standard errors


@pytest.mark.parametrize("runs", [1, 3])
def test_bootstrap_p_is_the_plain_one(runs):
    a, b = systems(60, runs, seed=3, better=0.25, run_sd=0.1)
    plain = plain_bootstrap_p(a.tolist(), b.tolist())
    assert 0.005 < plain < 0.8  # somewhere that a mistake shows
    assert effect(a, b).p_bootstrap == pytest.approx(plain, abs=0.03)


@pytest.mark.parametrize("seed", range(4))
def test_randomisation_p_is_the_exact_one(seed):
    rng = np.random.default_rng(seed)
    a, b = rng.choice([0, 0.4, 1], size=(2, 12))
    assert effect(a, b).p_randomisation == pytest.approx(exact_randomisation_p(a, b), abs=0.02)


@pytest.mark.parametrize("runs", [1, 3])
def test_identical_systems_do_not_differ(runs):
    a, _ = systems(200, runs)
    same = effect(a, a)
    assert (same.delta, same.p_bootstrap, same.p_randomisation) == (0.0, 1.0, 1.0)
    assert same.interval.low <= 0 <= same.interval.high


def test_seeds_that_vary_make_a_difference_less_sure():
    a = np.array([[0.0, 1, 0, 1] * 50, [0.0, 0, 0, 1] * 50, [1.0, 1, 0, 1] * 50])
    b = np.array([[1.0, 1, 0, 1] * 50, [1.0, 0, 0, 1] * 50, [1.0, 1, 1, 1] * 50])
    varying = effect(a, b)
    steady = effect(a.mean(0), b.mean(0))
    assert varying.delta == pytest.approx(steady.delta)
    assert varying.p_randomisation == pytest.approx(steady.p_randomisation, abs=0.01)
    assert varying.p_bootstrap > 10 * steady.p_bootstrap


@pytest.mark.parametrize("run_sd", [0.0, 0.15], ids=["equal runs", "runs that vary"])
def test_equal_systems_are_rarely_told_apart(run_sd):
    trials = [
        effect(*systems(150, 4, seed=seed, run_sd=run_sd), resamples=300, seed=seed) for seed in range(200)
    ]
    wrong = sum(trial.p_bootstrap <= 0.05 for trial in trials) / len(trials)
    assert wrong <= 0.11  # 5% is meant; four seeds are few
    covered = sum(trial.interval.low <= 0 <= trial.interval.high for trial in trials) / len(trials)
    assert covered >= 0.89


def test_few_seeds_are_not_taken_for_less_variance_than_they_have():
    """Where nothing but the seed matters, an interval over three of them covers 86%, and 78% unstretched."""
    draw = np.random.default_rng(0)
    covered = 0
    for trial in range(1000):
        a, b = (np.repeat(draw.normal(size=(3, 1)), 5, axis=1) for _ in range(2))
        low, high = effect(a, b, resamples=300, seed=trial).interval
        covered += low <= 0 <= high
    assert 830 <= covered <= 950


def test_a_difference_that_is_detectable_is_detected_in_four_of_five_repeats():
    draw = np.random.default_rng(0)
    repeats = [draw.normal(size=(2, 1, 100)) + draw.normal(scale=0.1, size=(2, 5, 1)) for _ in range(200)]
    size = statistics.fmean(effect(a, b, resamples=300).detectable for a, b in repeats[:20])
    detected = [
        effect(a, b + size, resamples=300, seed=n).p_bootstrap <= 0.05 for n, (a, b) in enumerate(repeats)
    ]
    assert 0.7 <= statistics.fmean(detected) <= 0.9
    assert statistics.fmean(effect(a, b, resamples=300, level=0.5).detectable for a, b in repeats[:20]) < size


@pytest.mark.parametrize("articles", [None, np.repeat(np.arange(10), 20)], ids=["questions", "articles"])
def test_what_a_run_has_of_its_parent_does_not_widen_the_interval(articles):
    draw = np.random.default_rng(0)
    a = draw.normal(size=(3, 200)) + np.array([[-2.0], [0.0], [2.0]])
    b = a + 0.3 + draw.normal(scale=0.1, size=(3, 200))
    paired, apart = (effect(a, b, articles=articles, paired=paired) for paired in (True, False))
    assert paired.delta == pytest.approx(apart.delta)
    assert paired.interval.low > 0.25
    assert apart.interval.low < 0
    with pytest.raises(ValueError, match="3 and 2 runs make no pairs"):
        effect(a, b[:2], paired=True)


def plain_article_interval(rows, articles, *, draws=4000, seed=1):
    """The cluster bootstrap article by article, its spread stretched, and the quantile of t for 5 of them."""
    rng, score = random.Random(seed), [statistics.fmean(column) for column in zip(*rows, strict=True)]
    members = [[q for q, article in enumerate(articles) if article == a] for a in sorted(set(articles))]
    means = []
    for _ in range(draws):
        drawn = [q for part in rng.choices(members, k=len(members)) for q in part]
        means.append(statistics.fmean(score[q] for q in drawn))
    half = 2.776 * (len(members) / (len(members) - 1)) ** 0.5 * statistics.pstdev(means)
    return statistics.fmean(score) - half, statistics.fmean(score) + half


def in_articles(draw, sizes, *, article_sd, run_sd=0.0, runs=1):
    """``(runs, N)`` for two equal systems: articles differ in which system they suit, runs in their level."""
    articles = np.repeat(np.arange(len(sizes)), sizes)
    suits = draw.normal(scale=article_sd, size=len(sizes))[articles]
    a, b = (
        draw.normal(scale=0.5, size=(runs, len(articles))) + draw.normal(scale=run_sd, size=(runs, 1))
        for _ in range(2)
    )
    return a, b + suits, articles


def coverage(trials):
    """How often the interval holds no difference, and how often each p is at most 0.05."""
    results = [effect(a, b, resamples=300, seed=n, **kinds) for n, (a, b, kinds) in enumerate(trials)]
    inside = statistics.fmean(result.interval.low <= 0 <= result.interval.high for result in results)
    wrong = statistics.fmean(result.p_bootstrap <= 0.05 for result in results)
    return inside, wrong, statistics.fmean(result.p_randomisation <= 0.05 for result in results)


def test_article_interval_is_the_plain_cluster_bootstrap():
    scores, _ = systems(90, 3)
    articles = np.repeat([7, 3, 4, 9, 1], [10, 30, 20, 25, 5])
    scores[:, articles == 3] += 0.3
    low, high = bootstrap_interval(scores, articles=articles)
    assert (low, high) == pytest.approx(plain_article_interval(scores.tolist(), articles), abs=0.03)
    own = bootstrap_interval(scores)
    assert high - low > 1.3 * (own.high - own.low)


def test_three_articles_leave_two_degrees_of_freedom():
    """Means of three drawn articles, stretched, over the root of chi² of 2 degrees halved."""
    rng, draws = random.Random(4), []
    for _ in range(40_000):
        mean = statistics.fmean(rng.choices([-1.0, 0.0, 1.0], k=3))
        draws.append(mean * (3 / 2) ** 0.5 / (rng.gammavariate(1.0, 2.0) / 2) ** 0.5)
    high = statistics.quantiles(draws, n=40)[-1]
    interval = bootstrap_interval([[-1.0, 0.0, 1.0]], articles=np.arange(3), resamples=40_000)
    assert (interval.low, interval.high) == pytest.approx((-high, high), rel=0.08)


def test_where_articles_matter_intervals_over_articles_cover_and_those_over_questions_do_not():
    draw = np.random.default_rng(1)
    sizes = draw.integers(10, 40, size=12)
    sets = [in_articles(draw, sizes, article_sd=1.0) for _ in range(400)]
    inside, wrong, swaps = coverage((a, b, {"articles": articles}) for a, b, articles in sets)
    assert 0.92 <= inside <= 0.985  # 95%, within three standard errors
    assert 0.015 <= wrong <= 0.08
    assert 0.015 <= swaps <= 0.08
    inside, wrong, swaps = coverage((a, b, {}) for a, b, _ in sets)
    assert inside < 0.7
    assert min(wrong, swaps) > 0.3


def test_where_seeds_matter_three_of_them_cover_as_often_as_they_say():
    draw = np.random.default_rng(2)
    sets = [in_articles(draw, [6] * 20, article_sd=0.1, run_sd=1.0, runs=3) for _ in range(600)]
    inside, wrong, swaps = coverage((a, b, {"articles": articles}) for a, b, articles in sets)
    assert 0.92 <= inside <= 0.985
    assert 0.015 <= wrong <= 0.08
    assert swaps > 0.4, "of these very runs, which do differ: it is shown beside the other and never alone"


def test_runs_of_unequal_systems_are_told_apart_over_articles():
    draw = np.random.default_rng(3)
    a, b, articles = in_articles(draw, [20] * 15, article_sd=0.2, run_sd=0.05, runs=5)
    result = effect(a, b + 0.5, articles=articles)
    assert result.interval.low > 0
    assert result.p_bootstrap < 0.01
    shuffled = draw.permutation(len(articles))
    again = effect(a[:, shuffled], b[:, shuffled] + 0.5, articles=10 * articles[shuffled])
    assert again.interval == pytest.approx(result.interval), "the order and the numbers say nothing"


def test_articles_must_be_several_and_of_every_question():
    scores = np.ones((2, 4))
    with pytest.raises(ValueError, match="all questions are of one article"):
        bootstrap_interval(scores, articles=np.zeros(4, dtype=np.int64))
    with pytest.raises(ValueError, match="3 articles of 4 questions"):
        effect(scores, scores, articles=np.arange(3))
    same = effect(scores, scores, articles=np.array([0, 0, 1, 1]))
    assert (same.interval, same.p_bootstrap) == ((0.0, 0.0), 1.0)


def test_direction_and_scale():
    a, b = systems(300, 1, better=0.5)
    better, worse, percent = effect(a, b), effect(b, a), effect(100 * a, 100 * b)
    assert better.delta == pytest.approx(b.mean() - a.mean())
    assert better.delta > 0
    assert better.interval.low > 0 > worse.interval.high
    assert worse.delta == -better.delta
    assert percent.delta == pytest.approx(100 * better.delta)
    assert percent.p_bootstrap == pytest.approx(better.p_bootstrap, abs=0.005)


def test_the_same_seed_gives_the_same_figures():
    a, b = systems(100, 2, better=0.1)
    assert effect(a, b, seed=4) == effect(a, b, seed=4) != effect(a, b, seed=5)


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
