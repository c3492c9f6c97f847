"""Accuracy and area of similarities, against counting pair by pair."""

from __future__ import annotations

import random

import pytest

from qa_arch.extras.selection.scores import paraphrase_scores


def plain_auc(scores: list[float], labels: list[bool]) -> float:
    right = [score for score, label in zip(scores, labels, strict=True) if label]
    wrong = [score for score, label in zip(scores, labels, strict=True) if not label]
    wins = sum((a > b) + 0.5 * (a == b) for a in right for b in wrong)
    return 100 * wins / (len(right) * len(wrong))


def plain_accuracy(scores: list[float], labels: list[bool], threshold: float) -> float:
    hits = sum((score >= threshold) == label for score, label in zip(scores, labels, strict=True))
    return 100 * hits / len(scores)


@pytest.mark.parametrize("seed", range(20))
def test_against_counting(seed):
    rng = random.Random(seed)
    labels = [True, False, *(rng.random() < 0.4 for _ in range(rng.randrange(30)))]
    scores = [rng.choice((-0.4, 0.0, 0.2, 0.5, 0.9)) + 0.1 * rng.randrange(3) * label for label in labels]
    found = paraphrase_scores(scores, labels, 0.5)
    assert found.auc == pytest.approx(plain_auc(scores, labels))
    assert found.accuracy == pytest.approx(plain_accuracy(scores, labels, 0.5))
    best = max(plain_accuracy(scores, labels, threshold) for threshold in (*scores, 2.0))
    assert found.oracle_accuracy == pytest.approx(best)
    assert (found.pairs, found.paraphrases) == (len(labels), sum(labels))


@pytest.mark.parametrize("label", [True, False])
def test_one_kind_alone_has_no_area(label):
    found = paraphrase_scores([0.1, 0.7], [label, label], 0.5)
    assert found.auc is None
    assert found.accuracy == 50.0
    assert found.oracle_accuracy == 100.0
