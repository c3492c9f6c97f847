"""Batch sampling by length, and collation of feature-table rows to padded tensors.

A *global batch* is the data of one optimizer step: the batches of all ranks over ``accumulate`` micro-steps.
The plan first splits the data into global batches and then over micro-steps and ranks, so 1 x 32,
4 accumulated x 8 and 2 ranks x 2 x 8 take the same optimizer steps. Every rank computes the same plan.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import ArrayLike

from qa_arch.errors import ConfigError
from qa_arch.features.windows import FeatureTable, Window, assemble
from qa_arch.features.words import Bools, Ints, Longs, word_pattern
from qa_arch.tensors import Batch, SpanLabels
from qa_arch.types import QuestionSet

CHUNK_BATCHES = 50
"""Global batches per sorted chunk: more means less padding, fewer means better shuffling."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Batches of an epoch: ``batches[step][rank]`` holds rows; a padding row is ``-1 - row``."""

    batches: tuple[tuple[Longs, ...], ...]
    totals: tuple[int, ...]
    """Per step: real rows in its global batch."""


def plan(
    lengths: ArrayLike,
    *,
    batch_size: int,
    seed: int = 0,
    epoch: int = 0,
    shuffle: bool = True,
    world: int = 1,
    accumulate: int = 1,
    mates: Longs | None = None,
) -> Plan:
    """Plan one epoch; a pure function of the arguments.

    A batch has at most ``batch_size`` rows. Every row occurs once, and every rank has the same number of
    batches: a rank without a row in the last step gets a padding row. Without ``shuffle`` the longest rows
    come first. ``mates``: (N,) row to put in the same batch as each row, or -1; a pair is separated only if a
    batch of odd size holds nothing but pairs.
    """
    size = np.asarray(lengths, np.int64)
    if batch_size < 1:
        raise ConfigError("batch_size: must be at least 1")
    if batch_size == 1 and mates is not None:
        raise ConfigError("trainer.batch_size: 1 separates all twins; set at least 2, or omit loss=twins")
    # From seed and epoch alone: every rank, and a resumed run, draws the same plan.
    rng = np.random.default_rng((seed, epoch))
    groups, leftover = _global_batches(size, batch_size * world * accumulate, rng if shuffle else None)
    if mates is not None:
        *groups, leftover = _group_mates([*groups, leftover], mates)
    if shuffle:
        groups = [groups[i] for i in rng.permutation(len(groups))]
    if len(leftover):
        # Last, so that global batches coincide with the trainer's accumulation windows.
        groups.append(leftover)
    batches, totals = [], []
    for rows in groups:
        steps = _split(rows, batch_size, world)
        if mates is not None:
            ranks = iter(_group_mates([own for step in steps for own in step], mates))
            steps = [tuple(next(ranks) for _ in step) for step in steps]
        batches += steps
        totals += [len(rows)] * len(steps)
    return Plan(tuple(batches), tuple(totals))


def _global_batches(size: Longs, count: int, rng: np.random.Generator | None) -> tuple[list[Longs], Longs]:
    """Full global batches of ``count`` rows, each sorted longest first, and the remaining rows."""
    order = rng.permutation(len(size)) if rng else np.arange(len(size))
    # Sorting all rows would give every epoch the same batches; sorting chunks keeps them random.
    chunk = CHUNK_BATCHES * count if rng else max(1, len(size))
    groups: list[Longs] = []
    leftover = np.zeros(0, np.int64)
    for begin in range(0, len(order), chunk):
        pool = np.concatenate([leftover, order[begin : begin + chunk]])
        pool = pool[np.argsort(-size[pool], kind="stable")]
        full = len(pool) // count * count
        groups.extend(pool[:full].reshape(-1, count))
        leftover = pool[full:]
    return groups, leftover


def _split(rows: Longs, batch_size: int, world: int) -> list[tuple[Longs, ...]]:
    """Split a global batch into steps of at most ``batch_size`` rows per rank, of similar length."""
    steps = []
    for part in np.array_split(rows, -(-len(rows) // (batch_size * world))):
        # Taken in turn from sorted rows, so that ranks wait for each other as little as possible.
        ranks = [part[rank::world] for rank in range(world)]
        # A rank without rows computes a padding row: collectives need every rank.
        steps.append(tuple(own if len(own) else -1 - part[-1:] for own in ranks))
    return steps


def _group_mates(groups: Sequence[Longs], mates: Longs) -> list[Longs]:
    """Rearrange rows so that mates share a group; sizes stay the same and the order nearly so.

    A row brings its mate along. If a pair does not fit into the last place of a group, the next single row
    takes it, or else a single row of the group makes room for the pair. Groups of padding rows are unchanged.
    """
    rows = [row for group in groups for row in group.tolist() if row >= 0]
    present, seen = set(rows), set[int]()
    # Pairs and single rows, in the order of their first row, wait to be placed.
    units: deque[list[int]] = deque()
    for row in rows:
        if row not in seen:
            units.append([row, int(mates[row])] if mates[row] in present else [row])
            seen.update(units[-1])
    regrouped = []
    for group in groups:
        own = [[row] for row in group.tolist() if row < 0]
        while room := len(group) - sum(map(len, own)):
            fitting = next((unit for unit in units if len(unit) <= room), None)
            if fitting is not None:
                units.remove(fitting)
                own.append(fitting)
            elif single := next((unit for unit in own if len(unit) == 1), None):
                # One place is left and only pairs wait: a single row goes back, and the next turn has two.
                own.remove(single)
                units.append(single)
            else:  # odd size and nothing but pairs: split one
                own.append([units[0].pop()])
        regrouped.append(np.array([row for unit in own for row in unit], np.int64))
    return regrouped


class BucketBatchSampler:
    """Sampler of the batches of one rank, for ``DataLoader(sampler=..., batch_size=None)``; see ``plan``.

    ``set_epoch`` selects the epoch; ``start_at`` skips its first batches, to resume an interrupted run. The
    length is always that of the full epoch.
    """

    def __init__(
        self,
        lengths: ArrayLike,
        *,
        batch_size: int,
        seed: int = 0,
        shuffle: bool = True,
        rank: int = 0,
        world: int = 1,
        accumulate: int = 1,
        mates: Longs | None = None,
    ) -> None:
        self.rank, self.epoch, self.offset = rank, 0, 0
        self._plan_of = partial(
            plan,
            np.asarray(lengths, np.int64),
            batch_size=batch_size,
            seed=seed,
            shuffle=shuffle,
            world=world,
            accumulate=accumulate,
            mates=mates,
        )
        self._plan = self._plan_of(epoch=0)

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of ``epoch``; no effect if it is the current one."""
        if epoch != self.epoch:
            self.epoch, self.offset = epoch, 0
            self._plan = self._plan_of(epoch=epoch)

    def start_at(self, batch_no: int) -> None:
        """Skip the first ``batch_no`` batches of this epoch."""
        self.offset = batch_no

    def window_total(self, batch_no: int) -> int:
        """Real rows, over all ranks, in the global batch that contains batch ``batch_no``.

        Dividing the sum of losses by this number gives the gradient of the mean over the optimizer step, even
        in a shorter last step.
        """
        return self._plan.totals[batch_no]

    def __iter__(self) -> Iterator[list[int]]:
        for step in self._plan.batches[self.offset :]:
            yield step[self.rank].tolist()

    def __len__(self) -> int:
        return len(self._plan.batches)


class EpochBatchSampler(BucketBatchSampler):
    """The same batches as (epoch, rows), for data that is resampled in each epoch."""

    def __iter__(self) -> Iterator[tuple[int, list[int]]]:  # type: ignore[override]
        return ((self.epoch, rows) for rows in super().__iter__())


@dataclass(frozen=True, slots=True, eq=False)
class Collator:
    """Collate row numbers to a Batch, padded to its longest window.

    A negative number ``-1 - i`` is a padding row: window ``i`` with a label weight of 0, which a rank without
    a row of its own computes to stay in step with the other ranks.
    """

    table: FeatureTable
    vectors: Longs | None = None
    """(V,) row of each vocabulary word in the word-vector table; None without word vectors."""
    labels: bool = True
    mates: Longs | None = None
    """(N,) row of the twin of each window, or -1; None without twins."""
    multiple: int = 1
    """The padded length is a multiple of this."""

    @property
    def lengths(self) -> Ints:
        """(N,) tokens of each window, for the sampler."""
        return self.table.lengths

    def __call__(self, indices: Sequence[int]) -> Batch:
        index = np.asarray(indices, np.int64)
        rows = np.where(index < 0, -1 - index, index)
        longest = int(self.table.lengths[rows].max())
        window = assemble(self.table, rows, -(-longest // self.multiple) * self.multiple)
        word, word_number = self.table.word[window.source], self.table.word_number[window.source]
        return Batch(
            index=torch.from_numpy(rows),
            ids=torch.from_numpy(window.ids),
            mask=torch.from_numpy(window.mask),
            segments=None if window.segments is None else torch.from_numpy(window.segments),
            question=torch.from_numpy(window.question),
            context=torch.from_numpy(window.context),
            word=torch.from_numpy(word_number.astype(np.int64)),
            overlap=torch.from_numpy(self._overlap(window, word)),
            # -1 (no word) selects the row of zeros.
            vector=None if self.vectors is None else torch.from_numpy(np.append(self.vectors, 0)[word]),
            labels=self._labels(rows, index >= 0) if self.labels else None,
        )

    def _overlap(self, window: Window, word: Ints) -> Bools:
        """(B, T) True if a piece's case-folded word occurs in both question and context."""
        table = self.table
        folded = np.append(table.folded, -1)[word]
        begin = len(table.template.before)
        longest_question = int(window.question.sum(1).max(initial=0))
        question_slice = slice(begin, begin + longest_question)
        # -1 (no word), -2 and -3 equal neither a word nor each other.
        question = np.where(window.question & (folded >= 0), folded, -2)[:, None, question_slice]
        context = np.where((window.source >= 0) & ~window.question, folded, -3)[:, :, None]
        matches = context == question  # (B, T, Q): True only for a context and a question piece
        overlap = matches.any(2)
        overlap[:, question_slice] |= matches.any(1)
        return overlap

    def _labels(self, rows: Longs, real: Bools) -> SpanLabels:
        table = self.table
        return SpanLabels(
            start=torch.from_numpy(table.label_start[rows].astype(np.int64)),
            end=torch.from_numpy(table.label_end[rows].astype(np.int64)),
            answerable=torch.from_numpy(table.answerable[rows]),
            weight=torch.from_numpy(real.astype(np.float32)),
            twin=None if self.mates is None else torch.from_numpy(self._twins(self.mates, rows)),
        )

    def _twins(self, mates: Longs, rows: Longs) -> Longs:
        """(B,) position in the batch of each unanswerable window's answerable twin, or -1."""
        position = {row: index for index, row in enumerate(rows.tolist())}
        twins = np.array([position.get(mate, -1) for mate in mates[rows].tolist()], np.int64)
        return np.where(self.table.answerable[rows], -1, twins)


# Twins: an answerable and an unanswerable question on a passage that differ in a few words -----------


def twin_questions(questions: QuestionSet, likeness: float) -> Longs:
    """(P, 2) rows (answerable, unanswerable) of twin questions, each question in at most one pair.

    SQuAD 2.0's unanswerable questions were written next to answerable ones, and many are an edit of one: a
    negation, another name or number (Rajpurkar et al. 2018, table 1; Zhu et al. 2019 learn from such pairs).
    The files do not record the pairs, so they are recovered from the words.

    Greedy matching per passage by Jaccard similarity of the case-folded words, most similar pair first, down
    to ``likeness``; ties are broken by file order.
    """
    passages: dict[str, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for row, example in enumerate(questions.examples):
        passages[example.context][example.answerable].append(row)
    find = word_pattern(symbols=False).findall
    words = [frozenset(find(example.question.casefold())) for example in questions.examples]
    twins = []
    for unanswerable, answerable in passages.values():
        pairs = [(-_jaccard(words[a], words[u]), a, u) for a in answerable for u in unanswerable]
        taken: set[int] = set()
        for negated, a, u in sorted(pairs):
            if -negated < likeness:
                break
            if not taken & {a, u}:
                taken |= {a, u}
                twins.append((a, u))
    return np.array(sorted(twins), np.int64).reshape(-1, 2)


def _jaccard(first: frozenset[str], second: frozenset[str]) -> float:
    return len(first & second) / max(1, len(first | second))


def twin_windows(questions: QuestionSet, table: FeatureTable, likeness: float) -> Longs:
    """(N,) row of the twin window that each window of ``table`` shares a batch with, or -1.

    An answerable question is represented by its first window with the answer, its twin by the window at the
    same position in the passage.
    """
    mates = np.full(len(table), -1)
    begin = np.searchsorted(table.example, np.arange(len(questions) + 1))  # first window by question
    for answerable, unanswerable in twin_questions(questions, likeness).tolist():
        own, other = np.arange(*begin[[answerable, answerable + 1]]), begin[[unanswerable, unanswerable + 1]]
        if (with_answer := own[table.answerable[own]]).size:
            first = with_answer[0]
            second = min(other[0] + first - own[0], other[1] - 1)  # a shorter question has fewer windows
            mates[first], mates[second] = second, first
    return mates
