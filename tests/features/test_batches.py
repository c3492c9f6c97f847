"""Batches: rows as tensors, each row once and in the same steps however they are split, twins together."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qa_arch.errors import ConfigError
from qa_arch.features.batches import BucketBatchSampler, Collator, plan, twin_questions, twin_windows
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
    """Padded to the longest, or to a multiple."""
    vectors = np.arange(len(table.vocabulary))
    collate = Collator(table, vectors=vectors)
    everything, padded = collate(range(len(table))), Collator(table, vectors=vectors, multiple=48)([0, 1])
    assert len(table) > 6
    assert everything.ids.shape[1] == table.lengths.max() == 64
    assert padded.ids.shape[1] == 96
    for row in range(len(table)):
        assert_same_row(collate([row]), everything, row)
        assert everything.index[row] == row
    padding = ~padded.mask
    assert (padded.ids[padding] == table.template.pad).all()
    assert (padded.word[padding] == -1).all()
    assert not (padded.question | padded.context | padded.overlap)[padding].any()
    assert (padded.mask.sum(1).numpy() == table.lengths[:2]).all()


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


def real(rows):
    return [row for row in rows if row >= 0]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(3, 384), min_size=1, max_size=200),
    *(st.integers(1, most) for most in (40, 4, 4)),
    st.booleans(),
    st.integers(0, 9),
)
def test_every_row_occurs_once_and_ranks_stay_in_step(lengths, size, world, accumulate, shuffle, epoch):
    """A rank without rows gets a padding row."""
    settings = {"batch_size": size, "seed": 7, "shuffle": shuffle, "world": world, "accumulate": accumulate}
    ranks = [BucketBatchSampler(lengths, rank=rank, **settings) for rank in range(world)]
    for sampler in ranks:
        sampler.set_epoch(epoch)
    batches = [list(sampler) for sampler in ranks]
    assert sorted(row for rank in batches for rows in rank for row in real(rows)) == list(range(len(lengths)))
    assert len({len(rank) for rank in batches}) == 1
    assert all(len(sampler) == len(batches[0]) for sampler in ranks)
    for rows in (rows for rank in batches for rows in rank):
        assert 1 <= len(rows) <= size
        assert len(real(rows)) in (0, len(rows))
    for start in range(0, len(ranks[0]), accumulate):
        window = range(start, min(start + accumulate, len(ranks[0])))
        count = sum(len(real(rank[step])) for rank in batches for step in window)
        assert {sampler.window_total(step) for sampler in ranks for step in window} == {count}


def rows_per_step(lengths, accumulate=1, **settings):
    """Rows of each optimizer step."""
    batches = plan(lengths, seed=3, epoch=2, accumulate=accumulate, **settings).batches
    steps = [batches[i : i + accumulate] for i in range(0, len(batches), accumulate)]
    return [sorted(row for step in window for rows in step for row in real(rows)) for window in steps]


@pytest.mark.parametrize("twins", [False, True])
@pytest.mark.parametrize("count", [5, 32, 33, 1000])
def test_optimizer_steps_do_not_depend_on_how_they_are_split(count, twins):
    lengths = np.random.default_rng(0).integers(20, 384, count)
    mates = None
    if twins:
        lengths, mates = lengths.repeat(2), np.arange(2 * count) ^ 1
    whole = rows_per_step(lengths, batch_size=32, mates=mates)
    assert rows_per_step(lengths, batch_size=8, accumulate=4, mates=mates) == whole
    assert rows_per_step(lengths, batch_size=8, accumulate=2, world=2, mates=mates) == whole
    assert rows_per_step(lengths, batch_size=8, world=4, mates=mates) == whole


def test_plan_depends_only_on_seed_and_epoch():
    lengths = np.random.default_rng(1).integers(20, 384, 300)

    def order(**settings):
        return [rows.tolist() for step in plan(lengths, batch_size=8, **settings).batches for rows in step]

    assert order(seed=1, epoch=4) == order(seed=1, epoch=4)
    assert order(seed=1, epoch=4) != order(seed=1, epoch=5)
    assert order(seed=1, epoch=4) != order(seed=2, epoch=4)
    assert order(seed=1, epoch=2) != order(seed=2, epoch=1)


def test_stopped_epoch_resumes_where_it_stopped():
    sampler = BucketBatchSampler(np.arange(5, 105), batch_size=7, seed=1)
    sampler.set_epoch(3)
    whole = list(sampler)
    sampler.start_at(4)
    assert list(sampler) == whole[4:]
    assert len(sampler) == len(whole)
    sampler.set_epoch(3)
    assert list(sampler) == whole[4:]
    sampler.set_epoch(4)
    assert len(list(sampler)) == len(sampler)


def test_ranks_of_a_step_have_rows_of_similar_length():
    """Otherwise one rank would always wait for the one with the longer half of each step."""
    (step,) = plan(range(16, 0, -1), batch_size=8, shuffle=False, world=2).batches
    assert [rows.tolist() for rows in step] == [list(range(0, 16, 2)), list(range(1, 16, 2))]


def test_invalid_batch_settings_are_refused():
    assert list(BucketBatchSampler([], batch_size=8)) == []
    with pytest.raises(ConfigError, match="batch_size"):
        BucketBatchSampler([1, 2, 3], batch_size=0)
    with pytest.raises(ConfigError, match="set at least 2"):
        BucketBatchSampler([1, 2], batch_size=1, mates=np.array([1, 0]))


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
    ("likeness", "expected"), [(0.4, [[0, 1], [7, 6]]), (0.0, [[0, 1], [3, 2], [7, 6]]), (1.0, [])]
)
def test_most_similar_questions_of_a_passage_are_twins(make_set, likeness, expected):
    """Not the second most similar, not one of another passage, and each question once."""
    assert twin_questions(make_set(*QUESTIONS), likeness).tolist() == expected
    # They share words, not letters.
    hindi = make_set(("कौन हिन्दी पढ़ता है", HARBOUR, "1804"), ("किन हिरन दिन", HARBOUR, None))
    assert not len(twin_questions(hindi, max(likeness, 0.1)))


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
    places = draw(st.permutations(range(2 * pairs + singles)))
    size, mates = np.zeros(len(places), int), np.full(len(places), -1)
    size[places] = [*np.repeat(lengths[:pairs], 2), *lengths[pairs:]]
    for first, second in zip(places[: 2 * pairs : 2], places[1 : 2 * pairs : 2], strict=True):
        mates[first], mates[second] = second, first
    return size, mates


@settings(max_examples=60, deadline=None)
@given(paired(), st.integers(1, 6), st.integers(1, 3), st.integers(1, 3), st.booleans())
def test_mates_share_a_batch_and_no_row_is_lost(rows, half, world, accumulate, shuffle):
    size, mates = rows
    options = {"batch_size": 2 * half, "seed": 5, "shuffle": shuffle, "accumulate": accumulate}
    plain, together = (
        [
            list(BucketBatchSampler(size, rank=rank, world=world, mates=pairs, **options))
            for rank in range(world)
        ]
        for pairs in (None, mates)
    )
    assert [list(map(len, rank)) for rank in together] == [list(map(len, rank)) for rank in plain]
    batches = [batch for rank in together for batch in rank if batch[0] >= 0]
    assert sorted(row for batch in batches for row in batch) == list(range(len(size)))
    separated = [row for batch in batches for row in batch if mates[row] >= 0 and mates[row] not in batch]
    odd = sum(len(batch) % 2 for batch in batches if (mates[batch] >= 0).all())
    assert len(separated) <= 2 * odd, "separated although a batch had room for both"


def test_labels_give_the_row_of_the_twin_in_the_batch(make_set, bert):
    questions = make_set(*QUESTIONS)
    table = prepare(questions, bert, max_length=64, stride=16, max_question=16, segments=True)
    collate = Collator(table, mates=twin_windows(questions, table, 0.4))
    assert collate([1, 3, 7, 0, 6]).labels.twin.tolist() == [3, -1, -1, -1, 2]
    assert collate([1, 6, -1]).labels.twin.tolist() == [2, -1, -1]
    assert Collator(table)([1, 0]).labels.twin is None
