"""Which windows make up which batch: length buckets, the same plan on every rank.

A *window of work* is what one optimizer step sees: all ranks' batches of ``accumulate`` consecutive
micro-steps. The plan cuts the data into such windows first and splits those over micro-steps and
ranks afterwards, so 1 x 32, 4 accumulated x 8 and 2 ranks x 2 x 8 take the same optimizer steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from qa_arch.errors import ConfigError
from qa_arch.features.table import Longs

CHUNK_BATCHES = 50
"""Batches that are sorted by length together: more pads less, fewer shuffles better."""


@dataclass(frozen=True, slots=True)
class Plan:
    """An epoch for all ranks: ``batches[step][rank]`` are rows, ghosts as ``-1 - row``."""

    batches: tuple[tuple[Longs, ...], ...]
    totals: tuple[int, ...]
    """By step: real rows in the whole window of work that the step belongs to."""


def plan(
    lengths: ArrayLike,
    *,
    batch_size: int | None = None,
    token_budget: int | None = None,
    seed: int = 0,
    epoch: int = 0,
    shuffle: bool = True,
    world: int = 1,
    accumulate: int = 1,
) -> Plan:
    """The batches of one epoch, a function of nothing but its arguments.

    A batch has ``batch_size`` rows, or as many as fit in ``token_budget`` padded tokens (at least
    one). Every row occurs once, every rank has equally many batches; a rank for which the last
    step has no row gets a ghost. Without ``shuffle`` the longest come first.
    """
    size = np.asarray(lengths, np.int64)
    if (batch_size is None) == (token_budget is None) or (batch_size or token_budget or 0) < 1:
        raise ConfigError("give one of batch_size and token_budget, at least 1")

    def fits(longest: int) -> int:
        return batch_size or max(1, (token_budget or 0) // max(longest, 1))

    draw = np.random.default_rng((seed, epoch))
    share = world * accumulate
    work, rest = _windows_of_work(size, fits, share, draw if shuffle else None)
    if shuffle:
        work = [work[i] for i in draw.permutation(len(work))]
    if len(rest):
        work.append(rest)  # last, so that no window of work straddles two of the trainer's
    batches, totals = [], []
    for rows in work:
        steps = _split(rows, fits(int(size[rows].max())), world)
        batches += steps
        totals += [len(rows)] * len(steps)
    return Plan(tuple(batches), tuple(totals))


def _windows_of_work(
    size: Longs, fits: Callable[[int], int], share: int, draw: np.random.Generator | None
) -> tuple[list[Longs], Longs]:
    """Full windows of work, each sorted longest first, and the rows left over for a last, short one."""
    order = draw.permutation(len(size)) if draw else np.arange(len(size))
    chunk = len(size)
    if draw and len(size):
        chunk = CHUNK_BATCHES * share * fits(int(size.mean()))
    work: list[Longs] = []
    rest = np.zeros(0, np.int64)
    for begin in range(0, len(order), max(chunk, 1)):
        pool = np.concatenate([rest, order[begin : begin + chunk]])
        pool = pool[np.argsort(-size[pool], kind="stable")]
        taken = 0
        while taken < len(pool) and taken + (count := fits(int(size[pool[taken]])) * share) <= len(pool):
            work.append(pool[taken : taken + count])
            taken += count
        rest = pool[taken:]
    return work, rest


def _split(rows: Longs, each: int, world: int) -> list[tuple[Longs, ...]]:
    """One window of work -> steps of one batch of at most ``each`` rows per rank, of similar length."""
    steps = []
    for part in np.array_split(rows, -(-len(rows) // (each * world))):
        ranks = [part[rank::world] for rank in range(world)]
        steps.append(tuple(own if len(own) else -1 - part[-1:] for own in ranks))
    return steps


class BucketBatchSampler:
    """The batches of one rank, for ``DataLoader(batch_sampler=...)``; see ``plan``.

    ``set_epoch`` selects the epoch; ``start_at`` makes it begin at a later batch, to go on where a
    run was stopped. Its length is that of the whole epoch all the same.
    """

    def __init__(
        self,
        lengths: ArrayLike,
        *,
        batch_size: int | None = None,
        token_budget: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        rank: int = 0,
        world: int = 1,
        accumulate: int = 1,
    ) -> None:
        if not 0 <= rank < world:
            raise ConfigError(f"rank {rank} is not one of {world} ranks")
        self.rank, self.epoch, self.offset = rank, 0, 0
        self._lengths = np.asarray(lengths, np.int64)
        self._plan_of = partial(
            plan,
            self._lengths,
            batch_size=batch_size,
            token_budget=token_budget,
            seed=seed,
            shuffle=shuffle,
            world=world,
            accumulate=accumulate,
        )
        self._plan = self._plan_of(epoch=0)

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of ``epoch``; does nothing where that is the epoch already."""
        if epoch != self.epoch:
            self.epoch, self.offset = epoch, 0
            self._plan = self._plan_of(epoch=epoch)

    def start_at(self, batch_no: int) -> None:
        """Leave out the first ``batch_no`` batches of this epoch."""
        self.offset = batch_no

    def window_total(self, batch_no: int) -> int:
        """Real rows, over all ranks, in the window of work that holds batch ``batch_no`` of the epoch.

        A loss summed over rows and divided by this has the gradient of the mean over the optimizer
        step, short last step included.
        """
        return self._plan.totals[batch_no]

    @property
    def pad_share(self) -> float:
        """Share of padding among the tokens that this epoch computes, over all ranks."""
        return pad_share(self._lengths, [rows for step in self._plan.batches for rows in step])

    def __iter__(self) -> Iterator[list[int]]:
        for step in self._plan.batches[self.offset :]:
            yield step[self.rank].tolist()

    def __len__(self) -> int:
        return len(self._plan.batches)


class EpochBatchSampler(BucketBatchSampler):
    """The same batches, each as (epoch, rows): for data that is drawn anew in each epoch."""

    def __iter__(self) -> Iterator[tuple[int, list[int]]]:  # type: ignore[override]
        return ((self.epoch, rows) for rows in super().__iter__())


def pad_share(lengths: ArrayLike, batches: Sequence[ArrayLike]) -> float:
    """1 - real tokens / computed tokens, where each batch is padded to its longest window.

    Ghosts are computed and not real.
    """
    size = np.asarray(lengths, np.int64)
    real = computed = 0
    for batch in batches:
        rows = np.asarray(batch, np.int64)
        length = size[np.where(rows < 0, -1 - rows, rows)]
        real += int(length[rows >= 0].sum())
        computed += int(length.max()) * len(rows)
    return 1 - real / computed if computed else 0.0
