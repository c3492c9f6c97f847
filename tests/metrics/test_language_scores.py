"""Perplexity, accuracy and bits per byte by hand, and that batches do not matter."""

from __future__ import annotations

import math

import pytest

from qa_arch.metrics.language_scores import BlockScores, TextSize, language_scores

BLOCKS = [
    BlockScores(loss=6.0, tokens=2, right=1, odds=2.0, follows=True),
    BlockScores(loss=1.0, tokens=8, right=7, odds=-1.0, follows=True),
    BlockScores(loss=3.0, tokens=10, right=2, odds=0.5, follows=False),
]
TEXT = TextSize(tokens=100, bytes=400)


def test_the_mean_is_over_tokens_and_not_over_blocks():
    scores = language_scores(BLOCKS, TEXT, every_token=False)
    assert scores["loss"] == pytest.approx(10 / 20)
    assert scores["perplexity"] == pytest.approx(math.exp(0.5))
    assert scores["token_accuracy"] == pytest.approx(50.0)
    assert (scores["targets"], scores["blocks"]) == (20, 3)


def test_bits_per_byte_of_a_sample_and_of_every_token():
    sampled = language_scores(BLOCKS, TEXT, every_token=False)["bits_per_byte"]
    assert sampled == pytest.approx(0.5 / math.log(2) * 100 / 400)
    spelled = language_scores(BLOCKS, TEXT, every_token=True)["bits_per_byte"]
    assert spelled == pytest.approx(10 / math.log(2) / 400)  # all bits over all bytes


def test_a_uniform_model_over_bytes_has_eight_bits_a_byte():
    block = BlockScores(loss=50 * math.log(256), tokens=50, right=0)
    scores = language_scores([block], TextSize(50, 50), every_token=True)
    assert scores["bits_per_byte"] == pytest.approx(8.0)
    assert scores["perplexity"] == pytest.approx(256.0)


def test_accuracy_and_f1_of_the_sentence_task():
    scores = language_scores(BLOCKS, TEXT, every_token=False)
    assert scores["sentence_accuracy"] == pytest.approx(100 / 3)
    assert scores["sentence_f1"] == pytest.approx(50.0)  # P = R = 1/2
    plain = language_scores([BlockScores(1.0, 1, 0)], TEXT, every_token=False)
    assert not {"sentence_accuracy", "sentence_f1"} & set(plain)


def test_a_model_that_never_says_follows_has_an_f1_of_zero():
    blocks = [BlockScores(1.0, 1, 0, 0.0, True), BlockScores(1.0, 1, 0, -3.0, False)]
    scores = language_scores(blocks, TEXT, every_token=False)
    assert (scores["sentence_accuracy"], scores["sentence_f1"]) == (50.0, 0.0)


def test_a_loss_that_ran_away_is_infinite_perplexity():
    assert language_scores([BlockScores(1e6, 1, 0)], TEXT, every_token=True)["perplexity"] == math.inf


def test_nothing_predicted_is_no_score():
    with pytest.raises(ValueError, match="no predicted token"):
        language_scores([BlockScores(0.0, 0, 0)], TEXT, every_token=True)
