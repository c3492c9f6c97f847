"""Scores and predictions: values recorded from transformers 4.57.6."""

from __future__ import annotations

import json

import pytest

from qa_arch.errors import QaArchError
from qa_arch.extras.compat import squad_metrics
from qa_arch.extras.compat.squad import SquadExample, SquadFeatures, SquadResult
from qa_arch.features import tokenizers

PAIRS = [
    ("the Red Mill!", "red mill", 1, 1.0),
    ("red mill", "mill", 0, 2 / 3),
    ("", "the", 1, 1),
    ("", "x", 0, 0),
    ("a an the", "...", 1, 1),
    ("mill mill", "mill", 0, 2 / 3),
    ("İstanbul’s", "istanbul's", 0, 0),
    ("1,204", "1204", 1, 1.0),
    ("co-op", "co op", 0, 0),
    ("thé", "the", 0, 0),
    ("— a —", "—", 0, 2 / 3),
    ("red mill red", "mill red red", 0, 1.0),
    ("naïve a", "a naïve b", 0, 2 / 3),
]


@pytest.mark.parametrize(("gold", "predicted", "exact", "f1"), PAIRS)
def test_exact_match_and_f1(gold, predicted, exact, f1):
    values = squad_metrics.compute_exact(gold, predicted), squad_metrics.compute_f1(gold, predicted)
    assert values == (exact, f1)
    assert [type(value) for value in values] == [int, type(f1)]
    assert squad_metrics.get_tokens(None) == []
    assert squad_metrics.get_tokens(gold) == squad_metrics.normalize_answer(gold).split()


@pytest.mark.parametrize(
    ("predicted", "original", "lower", "text"),
    [
        ("steve smith", "Steve Smith's", True, "Steve Smith"),
        ("steve smith ' s", "Steve Smith's", True, "Steve Smith's"),
        ("thirty - two", "Thirty-two,", True, "Thirty-two"),
        ("naive", "naïve co-op", True, "naïve"),
        ("naïve", "naïve co-op", False, "naïve"),
        ("two", "(Two)", False, "(Two)"),
        ("", "x", True, "x"),
        ("²", "x²", True, "²"),
        ("istanbul", "İstanbul!", True, "İstanbul"),
        ("東", "東京", True, "東"),
        ("b c", "a  b  c ", True, "b  c"),
    ],
)
def test_final_text(predicted, original, lower, text):
    assert squad_metrics.get_final_text(predicted, original, lower) == text


GOLDS = [["red mill", "mill"], ["the"], [], [], ["blue ferry"]]
EXAMPLES = [
    SquadExample(f"q{n}", "?", "x", None, None, "t", [{"text": gold} for gold in golds])
    for n, golds in enumerate(GOLDS)
]
TEXTS = {"q0": "a mill", "q1": "", "q2": "oar", "q3": "", "q4": "ferry"}
ODDS = {"q3": 0.9, "q0": 0.1, "q4": 0.1, "q2": 0.4, "q1": -1.0}


def test_evaluation_with_and_without_null_odds():
    answered = {"HasAns_exact": 66.66666666666667, "HasAns_f1": 88.88888888888887, "HasAns_total": 3}
    assert list(squad_metrics.squad_evaluate(EXAMPLES, TEXTS).items()) == [
        *(("exact", 60.0), ("f1", 73.33333333333333), ("total", 5), *answered.items()),
        *(("NoAns_exact", 50.0), ("NoAns_f1", 50.0), ("NoAns_total", 2)),
        *(("best_exact", 80.0), ("best_exact_thresh", 0.0), ("best_f1", 80.0), ("best_f1_thresh", 0.0)),
    ]
    best = {"best_exact": 80.0, "best_exact_thresh": 0.1, "best_f1": 93.33333333333334, "best_f1_thresh": 0.1}
    assert squad_metrics.squad_evaluate(EXAMPLES, TEXTS, ODDS, 0.3) == {
        **{"exact": 80.0, "f1": 93.33333333333334, "total": 5, **answered},
        **{"NoAns_exact": 100.0, "NoAns_f1": 100.0, "NoAns_total": 2, **best},
    }
    more: dict[str, float] = {}
    raw = squad_metrics.get_raw_scores(EXAMPLES, TEXTS)
    answerable = {f"q{n}": bool(golds) for n, golds in enumerate(GOLDS)}
    squad_metrics.find_all_best_thresh_v2(more, TEXTS, *raw, ODDS, answerable)
    assert more == {**best, "has_ans_exact": 0.6666666666666666, "has_ans_f1": 0.8888888888888888}


def test_question_without_a_prediction(capsys):
    texts = {id_: text for id_, text in TEXTS.items() if id_ != "q3"}
    exact, _ = squad_metrics.get_raw_scores(EXAMPLES, texts)
    assert list(exact) == ["q0", "q1", "q2", "q4"]
    assert capsys.readouterr().out == "Missing prediction for q3\n"
    # Answering nothing still counts it as right, in a mean over the four scored questions.
    answerable = {f"q{n}": bool(golds) for n, golds in enumerate(GOLDS)}
    assert squad_metrics.find_best_thresh(texts, exact, ODDS, answerable) == (100.0, 0.1)
    with pytest.raises(KeyError):
        squad_metrics.squad_evaluate(EXAMPLES, texts)


def test_best_indexes_and_softmax():
    assert squad_metrics._get_best_indexes([1, 3, 3, 2], 3) == [1, 2, 3]
    probabilities = [0.09003057317038046, 0.6652409557748218, 0.24472847105479764]
    assert squad_metrics._compute_softmax([1.0, 3.0, 2.0]) == probabilities
    assert squad_metrics._compute_softmax([]) == []


def window(example: int, unique_id: int) -> SquadFeatures:
    """[CLS] who [SEP] red mill ##s [SEP]: the words "Red Mills" from token 3 on."""
    unused: list[int] = []
    return SquadFeatures(
        input_ids=unused,
        attention_mask=unused,
        token_type_ids=unused,
        cls_index=0,
        p_mask=unused,
        example_index=example,
        unique_id=unique_id,
        paragraph_len=3,
        token_is_max_context={3: True, 4: True, 5: unique_id != 8},
        tokens=["[CLS]", "who", "[SEP]", "red", "mill", "##s", "[SEP]"],
        token_to_orig_map={3: 0, 4: 1, 5: 1},
        start_position=0,
        end_position=0,
        is_impossible=False,
    )


def predict(tmp_path, null: bool, threshold: float = 0.0, **arguments):
    """Two windows of q0, and one of q1 whose best ends lie before its best starts."""
    examples = [SquadExample(id_, "who", "Red Mills", None, None, "t") for id_ in ("q0", "q1")]
    results = [
        SquadResult(7, [1.0, 0, 0, 2.0, 1.0, 0, 9.0], [0.5, 0, 0, 1.0, 3.0, 2.0, 9.0]),
        SquadResult(8, [0.5, 0, 0, 2.0, 0.0, 9.0, 0], [0.5, 0, 0, 0.0, 0.0, 4.0, 0]),
        SquadResult(9, [5.0, 4, 3, -1, -1, 0, 4.0], [5.0, 4, 3, 0, -1, -1, 4.0]),
    ]
    options = {"n_best_size": 5, "max_answer_length": 2, "do_lower_case": True} | arguments
    files = [tmp_path / name for name in ("texts.json", "nbest.json", "odds.json")]
    texts = squad_metrics.compute_predictions_logits(
        examples,
        [window(0, 7), window(0, 8), window(1, 9)],
        results,
        *options.values(),
        *map(str, files),
        *(False, null, threshold, tokenizers.wordpiece(["red", "mill", "##s", "who"])),
    )
    return texts, [json.loads(file.read_text("utf-8")) if file.exists() else None for file in files]


def test_predictions_from_logits(tmp_path):
    texts, (written, nbest, odds) = predict(tmp_path, null=False)
    assert texts == written == {"q0": "Red Mill", "q1": "empty"}
    assert odds is None
    # No span outside the text, longer than two tokens, or with more context in the other window.
    assert [(row["text"], row["start_logit"], row["end_logit"]) for row in nbest["q0"]] == [
        ("Red Mill", 2.0, 3.0),
        ("Mill", 1.0, 3.0),
        ("Red", 2.0, 1.0),
        ("Mills", 1.0, 2.0),
    ]
    assert sum(row["probability"] for row in nbest["q0"]) == pytest.approx(1)
    assert nbest["q1"] == [{"text": "empty", "probability": 1.0, "start_logit": 0.0, "end_logit": 0.0}]


def test_predictions_with_null_odds(tmp_path):
    texts, (written, nbest, odds) = predict(tmp_path, null=True)
    assert texts == written
    assert odds["q0"] == 1.0 - 5.0  # the lowest null score of two windows minus the best span
    assert texts["q0"] != ""
    assert nbest["q0"][-1]["text"] == ""
    assert [row["text"] for row in nbest["q1"]] == ["empty", ""]
    assert (texts["q1"], odds["q1"]) == ("", 10.0)
    assert predict(tmp_path, null=True, threshold=-4.5)[0] == {"q0": "", "q1": ""}


def test_unwritable_file_raises(tmp_path):
    (tmp_path / "nbest.json").mkdir()
    with pytest.raises(QaArchError, match="nbest"):
        predict(tmp_path, null=False)


def test_unsupported_function_names_its_replacement():
    with pytest.raises(NotImplementedError, match="use compute_predictions_logits"):
        squad_metrics.compute_predictions_log_probs([], [], [])
