"""``experiments/paraphrases``: made-up pairs with known ranks, and nothing fitted on what is scored."""

import json
from collections import Counter

import numpy as np
import pytest
from scripts import EXPERIMENTS, load

from qa_arch.types import Example, Gold

paraphrases = load("paraphrases/tables.py")
scoring = load("paraphrases/scores.py")

REWORDINGS = EXPERIMENTS / "paraphrases/rewordings.jsonl"
ARTICLE = np.repeat(np.arange(10), 20)
"""Ten clusters of twenty rows."""


def made_up(kinds: dict[str, float], noise: float = 0.0) -> dict[str, np.ndarray]:
    """Twenty pairs of each kind in ten clusters, with its score; one scorer has it upside down."""
    rng = np.random.default_rng(0)
    kind, cluster = np.repeat(list(kinds), 20), np.tile(np.arange(20) // 2, len(kinds))
    score = np.repeat(list(kinds.values()), 20) + noise * rng.normal(size=len(kind))
    return {"kind": kind, "cluster": cluster, "glove": score, "qa_lstm": -score, "minilm": 0 * score}


def test_areas_and_accuracies_of_known_ranks():
    kinds = {"rewording": 3, "generated": 0, "twin": 1, "edit": 2, "other": -1, "opposite": -1}
    table, differences = paraphrases.pair_tables(made_up(kinds))
    rows = {(row["comparison"], row["scorer"]): row for row in table.rows}
    every, twins, *_ = paraphrases.COMPARISONS
    assert rows[every, "GloVe means"]["auroc"] == 50  # of four pairs of kinds, two are in order
    assert (rows[twins, "GloVe means"]["auroc"], rows[twins, "GloVe means"]["accuracy"]) == (100, 100)
    assert (rows[twins, "QA-LSTM"]["auroc"], rows[twins, "QA-LSTM"]["accuracy"]) == (0, 50)
    assert (rows[twins, "MiniLM"]["auroc"], rows[twins, "MiniLM"]["accuracy"]) == (50, 50)
    assert rows[twins, "MiniLM"]["pairs"] == "20 + 20"
    first = {row["scorer"]: row for row in differences.rows if row["comparison"] == twins}
    assert {name: row["delta"] for name, row in first.items()} == {
        "QA-LSTM - GloVe means": -100,
        "MiniLM - GloVe means": -50,
        "MiniLM - QA-LSTM": 50,
    }
    assert first["MiniLM - QA-LSTM"]["delta_95_low"] == 50


def test_bootstrap_draws_whole_clusters_of_each_source():
    cluster = np.array([0, 0, 0, 1, 1, 2, 3, 3])
    sources = [cluster < 2, cluster >= 2, cluster > 9]
    drawn = list(paraphrases.resampled(cluster, sources))
    assert len(drawn) == paraphrases.DRAWS
    counts = {tuple(np.bincount(rows, minlength=8)) for rows in drawn}
    assert all(
        len({count[row] for row in np.flatnonzero(cluster == c)}) == 1 for count in counts for c in range(4)
    )
    assert {(count[0] + count[3], count[5] + count[6]) for count in counts} == {(2, 2)}
    assert len(counts) == 9


def test_threshold_is_not_fitted_on_the_scored_cluster():
    """Two clusters with levels of their own: the threshold of one accepts all or nothing of the other.

    One fitted on both would be right on the larger: 87.5.
    """
    cluster = np.repeat([0, 1], [30, 10])
    positive = np.arange(40) % 2 == 0
    assert paraphrases.held_out_accuracy(10.0 * cluster + positive, positive, cluster) == 50
    assert paraphrases.held_out_accuracy(1.0 * positive, positive, cluster) == 100


def test_labels_of_an_article_do_not_reach_its_own_odds():
    rng = np.random.default_rng(1)
    features = rng.normal(size=(200, 2))
    answerable = features[:, 0] + rng.normal(size=200) > 0
    odds = paraphrases.held_out_odds(features, answerable, ARTICLE)
    flipped = np.where(ARTICLE == 3, ~answerable, answerable)
    again = paraphrases.held_out_odds(features, flipped, ARTICLE)
    same = odds == again
    assert same[ARTICLE == 3].all()
    assert not same[ARTICLE != 3].any()


def test_logistic_regression_solves_its_equations():
    """The gradient is zero: Σ (true - p) x = 0; a constant alone gives the log odds of the share."""
    rng = np.random.default_rng(2)
    rows = np.column_stack([np.ones(200), rng.normal(size=(200, 2))])
    true = rows[:, 1] - rows[:, 2] + rng.normal(size=200) > 0
    probability = 1 / (1 + np.exp(-rows @ paraphrases.logistic(rows, true)))
    np.testing.assert_allclose(rows.T @ (true - probability), 0, atol=1e-8)
    np.testing.assert_allclose(paraphrases.logistic(rows[:, :1], np.arange(200) < 50), [np.log(1 / 3)])


def test_area_within_articles_ignores_their_levels():
    answerable = np.tile([True, False], 100)
    score = answerable + 100.0 * ARTICLE
    assert paraphrases.by_article(score, answerable, ARTICLE).mean() == 1
    assert paraphrases.by_article(-score, answerable, ARTICLE).mean() == 0


def test_cosines_and_best_sentence():
    def encode(texts):
        return np.array([[text.count("a"), text.count("b")] for text in texts], float)

    cosine = scoring.by_vectors(encode)
    np.testing.assert_allclose(
        cosine([("a", "aaa"), ("a", "b"), ("ab", "a"), ("", "a")]), [1, 0, 0.5**0.5, 0]
    )
    examples = [
        Example("1", "aa", "B b. Ab ab. B.", answers=(Gold("B", 0),)),
        Example("2", "bb", "A a. Aaab.", answers=(Gold("A", 0),)),
    ]
    np.testing.assert_allclose(scoring.best_sentences(examples, cosine), [0.5**0.5, 0.1**0.5])


def test_tokenised_and_plain_questions_are_compared_alike():
    assert scoring.plain("who does n't own bob 's u . s . mill ?") == scoring.plain(
        "Who doesn't own Bob's U.S. mill?"
    )


def test_pairs_of_a_training_question():
    texts = {"1": ("Who came?", "Ada"), "2": ("Who went?", "Ada"), "3": ("Who left?", "Bo")}
    questions = [Example(i, q, "Ada, Bo.", "Mill", (Gold(a, 0),)) for i, (q, a) in texts.items()]
    questions.insert(0, Example("0", "Who sat?", "Cy.", "Mill", (Gold("Cy", 0),)))
    pairs = list(scoring.of_training({"1": "Whose arrival?"}, {"1": "Who never came?"}, questions))
    assert [pair.kind for pair in pairs] == ["rewording", "twin", "other"]
    assert [pair.second for pair in pairs] == ["Whose arrival?", "Who never came?", "Who left?"]
    assert {(pair.cluster, pair.first) for pair in pairs} == {("Mill", "Who came?")}


def test_edits_change_question_and_answer_once_per_original():
    originals = [Example(i, f"Who is {i}?", "Ada, Bo.", "T", (Gold("Ada", 0),)) for i in "ba"]
    bo = (Gold("Bo", 5),)
    edited = [
        Example("1", "Who is b ?", "Ada, Bo.", "T", bo, original="b"),
        Example("2", "Who is not b?", "Ada, Bo.", "T", (Gold("Ada", 0),), original="b"),
        Example("3", "Who isn't b?", "Ada, Bo.", "T", bo, original="b"),
        Example("4", "Who isn't a?", "Ada, Bo.", "T", bo, original="a"),
        Example("5", "Who was a?", "Ada, Bo.", "T", bo, original="a"),
    ]
    seconds = [pair.second for pair in scoring.edits(originals, edited, 5)]
    assert seconds == ["Who isn't a?", "Who isn't b?"]
    assert [pair.second for pair in scoring.edits(originals, edited, 1)] == seconds[:1]


def test_generated_pairs_keep_subject_and_change_wording_or_relation():
    pairs = list(scoring.generated(60))
    kinds = Counter(pair.kind for pair in pairs)
    assert kinds["generated"] == 60
    assert 0 < kinds["opposite"] < 60
    assert all(pair.first != pair.second for pair in pairs)
    assert {"buyer", "attacker", "closing"} <= {pair.cluster for pair in pairs if pair.kind == "opposite"}
    for pair in pairs:
        names = {word for word in pair.first.rstrip("?").split()[1:] if word[0].isupper()}
        assert names <= set(pair.second.rstrip("?").split())


@pytest.mark.data
def test_rewordings_are_of_training_questions_and_every_kind_is_as_large(real_data):
    rows = [json.loads(line) for line in REWORDINGS.read_text(encoding="utf-8").splitlines()]
    pairs = scoring.all_pairs(real_data)
    kinds = Counter(pair.kind for pair in pairs)
    assert {kinds[kind] for kind in ("rewording", "twin", "other", "generated", "edit")} == {len(rows)}
    assert len({row["id"] for row in rows}) == len(rows) >= 200
    assert all(scoring.plain(pair.first) != scoring.plain(pair.second) for pair in pairs)
    articles = Counter(pair.cluster for pair in pairs if pair.kind == "rewording")
    assert set(articles.values()) == {13}
