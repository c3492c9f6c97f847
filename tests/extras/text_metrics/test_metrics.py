"""BLEU, ROUGE, METEOR, CIDEr and perplexity: worked examples of their sources, and plain references; and
``qa-arch evaluate --text-metrics``."""

import json
import math
import random
import sys
from collections import Counter
from importlib.util import find_spec

import pytest
from metrics.conftest import gold_set  # noqa: F401
from metrics.test_evaluate import TEXTS, data, data_11, evaluate, write  # noqa: F401

from qa_arch.errors import DataError, UnavailableError
from qa_arch.extras.text_metrics.metrics import bleu, cider, meteor, rouge, score

needs_libraries = pytest.mark.skipif(
    not all(map(find_spec, ("sacrebleu", "rouge_score", "nltk"))), reason="needs qa-arch[text]"
)
CAT = "the cat is on the mat"


@needs_libraries
def test_bleu() -> None:
    # 4 of 4 words, 1 of 3 bigrams ("the cat"), 4 words against 6.
    by_definition = 100 * math.exp(1 - 6 / 4) * math.sqrt(4 / 4 * 1 / 3)
    assert bleu(["the cat on mat"], [[CAT]], order=2) == pytest.approx(by_definition)
    # Papineni et al. 2002, example 2: seven times "the" matches twice, the best of the two references.
    golds = ["The cat is on the mat.", "There is a cat on the mat."]
    assert bleu(["the the the the the the the"], [golds], order=1) == pytest.approx(100 * 2 / 7)
    # Bigrams: 2 of 2 and 0 of 1; words 3 of 3 and 1 of 2; the nearest gold lengths are 3 and 2.
    value = bleu(["a red mill", "blue lamp"], [["a red mill"], ["lamp", "green lamp", "x y z w"]], order=2)
    assert value == pytest.approx(100 * math.sqrt(4 / 5 * 2 / 3))
    assert bleu(["A RED MILL"], [["a red mill"]], order=3) == pytest.approx(100)
    assert bleu(["one word"], [["one word"]], order=4) == 0  # by the definition: there is no 3-gram
    assert bleu(["", "lamp"], [["lamp"], ["lamp"]], order=1) == pytest.approx(100 * math.exp(1 - 2 / 1))


@needs_libraries
@pytest.mark.parametrize(
    ("text", "golds", "expected"),
    [
        (CAT, [CAT], (1, 1, 1)),
        # "on the", "the mat", "the cat"; longest common subsequence "on the mat".
        ("on the mat is the cat", [CAT], (1, 3 / 5, 1 / 2)),
        ("the cat", ["a dog", "the cat sat", "dog"], (0.8, 2 / 3, 0.8)),  # the best gold
        ("THÉODORE", ["Théodore Zürich"], (2 / 3, 0, 2 / 3)),  # accents stay inside words
        ("हिन्दी", ["हिन्दु"], (0, 0, 0)),  # and marks, the vowels of Hindi
        ("", ["lamp"], (0, 0, 0)),
    ],
)
def test_rouge(text, golds, expected) -> None:
    names = ("rouge_1", "rouge_2", "rouge_l")
    assert rouge([text], [golds]) == pytest.approx({n: 100 * e for n, e in zip(names, expected, strict=True)})


@needs_libraries
@pytest.mark.parametrize(
    ("text", "golds", "expected"),
    [
        # Examples from the literature: six matches in 6 chunks, in 1, and in 2 with precision 6/7.
        ("on the mat sat the cat", ["the cat sat on the mat"], 0.5),
        ("the cat sat on the mat", ["the cat sat on the mat"], 1 - 0.5 / 6**3),
        ("the cat was sat on the mat", ["the cat sat on the mat"], 60 / 7 / (1 + 54 / 7) * (1 - 0.5 / 27)),
        ("Mills", ["mill"], 0.5),  # by stem; one chunk of one word
        ("mill", ["ferry", "mill"], 0.5),  # the best gold
        ("", ["mill"], 0),
    ],
)
def test_meteor(text, golds, expected) -> None:
    assert meteor([text], [golds]) == pytest.approx(100 * expected)


def test_cider_matches_the_paper() -> None:
    """Eqs. 1 to 3, with normalised term frequencies."""
    rng = random.Random(0)
    known = ["red", "mill", "blue", "ferry", "lamp", "oar", "by", "the"]
    texts = [rng.choices(known, k=rng.randint(0, 7)) for _ in range(30)]
    predictions, references = texts[:8], [texts[8 + 2 * i : 10 + 2 * i] for i in range(8)]

    def grams(tokens, n):
        return Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))

    def vector(tokens, n, vocabulary):
        counts = grams(tokens, n)
        for gram in vocabulary:
            documents = sum(any(gram in grams(gold, n) for gold in row) for row in references)
            idf = math.log(len(references) / max(1, documents))
            yield counts[gram] / max(1, counts.total()) * idf

    total = 0.0
    for n in (1, 2, 3, 4):
        vocabulary = sorted({gram for text in texts for gram in grams(text, n)})
        for text, row in zip(predictions, references, strict=True):
            a, *golds = ([*vector(tokens, n, vocabulary)] for tokens in (text, *row))
            for b in golds:
                norm = math.hypot(*a) * math.hypot(*b)
                total += sum(x * y for x, y in zip(a, b, strict=True)) / norm / len(row) / 4 if norm else 0
    actual = cider([" ".join(text) for text in predictions], [[*map(" ".join, row)] for row in references])
    assert actual == pytest.approx(10 * total / 8)


def test_missing_library_names_the_install_command(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(UnavailableError, match=r"pip install -e '\.\[text\]'"):
        bleu(["a"], [["a"]])


@needs_libraries
def test_all_metrics_over_answerable_questions(gold_set) -> None:  # noqa: F811
    questions = gold_set({"q1": ["red mill", "mill", "mill"], "q2": [], "q3": ["blue ferry"], "q4": ["oar"]})
    scores = score(questions, {"q1": "mill", "q2": "lamp", "q3": "", "z": "oar"})
    # q2 has no answer and q4 no prediction. q1 is right by its second gold; no answer to q3 is wrong.
    assert scores["questions"] == 2
    assert (scores["rouge_1"], scores["rouge_l"]) == (50.0, 50.0)
    assert scores["meteor"] == 25.0
    assert scores["bleu_1"] == pytest.approx(100 * math.exp(1 - 3))
    assert scores["bleu_2"] == 0
    # The mean over all golds: "red mill" (1 / sqrt 2), and "mill" (1) of two annotators.
    assert scores["cider"] == pytest.approx(10 * (1 / math.sqrt(2) + 2) / 3 / 4 / 2)
    assert {"bleu_3", "bleu_4", "rouge_2"} <= set(scores)
    with pytest.raises(DataError, match="no answerable question has a prediction"):
        score(questions, {"q2": "lamp"})
    with pytest.raises(DataError, match=r"look like language zh, whose words no spaces separate"):
        score(gold_set({"q1": ["東京都"]}), {"q1": "東京"})


@needs_libraries
def test_perplexity_of_the_predicted_answers(gold_set) -> None:  # noqa: F811
    questions = gold_set({"q1": ["red mill"], "q2": ["oar"], "q3": ["blue ferry"], "q4": []})
    predictions = {"q1": "mill", "q2": "oar", "q3": "", "q4": "lamp"}
    candidates = {"q1": {"red mill": 0.5, "mill": 0.2}, "q2": {"oar": 0.8}, "q4": {"lamp": 0.9}}
    scores = score(questions, predictions, candidates)
    assert scores["perplexity"] == pytest.approx(1 / math.sqrt(0.2 * 0.8))  # q3 has no predicted answer
    assert score(questions, dict.fromkeys(predictions, ""), candidates)["perplexity"] is None
    assert score(questions, predictions, candidates | {"q2": {"oar": 0.0}})["perplexity"] == math.inf
    tiny = {id_: dict.fromkeys(texts, 1e-320) for id_, texts in candidates.items()}  # exp would overflow
    assert score(questions, predictions, tiny)["perplexity"] == math.inf
    assert "perplexity" not in score(questions, predictions)
    with pytest.raises(DataError, match=r"q2: the prediction 'oars' is not among its candidates"):
        score(questions, predictions | {"q2": "oars"}, candidates)


def test_text_metrics_leave_the_official_keys_unchanged(evaluate, data, data_11, tmp_path):  # noqa: F811
    pytest.importorskip("sacrebleu")
    target = tmp_path / "scores.json"
    plain = json.loads(evaluate(data, TEXTS)[1])
    code, out, _ = evaluate(data, TEXTS, "--text-metrics", "--out", target)
    scores = json.loads(out)
    assert code == 0
    assert json.loads(target.read_text("utf-8")) == scores
    metrics = scores.pop("text_metrics")
    assert list(scores.items()) == list(plain.items())
    # q1 "mill" against "red mill" 2/3, q2 right; unanswerable questions do not count.
    assert (metrics["questions"], metrics["rouge_1"]) == (2, pytest.approx(100 * (2 / 3 + 1) / 2))
    # A text with null odds above the threshold is no answer.
    na = write(tmp_path / "na.json", {"q1": 0.1, "q2": 0.8, "q3": 0, "q4": 0})
    _, out, _ = evaluate(data, TEXTS, "--na-prob", na, "--null-threshold", 0.5, "--text-metrics")
    assert json.loads(out)["text_metrics"]["rouge_1"] == pytest.approx(100 * (2 / 3) / 2)
    # A missing prediction counts as in the protocol: 0 in 1.1, left out in 2.0.
    for questions, file in ((2, data_11), (1, data)):
        _, out, _ = evaluate(file, {"q1": "red mill"}, "--text-metrics")
        metrics = json.loads(out)["text_metrics"]
        assert (metrics["questions"], metrics["rouge_1"]) == (questions, pytest.approx(100 / questions))


def test_perplexity_comes_from_the_n_best_file(evaluate, data, tmp_path):  # noqa: F811
    pytest.importorskip("sacrebleu")

    def candidates(*pairs):
        return [{"text": text, "probability": p, "start_logit": 0.0, "end_logit": 0.0} for text, p in pairs]

    lists = {"q1": candidates(("mill", 0.5), ("red mill", 0.1)), "q2": candidates(("théodore", 0.125))}
    nbest = write(tmp_path / "nbest.json", lists)
    code, out, _ = evaluate(data, TEXTS, "--text-metrics", "--nbest", nbest)
    assert (code, json.loads(out)["text_metrics"]["perplexity"]) == (0, pytest.approx(4.0))
    code, _, err = evaluate(data, TEXTS, "--nbest", nbest)
    assert (code, "add --text-metrics" in err) == (2, True)
    for wrong in ("mill", candidates(("mill", 1.5))):
        bad = write(tmp_path / "bad.json", {"q1": wrong})
        code, _, err = evaluate(data, TEXTS, "--text-metrics", "--nbest", bad)
        assert (code, "bad.json: q1: " in err) == (4, True)
