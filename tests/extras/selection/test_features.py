"""Vectors of unknown words, texts as rows, and sampled wrong answers, against plain loops."""

import numpy as np
import pytest

from qa_arch.extras.selection.features import (
    CandidateCollator,
    random_vectors,
    selection_table,
    with_buckets,
    word_rows,
)
from qa_arch.extras.selection.manifest import Selection
from qa_arch.extras.selection.sets import SelectionQuestion, selection_set
from qa_arch.features.batches import BucketBatchSampler, EpochBatchSampler
from qa_arch.features.vectors import WordVectors

KNOWN = WordVectors(("the", "The", "bee"), np.r_[np.zeros((1, 2)), np.eye(3, 2)].astype(np.float32))


def test_unknown_words_share_hashed_bucket_vectors():
    vectors = with_buckets(KNOWN, 5, seed=1)
    row = word_rows(vectors, 5)
    assert (row("the"), row("The"), row("THE"), row("Bee")) == (1, 2, 1, 3)
    assert row("Lomm") == row("lomm")
    assert 4 <= row("lomm") < 9
    assert len({row(f"word{n}") for n in range(50)}) == 5
    assert len(vectors.matrix) == 9
    assert vectors.matrix[4:].any(axis=1).all()
    assert not vectors.matrix[0].any()
    assert word_rows(with_buckets(KNOWN, 0, seed=1), 0)("lomm") == 0, "without buckets"
    np.testing.assert_array_equal(vectors.matrix, with_buckets(KNOWN, 5, seed=1).matrix)
    assert not np.array_equal(vectors.matrix, with_buckets(KNOWN, 5, seed=2).matrix)


def test_random_vectors_do_not_depend_on_word_order():
    first, second = (random_vectors(words, 4, 3) for words in (["b", "A", "b"], ["a", "B"]))
    assert first.words == second.words == ("a", "b")
    np.testing.assert_array_equal(first.matrix, second.matrix)
    assert not first.matrix[0].any()


ANSWERS = [("a",), ("b", "b"), ("c", "c", "c"), ("d",), ("e",)]
QUESTIONS = [
    SelectionQuestion("1", ("x", "y"), (0, 1, 2), (1,)),
    SelectionQuestion("2", ("z",), (2, 3), (3,)),
    SelectionQuestion("3", ("x",) * 9, range(5), (0, 4)),
]


@pytest.fixture
def table():
    letters = {word: number for number, word in enumerate("abcdexyz", 1)}
    settings = Selection(max_question=4, max_answer=2)
    return selection_table(selection_set("s", ANSWERS, QUESTIONS), letters.__getitem__, settings)


def test_batch_holds_each_answer_once(table):
    batch = CandidateCollator(table)([1, 0])
    assert batch.index.tolist() == [1, 0]
    assert batch.question.tolist() == [[8, 0], [6, 7]]
    assert batch.question_mask.tolist() == [[True, False], [True, True]]
    assert batch.answer.tolist() == [[1, 0], [2, 2], [3, 3], [4, 0]], "the third is truncated to two words"
    assert batch.offered.tolist() == [[True, True, False], [True, True, True]]
    offered = [[batch.answer[c][0].item() for c in row] for row in batch.candidate]
    assert offered[0][:2] == [3, 4]
    assert offered[1] == [1, 2, 3]
    assert batch.right.tolist() == [[False, True, False], [False, True, False]]
    assert batch.weight.tolist() == [1, 1]
    padding = CandidateCollator(table)([-2])
    assert (padding.index.tolist(), padding.weight.tolist()) == ([1], [0])
    assert CandidateCollator(table, 1, 0)((0, [-1, 1])).weight.tolist() == [0, 1]
    assert [len(question) for question in table.questions] == [2, 1, 4], "longer texts are truncated"
    assert CandidateCollator(table).lengths.tolist() == [2, 2, 2]


def test_pairs_have_one_right_answer_and_sampled_wrong_ones(table):
    assert table.pairs.tolist() == [[0, 1], [1, 3], [2, 0], [2, 4]]
    collate = CandidateCollator(table, negatives=2, seed=0)
    for epoch in range(20):
        batch = collate((epoch, [0, 1, 2, 3]))
        assert batch.right[:, 0].all()
        assert not batch.right[:, 1:].any()
        assert batch.offered.sum(1).tolist() == [3, 2, 3, 3]
        offered = [
            [batch.answer[c][0].item() - 1 for c in row[mask]]
            for row, mask in zip(batch.candidate, batch.offered, strict=True)
        ]
        assert [row[0] for row in offered] == [1, 3, 0, 4]
        assert set(offered[0][1:]) == {0, 2}
        assert offered[1][1:] == [2]
        assert {*offered[2][1:], *offered[3][1:]} <= {1, 2, 3}, "never the other right answer"
        assert all(len(set(row)) == len(row) for row in offered)


def test_wrong_answers_depend_on_epoch_seed_and_row_only(table):
    collate = CandidateCollator(table, negatives=1, seed=7)

    def sampled(epoch, rows, collate=collate):
        batch = collate((epoch, rows))
        return [int(batch.answer[c, 0]) for c in batch.candidate[:, 1]]

    assert sampled(3, [0, 2]) == [sampled(3, [0])[0], sampled(3, [2])[0]]
    assert len({tuple(sampled(epoch, [0, 2])) for epoch in range(12)}) > 1
    other = CandidateCollator(table, negatives=1, seed=8)
    assert [sampled(e, [0, 2]) for e in range(12)] != [sampled(e, [0, 2], other) for e in range(12)]


def test_epoch_sampler_yields_epoch_and_rows():
    sampler, plain = (
        kind([3, 1, 2], batch_size=2, seed=5) for kind in (EpochBatchSampler, BucketBatchSampler)
    )
    for epoch in (0, 4):
        sampler.set_epoch(epoch)
        plain.set_epoch(epoch)
        assert list(sampler) == [(epoch, rows) for rows in plain]
