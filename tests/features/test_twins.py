"""Twins: which questions are paired, and the windows and batches that contain both."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qa_arch.features.batches import BucketBatchSampler, Collator, twin_questions, twin_windows
from qa_arch.features.windows import prepare

HARBOUR = "The harbour of Velmora was dug by hand in 1804. Its lamp burns whale oil."
LOCK = "The mayor re-opened the northern lock in 1923."
QUESTIONS = (
    ("When was the harbour of Velmora dug?", HARBOUR, "1804"),
    ("When was the harbour of Velmora not dug?", HARBOUR, None),
    ("When was the harbour of Anduin dug?", HARBOUR, None),
    ("What does the lamp burn?", HARBOUR, "whale oil"),
    ("Who painted it?", HARBOUR, None),
    ("When was the harbour of Velmora dug?", LOCK, None),
    ("When did the mayor re-open the southern lock?", LOCK, None),
    ("When did the mayor re-open the northern lock?", LOCK, "1923"),
)


@pytest.mark.parametrize(
    ("likeness", "expected"),
    [(0.4, [[0, 1], [7, 6]]), (0.8, [[0, 1]]), (0.0, [[0, 1], [3, 2], [7, 6]]), (1.0, [])],
)
def test_most_similar_questions_of_a_passage_are_twins(make_set, likeness, expected):
    """Not the second most similar, not one of another passage, and each question once."""
    assert twin_questions(make_set(*QUESTIONS), likeness).tolist() == expected


def test_twin_windows_cover_the_same_part_of_the_passage(make_set, passage, bert):
    """The window with the answer is paired with its counterpart."""
    questions = make_set(
        ("What burns in the lighthouse?", passage, ("whale oil", 2)),
        ("What burns below the lighthouse?", passage, None),
    )
    table = prepare(questions, bert, max_length=64, stride=16, max_question=16, segments=True)
    mates = twin_windows(questions, table, 0.4)
    (first,) = np.flatnonzero((mates >= 0) & (table.example == 0))
    windows, others = np.flatnonzero(table.example == 0), np.flatnonzero(table.example == 1)
    assert first == windows[table.answerable[windows]][0] > 0
    assert mates[first] == others[first]
    assert mates[others[first]] == first


@st.composite
def paired(draw):
    """Lengths and mates of rows; mates have the same length."""
    pairs, singles = draw(st.integers(0, 30)), draw(st.integers(0, 40))
    lengths = draw(st.lists(st.integers(3, 384), min_size=pairs + singles, max_size=pairs + singles))
    count = 2 * pairs + singles
    places = draw(st.permutations(range(count)))
    size, mates = np.zeros(count, int), np.full(count, -1)
    for number, length in enumerate(lengths):
        rows = places[2 * number : 2 * number + 2] if number < pairs else places[pairs + number :][:1]
        size[rows] = length
        if len(rows) == 2:
            mates[rows] = rows[::-1]
    return size, mates


@settings(max_examples=150, deadline=None)
@given(paired(), st.integers(1, 6), st.integers(1, 3), st.integers(1, 3), st.booleans())
def test_mates_share_a_batch_and_no_row_is_lost(rows, half, world, accumulate, shuffle):
    size, mates = rows
    make = partial(
        BucketBatchSampler, size, batch_size=2 * half, seed=5, shuffle=shuffle, accumulate=accumulate
    )
    plain, together = (
        [list(make(rank=rank, world=world, mates=pairs)) for rank in range(world)] for pairs in (None, mates)
    )
    assert [[len(batch) for batch in rank] for rank in together] == [
        [len(batch) for batch in rank] for rank in plain
    ]
    batches = [batch for rank in together for batch in rank if batch[0] >= 0]
    assert sorted(row for batch in batches for row in batch) == list(range(len(size)))
    separated = [row for batch in batches for row in batch if mates[row] >= 0 and mates[row] not in batch]
    odd = sum(len(batch) % 2 for batch in batches if (mates[batch] >= 0).all())
    assert len(separated) <= 2 * odd, "separated although a batch had room for both"


def test_mates_share_a_batch_however_a_step_is_split():
    size = np.random.default_rng(0).integers(20, 384, 400).repeat(2)
    mates = np.arange(800) ^ 1
    steps = []
    for world, accumulate in ((1, 1), (1, 4), (2, 2)):
        make = partial(BucketBatchSampler, size, batch_size=32 // (world * accumulate), mates=mates, seed=1)
        ranks = [list(make(rank=rank, world=world, accumulate=accumulate)) for rank in range(world)]
        assert all(mates[row] in batch for rank in ranks for batch in rank for row in batch)
        steps.append(
            [
                {row for rank in ranks for batch in rank[i : i + accumulate] for row in batch}
                for i in range(0, len(ranks[0]), accumulate)
            ]
        )
    assert steps[0] == steps[1] == steps[2]


def test_labels_give_the_row_of_the_twin_in_the_batch(make_set, bert):
    questions = make_set(*QUESTIONS)
    table = prepare(questions, bert, max_length=64, stride=16, max_question=16, segments=True)
    collate = Collator(table, mates=twin_windows(questions, table, 0.4))
    assert collate([1, 3, 7, 0, 6]).labels.twin.tolist() == [3, -1, -1, -1, 2]
    assert collate([1, 6, -1]).labels.twin.tolist() == [2, -1, -1]
    assert Collator(table)([1, 0]).labels.twin is None
