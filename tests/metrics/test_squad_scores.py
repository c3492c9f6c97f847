"""The evaluation as a whole: hand-computed sets, parity with the plain definition, invariants."""

from __future__ import annotations

import json
import math

import pytest

from qa_arch.data.squad import read
from qa_arch.errors import DataError
from qa_arch.metrics.squad import aggregate, missing_ids, score, score_questions

GOLDS = {
    "q1": ["the red mill", "old red mill"],
    "q2": ["a ferry"],
    "q3": [],
    "q4": [],
    "q5": ["the"],  # an answer of which nothing is left
}
TEXTS = {
    "q1": "red mill house",
    "q2": "Ferry!",
    "q3": "",
    "q4": "some lamp",
    "q5": "",
}
# exact: q1 0, q2 1, q3 1, q4 0, q5 1 (nothing of nothing)             -> 3 / 5
# F1: q1 against "red mill": p 2/3, r 2/2, F1 = (4/3) / (5/3) = 0.8
#     q1 against "old red mill": p 2/3, r 2/3, F1 = 2/3; best 0.8
#     q2 1, q3 1, q4 0, q5 1                                           -> 3.8 / 5
# HasAns (q1, q2, q5): exact 2/3, F1 2.8/3.  NoAns (q3, q4): 1/2, 1/2
# token precision: (2/3 + 1 + 1 + 0 + 1) / 5; recall: (1 + 1 + 1 + 0 + 1) / 5
# answered: q1, q2 (answerable), q4 (not); abstained: q5 (answerable), q3 (not)


def test_scores_by_hand(gold_set):
    scores = score(gold_set(GOLDS), TEXTS)
    assert list(scores.official) == [
        *("exact", "f1", "total"),
        *("HasAns_exact", "HasAns_f1", "HasAns_total"),
        *("NoAns_exact", "NoAns_f1", "NoAns_total"),
    ]
    expected = [60, 76, 5, 200 / 3, 280 / 3, 3, 50, 50, 2]
    assert list(scores.official.values()) == pytest.approx(expected)
    rates = dict.fromkeys(("precision", "recall", "f1"), pytest.approx(200 / 3))
    assert scores.more == {
        "token_precision": pytest.approx(100 * (2 / 3 + 3) / 5),
        "token_recall": pytest.approx(80),
        **{f"answerable_{key}": rate for key, rate in rates.items()},
        "answerable_accuracy": pytest.approx(60),
        **{"answered_answerable": 2, "answered_unanswerable": 1},
        **{"abstained_answerable": 1, "abstained_unanswerable": 1},
    }
    silent = score(gold_set(GOLDS), TEXTS | {"q2": "", "q4": ""}).more
    assert (silent["answerable_precision"], silent["answerable_recall"]) == (100.0, pytest.approx(100 / 3))
    assert silent["answerable_f1"] == pytest.approx(50)  # 2 * 1 * (1/3) / (4/3)


def test_null_threshold_by_hand(gold_set):
    # Above 0.5: q2 (answerable: 1 -> 0), q4 (not: 0 -> 1). Not above it: q1 at 0.5 itself.
    null = {"q1": 0.5, "q2": 0.9, "q3": 0.1, "q4": 0.6, "q5": 0.0}
    scores = score(gold_set(GOLDS), TEXTS, null_scores=null, threshold=0.5)
    assert (scores.exact, scores.f1) == (pytest.approx(60), pytest.approx(76))
    assert (scores.official["HasAns_exact"], scores.official["NoAns_exact"]) == (
        pytest.approx(100 / 3),
        100.0,
    )
    assert scores.more["answered_answerable"] == 1
    # Best threshold, exact: abstaining throughout is right for q3, q4 = 2. By rising probability:
    # q5 +1 = 3, q3 silent anyway 3, q1 +0, q4 answers -1 = 2, q2 +1 = 3: best 3 of 5, reached at 0.0.
    # F1: q5 3, q3 3, q1 +0.8 = 3.8 at 0.5, q4 2.8, q2 3.8 (no higher)
    # pr_exact: ranks q5 q3 q1 q4 q2; hits 1 1 1 1 2 of 3; area = 1/1 * 1/3 + 2/5 * 1/3
    # pr_f1: hits 1 1 1.8 1.8 2.8; area = 1 * 1/3 + 1.8/3 * 0.8/3 + 2.8/5 * 1/3
    # oracle: hits 1 1 2 2 3; area = (1 + 2/3 + 3/5) / 3
    ranked = dict(list(scores.official.items())[9:])
    assert ranked == pytest.approx(
        {
            **{"best_exact": 60.0, "best_exact_thresh": 0.0, "best_f1": 76, "best_f1_thresh": 0.5},
            "pr_exact_ap": 100 * (1 / 3 + 2 / 15),
            "pr_f1_ap": 100 * (1 / 3 + 0.16 + 0.56 / 3),
            "pr_oracle_ap": 100 * (1 + 2 / 3 + 3 / 5) / 3,
        }
    )


def test_protocol_11_by_hand(gold_set):
    questions = gold_set({"q1": ["the red mill"], "q2": ["a ferry"], "q3": ["the"]}, "1.1")
    scores = score(questions, {"q1": "red", "q2": "ferry", "q3": "A"})
    # q1: F1 of p 1, r 1/2 = 2/3; q2 1; q3 matches exactly and has no token in common: F1 0
    assert scores.official == {"exact_match": 100.0 * 2 / 3, "f1": pytest.approx(100 * (5 / 3) / 3)}


def test_missing_predictions_count_zero_in_11_and_are_left_out_in_20(gold_set):
    golds = {"q1": ["mill"], "q2": ["ferry"], "q3": ["lamp"], "q4": ["oar"]}
    texts = {"q1": "mill", "q2": "barge", "q3": "lamp"}
    for protocol, total, exact in (("1.1", 4, 50.0), ("2.0", 3, 100.0 * 2 / 3)):
        questions = gold_set(golds, protocol)
        assert missing_ids(questions, texts) == ["q4"]
        scores = aggregate(score_questions(questions, texts), protocol, missing=1)
        counted = scores.more["answered_answerable"] + scores.more["abstained_answerable"]
        assert (counted, scores.exact) == (total, exact)
        with pytest.raises(DataError, match="1 of 4 questions have no prediction: q4"):
            score(questions, texts)


def test_what_cannot_be_scored_is_an_error(gold_set):
    with pytest.raises(DataError, match=r"q3: has no answer.*1\.1"):
        score(gold_set(GOLDS), TEXTS, protocol="1.1")
    with pytest.raises(DataError, match="no prediction belongs"):
        aggregate((), "2.0", missing=5)
    with pytest.raises(DataError, match="q2: has a prediction and no no-answer score"):
        score(gold_set({"q1": [], "q2": []}), {"q1": "", "q2": ""}, null_scores={"q1": 0.0})


def test_a_set_of_one_and_sets_without_one_kind(gold_set):
    only = score(gold_set({"q": ["mill"]}), {"q": "mill"}, null_scores={"q": 0.2})
    assert (only.exact, only.official["best_f1_thresh"], only.official["pr_exact_ap"]) == (100.0, 0.2, 100.0)
    assert not any(key.startswith("NoAns") for key in only.official)
    never = score(gold_set({"q": []}), {"q": "mill"}, null_scores={"q": 0.2})
    assert (never.exact, never.official["best_f1"], never.official["best_f1_thresh"]) == (0.0, 100.0, 0.0)
    assert not any(key.startswith(("HasAns", "pr_")) for key in never.official)


def test_nan_never_abstains_and_infinity_as_threshold_never_allows_it(gold_set):
    questions = gold_set({"q1": [], "q2": [], "q3": ["lamp"]})
    texts = {"q1": "mill", "q2": "mill", "q3": "lamp"}
    null = {"q1": math.nan, "q2": math.inf, "q3": -math.inf}
    scores = score(questions, texts, null_scores=null, threshold=0.0)
    assert (scores.official["NoAns_exact"], scores.official["HasAns_exact"]) == (50.0, 100.0)
    always = score(questions, texts, null_scores=null, threshold=math.inf)
    assert always.official["NoAns_exact"] == 0.0


@pytest.mark.data
@pytest.mark.parametrize(
    ("data", "published", "exact", "f1"),
    [
        ("dev-v1.1.json", "match_lstm_boundary_ensemble_v1.1_dev.json", 67.63, 76.76),
        ("dev-v2.0.json", "bert_single_v2.0_dev.json", 78.74, 81.78),
    ],
)
def test_published_predictions(data, published, exact, f1, real_data, plain):
    path = real_data / "squad" / data
    questions = read(path)
    texts = json.loads((real_data / "published" / published).read_text("utf-8"))
    scores = score(questions, texts)
    assert (round(scores.exact, 2), round(scores.f1, 2)) == (exact, f1)
    articles = json.loads(path.read_text("utf-8"))["data"]
    reference = plain.evaluate_11 if questions.protocol == "1.1" else plain.evaluate_20
    assert scores.official == reference(articles, texts)
