"""Rows -> Batch: masks, words, overlap, vectors, labels and padding."""

import numpy as np
import pytest
import torch

from qa_arch.features.batches import Collator
from qa_arch.features.windows import prepare

CONTEXT = "The Mayor re-opened  the lock; the KEEPER  slept."


@pytest.fixture
def table(family, make_set, passage):
    questions = make_set(
        ("Who re-opened the lock?", CONTEXT, "Mayor"),
        ("What do the children gather?", passage, "mussels"),
        ("Did the keepers sleep?", CONTEXT, None),
    )
    return prepare(
        questions, family.tokenizer, max_length=64, stride=16, max_question=20, segments=family.segments
    )


def assert_same_row(single, batch, row):
    for name in ("ids", "mask", "segments", "question", "context", "word", "overlap", "vector"):
        alone, batched = getattr(single, name), getattr(batch, name)
        if alone is None:
            assert batched is None
        else:
            assert torch.equal(alone[0], batched[row, : alone.shape[1]]), name


def test_window_is_the_same_alone_and_in_a_batch(table):
    collate = Collator(table, vectors=np.arange(len(table.vocabulary)))
    everything = collate(range(len(table)))
    assert len(table) > 6
    for row in range(len(table)):
        assert_same_row(collate([row]), everything, row)
        assert everything.index[row] == row


def test_batches_are_padded_to_the_longest_or_a_multiple(table):
    rows = [0, 1]
    assert Collator(table)(rows).ids.shape[1] == table.lengths[rows].max() == 64
    assert Collator(table, multiple=48)(rows).ids.shape[1] == 96
    batch = Collator(table, multiple=48)(rows)
    padding = ~batch.mask
    assert (batch.ids[padding] == table.template.pad).all()
    assert (batch.word[padding] == -1).all()
    assert not (batch.question | batch.context | batch.overlap)[padding].any()
    assert (batch.mask.sum(1).numpy() == table.lengths[rows]).all()


def test_masks_separate_question_context_and_special_tokens(table, family):
    batch = Collator(table)([0])
    special = set(family.tokenizer.all_special_ids)
    for at, token in enumerate(batch.ids[0].tolist()):
        inside = bool(batch.question[0, at]) or batch.word[0, at] >= 0
        assert inside != (token in special and token != family.tokenizer.unk_token_id)
    text = family.tokenizer.decode(batch.ids[0][batch.question[0]])
    assert "opened" in text
    assert "?" in text or family.name == "albert"
    assert not (batch.question & batch.context).any()
    assert batch.context[0].nonzero().min() == table.context_at[0]


def test_zero_width_pieces_cannot_hold_an_answer(table, family):
    batch = Collator(table)([0])
    shift = int(table.token_start[0]) - int(table.context_at[0])
    for at in range(int(table.context_at[0]), int(table.lengths[0]) - len(table.template.after)):
        wide = table.char_end[shift + at] > table.char_start[shift + at]
        assert bool(batch.context[0, at]) == bool(wide)
    if family.name == "roberta":  # it makes the second of two spaces a piece
        assert (batch.word[0] >= 0).sum() > (batch.context | batch.question)[0].sum()


def test_words_and_overlap_match_a_plain_computation(table, family):
    """For every piece: its word by characters, its overlap by case-folded words."""
    words = ["The", "Mayor", "re", "-", "opened", "the", "lock", ";", "the", "KEEPER", "slept", "."]
    question_words = ["Who", "re", "-", "opened", "the", "lock", "?"]
    batch = Collator(table)([0])
    for at in range(int(table.lengths[0])):
        number = int(batch.word[0, at])
        if number < 0:
            assert not batch.overlap[0, at]
            continue
        own, other = (question_words, words) if batch.question[0, at] else (words, question_words)
        shared = own[number].casefold() in {word.casefold() for word in other}
        assert bool(batch.overlap[0, at]) == shared
    starts = [CONTEXT.index("Mayor"), CONTEXT.index("KEEPER")]
    shift = int(table.token_start[0]) - int(table.context_at[0])
    for start, number in zip(starts, (1, 9), strict=True):
        at = int(np.flatnonzero(table.char_start[: table.text_offsets[1]] == start)[0]) - shift
        assert batch.word[0, at] == number


def test_overlap_is_limited_to_the_window(table):
    batch = Collator(table)([0, len(table) - 1])
    assert not batch.overlap[1][batch.question[1]].all()


def test_vectors_follow_the_word_of_each_piece(table):
    vectors = np.zeros(len(table.vocabulary), np.int64)
    vectors[table.vocabulary.index("lock")] = 5
    batch = Collator(table, vectors)([0])
    numbers = {int(n) for n in batch.word[0][(batch.vector[0] == 5) & ~batch.question[0]]}
    assert numbers == {6}
    assert {int(n) for n in batch.word[0][(batch.vector[0] == 5) & batch.question[0]]} == {5}
    assert (batch.vector[batch.word < 0] == 0).all()
    assert Collator(table)([0]).vector is None


def test_labels_and_padding_rows(table):
    batch = Collator(table)([0, -1, -len(table)])
    assert batch.index.tolist() == [0, 0, len(table) - 1]
    assert batch.labels.weight.tolist() == [1, 0, 0]
    assert batch.labels.answerable.tolist() == [True, True, False]
    assert torch.equal(batch.ids[0], batch.ids[1])
    start, end = int(batch.labels.start[0]), int(batch.labels.end[0])
    shift = int(table.token_start[0]) - int(table.context_at[0])
    assert CONTEXT[table.char_start[shift + start] : table.char_end[shift + end]] == "Mayor"
    assert batch.context[0, start]
    assert Collator(table, labels=False)([0]).labels is None


@pytest.mark.parametrize("passages", [("",), ("The mayor", "\n")], ids=["empty", "blank"])
def test_empty_question_and_passage_make_a_batch(family, make_set, passages):
    questions = make_set(*(("", passage, None) for passage in passages))
    table = prepare(questions, family.tokenizer, segments=family.segments)
    batch = Collator(table, vectors=np.zeros(len(table.vocabulary), np.int64))([len(table) - 1])
    assert batch.mask.all()
    assert not (batch.context | batch.question | batch.overlap).any()
    assert (batch.vector == 0).all()
