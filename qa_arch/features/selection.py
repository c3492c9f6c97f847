"""Answer selection as arrays: words -> rows of word vectors, questions and candidates -> batches."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from qa_arch.data.question_types import CLASSES
from qa_arch.features.glove import WordVectors
from qa_arch.features.table import Bools, Longs
from qa_arch.types.tensors import SelectionBatch
from qa_arch.types.text import SelectionSet

RANDOM_DIM = 100
"""Width of the vectors where no file gives them: that of Tan et al. 2015."""
_SCALE = 0.25


def word_rows(vectors: WordVectors, buckets: int) -> Callable[[str], int]:
    """Row of a word in a table that ends in ``buckets`` shared vectors: its own row, else its bucket's.

    A bucket is chosen by the word's letters, so the same unknown word in a question and in an answer
    has the same vector (Parikh et al. 2016, section 5.1). Without buckets an unknown word is row 0.
    """
    own = {word: row for row, word in reversed(list(enumerate(vectors.words[: _owned(vectors, buckets)], 1)))}
    first = _owned(vectors, buckets) + 1

    def row(word: str) -> int:
        lower = word.lower()
        found = own.get(word) or own.get(lower)
        if found or not buckets:
            return found or 0
        return first + zlib.crc32(lower.encode("utf-8", "surrogatepass")) % buckets

    return row


def _owned(vectors: WordVectors, buckets: int) -> int:
    return len(vectors.words) - buckets


def with_buckets(vectors: WordVectors, buckets: int, seed: int) -> WordVectors:
    """``vectors`` followed by ``buckets`` random ones of the same spread, a function of ``seed``."""
    known = vectors.matrix[1:]
    spread = float(known.std()) if known.size else _SCALE
    drawn = np.random.default_rng(seed).normal(0.0, spread, (buckets, vectors.dim)).astype(np.float32)
    names = tuple(f"<unknown {number}>" for number in range(buckets))
    return WordVectors((*vectors.words, *names), np.concatenate([vectors.matrix, drawn]))


def random_vectors(words: Iterable[str], dim: int, seed: int) -> WordVectors:
    """Vectors to be trained, for lower-case ``words``, where no file gives any."""
    known = tuple(sorted({word.lower() for word in words}))
    drawn = np.random.default_rng(seed).uniform(-_SCALE, _SCALE, (len(known), dim))
    return WordVectors(known, np.concatenate([np.zeros((1, dim)), drawn]).astype(np.float32))


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """Texts of words, one after the other: text x is ``rows[offsets[x]:offsets[x + 1]]``."""

    rows: Longs
    offsets: Longs

    @classmethod
    def of(cls, texts: Sequence[Sequence[str]], row: Callable[[str], int], most: int) -> Texts:
        """``texts`` by the rows of their first ``most`` words."""
        known: dict[str, int] = {}
        flat = []
        for text in texts:
            for word in text[:most]:
                if word not in known:
                    known[word] = row(word)
                flat.append(known[word])
        lengths = [min(len(text), most) for text in texts]
        return cls(np.array(flat, np.int64), np.r_[0, np.cumsum(lengths, dtype=np.int64)])

    @property
    def lengths(self) -> Longs:
        return np.diff(self.offsets)

    def padded(self, chosen: Longs, multiple: int = 1) -> tuple[Longs, Bools]:
        """(texts, words) rows and mask of the ``chosen`` texts, zeros behind them; at least one wide."""
        lengths = self.lengths[chosen]
        width = max(1, int(lengths.max(initial=0)))
        at = np.arange(-(-width // multiple) * multiple)
        mask = at < lengths[:, None]
        source = np.where(mask, self.offsets[chosen][:, None] + at, 0)
        return np.where(mask, self.rows[source] if len(self.rows) else 0, 0), mask


@dataclass(frozen=True, slots=True, eq=False)
class SelectionTable:
    """A SelectionSet in numbers."""

    questions: Texts
    answers: Texts
    candidates: tuple[Sequence[int], ...]
    right: tuple[frozenset[int], ...]
    pairs: Longs
    """(P, 2): question and right answer of each pair that is trained on."""
    labels: Longs | None = None
    """(questions,) class of each question, from 1; 0 = not known. None where no classifier was asked."""

    def __len__(self) -> int:
        return len(self.candidates)


def selection_table(
    task: SelectionSet, row: Callable[[str], int], *, max_question: int, max_answer: int
) -> SelectionTable:
    """``task`` with its words as rows of word vectors; longer texts lose their end."""
    pairs = [(place, answer) for place, one in enumerate(task.questions) for answer in one.right]
    return SelectionTable(
        Texts.of([one.question for one in task.questions], row, max_question),
        Texts.of(task.answers, row, max_answer),
        tuple(one.candidates for one in task.questions),
        tuple(frozenset(one.right) for one in task.questions),
        np.array(pairs, np.int64).reshape(-1, 2),
        _labels(task),
    )


def _labels(task: SelectionSet) -> Longs | None:
    if not any(one.label for one in task.questions):
        return None
    number = {label: place for place, label in enumerate(CLASSES, 1)}
    return np.array([number.get(one.label, 0) for one in task.questions], np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class CandidateCollator:
    """Rows of questions -> SelectionBatch with all candidates of each. A ghost is ``-1 - row``."""

    table: SelectionTable
    multiple: int = 1
    """The padded widths are multiples of this."""

    @property
    def lengths(self) -> Longs:
        """(questions,) words of the longest candidate: questions of one paragraph come together."""
        longest = self.table.answers.lengths
        whole = int(longest.max(initial=0))
        return np.array(
            [
                whole
                if isinstance(offered, range) and len(offered) == len(longest)
                else int(longest[list(offered)].max(initial=0))
                for offered in self.table.candidates
            ],
            np.int64,
        )

    def __call__(self, rows: Sequence[int]) -> SelectionBatch:
        given = np.asarray(rows, np.int64)
        questions = np.where(given < 0, -1 - given, given)
        offered = [list(self.table.candidates[question]) for question in questions]
        return _batch(self.table, questions, questions, offered, given >= 0, self.multiple)


@dataclass(frozen=True, slots=True, eq=False)
class PairCollator:
    """(epoch, rows of pairs) -> SelectionBatch: the right answer first, then wrong ones drawn anew.

    The draw is a function of seed, epoch and pair alone, whatever the batch, the rank or the worker.
    """

    table: SelectionTable
    negatives: int
    seed: int
    multiple: int = 1

    @property
    def lengths(self) -> Longs:
        """(pairs,) words of the right answer."""
        return self.table.answers.lengths[self.table.pairs[:, 1]]

    def __call__(self, drawn: tuple[int, Sequence[int]]) -> SelectionBatch:
        epoch, rows = drawn
        given = np.asarray(rows, np.int64)
        pairs = np.where(given < 0, -1 - given, given)
        offered = [[int(self.table.pairs[pair, 1]), *self._wrong(epoch, int(pair))] for pair in pairs]
        return _batch(self.table, pairs, self.table.pairs[pairs, 0], offered, given >= 0, self.multiple)

    def _wrong(self, epoch: int, pair: int) -> list[int]:
        question = int(self.table.pairs[pair, 0])
        candidates, right = self.table.candidates[question], self.table.right[question]
        generator = np.random.default_rng((self.seed, epoch, pair))
        # Right ones may be among the places drawn, so that many more are drawn.
        count = min(len(candidates), self.negatives + len(right))
        places = generator.choice(len(candidates), count, replace=False)
        wrong = [candidates[place] for place in places.tolist() if candidates[place] not in right]
        return wrong[: self.negatives]


def _batch(
    table: SelectionTable,
    index: Longs,
    questions: Longs,
    offered: Sequence[Sequence[int]],
    real: Bools,
    multiple: int,
) -> SelectionBatch:
    widest = max(1, *map(len, offered))
    distinct, place = np.unique(
        np.concatenate([np.asarray(o, np.int64) for o in offered]), return_inverse=True
    )
    mask = np.arange(-(-widest // multiple) * multiple) < np.array([len(o) for o in offered])[:, None]
    candidate, right = np.zeros(mask.shape, np.int64), np.zeros(mask.shape, bool)
    candidate[mask] = place
    right[mask] = [
        answer in table.right[question]
        for question, answers in zip(questions.tolist(), offered, strict=True)
        for answer in answers
    ]
    question, question_mask = table.questions.padded(questions, multiple)
    answer, answer_mask = table.answers.padded(distinct, multiple)
    return SelectionBatch(
        index=torch.from_numpy(index),
        question=torch.from_numpy(question),
        question_mask=torch.from_numpy(question_mask),
        answer=torch.from_numpy(answer),
        answer_mask=torch.from_numpy(answer_mask),
        candidate=torch.from_numpy(candidate),
        offered=torch.from_numpy(mask),
        right=torch.from_numpy(right),
        weight=torch.from_numpy(real.astype(np.float32)),
        label=None if table.labels is None else torch.from_numpy(table.labels[questions]),
    )
