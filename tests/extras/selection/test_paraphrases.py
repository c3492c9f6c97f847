"""Question pairs from a file with errors by line, and their scores against counting pair by pair."""

import random

import pytest

from qa_arch.errors import DataError
from qa_arch.extras.selection.recipe import paraphrase_scores
from qa_arch.extras.selection.sets import Pair, read_pairs


def test_read_pairs_with_and_without_labels(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("Who is it?\tWho was it?\t1\n\nWhere?\t When? \t0\n")
    assert read_pairs(path) == [Pair("Who is it?", "Who was it?", True), Pair("Where?", "When?", False)]
    path.write_text("\ufeffWho is it?\tWho was it?\n", encoding="utf-8")
    assert read_pairs(path) == [Pair("Who is it?", "Who was it?", None)]
    odd = "Who\u2028is\x85it\x0b, or\x0cnot?"  # only a line feed ends a pair
    path.write_bytes(f"{odd}\tWho was it?\t1\r\n".encode())
    assert read_pairs(path) == [Pair(odd, "Who was it?", True)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\tb\nc\n", "line 2: write two questions"),
        (b"a\t \n", "line 1: write two questions"),
        (b"a\tb\t1\tx\n", "line 1: write two questions"),
        (b"a\tb\t2\n", "line 1: write two questions, and optionally 0 or 1"),
        (b"a\tb\t1\nc\td\n", "line 2: only some lines have a label"),
        (b"a\tb\nc\td\t0\n", "line 2: only some lines have a label"),
        (b"\n", "has no pair"),
        (b"\xff\xfe\t\n", "is not UTF-8"),
        (None, "cannot be read"),
    ],
)
def test_invalid_pairs_are_refused_by_line(tmp_path, content, message):
    path = tmp_path / "pairs.tsv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=message) as error:
        read_pairs(path)
    assert str(path) in str(error.value)


def counted_area(scores: list[float], labels: list[bool]) -> float:
    right = [score for score, label in zip(scores, labels, strict=True) if label]
    wrong = [score for score, label in zip(scores, labels, strict=True) if not label]
    wins = sum((a > b) + 0.5 * (a == b) for a in right for b in wrong)
    return 100 * wins / (len(right) * len(wrong))


def counted_accuracy(scores: list[float], labels: list[bool], threshold: float) -> float:
    hits = sum((score >= threshold) == label for score, label in zip(scores, labels, strict=True))
    return 100 * hits / len(scores)


@pytest.mark.parametrize("seed", range(20))
def test_scores_match_counting(seed):
    rng = random.Random(seed)
    labels = [True, False, *(rng.random() < 0.4 for _ in range(rng.randrange(30)))]
    scores = [rng.choice((-0.4, 0.0, 0.2, 0.5, 0.9)) + 0.1 * rng.randrange(3) * label for label in labels]
    result = paraphrase_scores(scores, labels, 0.5)
    best = max(counted_accuracy(scores, labels, threshold) for threshold in (*scores, 2.0))
    assert result == {
        "pairs": len(labels),
        "paraphrases": sum(labels),
        "threshold": 0.5,
        "accuracy": pytest.approx(counted_accuracy(scores, labels, 0.5)),
        "oracle_accuracy": pytest.approx(best),
        "auroc": pytest.approx(counted_area(scores, labels)),
    }


@pytest.mark.parametrize("label", [True, False])
def test_auroc_is_none_for_a_single_label(label):
    result = paraphrase_scores([0.1, 0.7], [label, label], 0.5)
    assert (result["auroc"], result["accuracy"], result["oracle_accuracy"]) == (None, 50, 100)
