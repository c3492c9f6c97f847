"""The epoch plan: every row exactly once, and the same optimizer steps however they are split."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qa_arch.errors import ConfigError
from qa_arch.features.batches import BucketBatchSampler, plan

lengths_of = st.lists(st.integers(3, 384), min_size=1, max_size=200)


def real(rows):
    return [row for row in rows if row >= 0]


@settings(max_examples=150, deadline=None)
@given(lengths_of, st.integers(1, 40), st.integers(1, 4), st.integers(1, 4), st.booleans(), st.integers(0, 9))
def test_every_row_occurs_once_and_ranks_stay_in_step(lengths, size, world, accumulate, shuffle, epoch):
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


def rows_per_step(lengths, **settings):
    """Rows of each optimizer step."""
    batches = plan(lengths, seed=3, epoch=2, **settings).batches
    accumulate = settings.get("accumulate", 1)
    steps = [batches[i : i + accumulate] for i in range(0, len(batches), accumulate)]
    return [sorted(row for step in window for rows in step for row in real(rows)) for window in steps]


@pytest.mark.parametrize("count", [5, 32, 33, 1000])
def test_optimizer_steps_do_not_depend_on_how_they_are_split(count):
    lengths = np.random.default_rng(0).integers(20, 384, count)
    whole = rows_per_step(lengths, batch_size=32)
    assert rows_per_step(lengths, batch_size=8, accumulate=4) == whole
    assert rows_per_step(lengths, batch_size=8, accumulate=2, world=2) == whole
    assert rows_per_step(lengths, batch_size=8, world=4) == whole


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


def test_unshuffled_rows_are_longest_first():
    lengths = np.random.default_rng(2).integers(20, 384, 101)
    rows = np.concatenate(list(BucketBatchSampler(lengths, batch_size=8, shuffle=False)))
    assert (np.diff(lengths[rows]) <= 0).all()


def test_rank_without_rows_gets_a_padding_row():
    batches = [list(BucketBatchSampler([9], batch_size=8, rank=r, world=3)) for r in range(3)]
    assert batches == [[[0]], [[-1]], [[-1]]]
    assert BucketBatchSampler([9], batch_size=8, rank=1, world=3).window_total(0) == 1


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
