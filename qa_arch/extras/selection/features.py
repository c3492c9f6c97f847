"""Features for answer selection: words -> word-vector rows, questions and candidates -> batches."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qa_arch.config.schema import Config, Selection
from qa_arch.errors import ConfigError
from qa_arch.features.vectors import WordVectors, file_vectors
from qa_arch.features.words import Bools, Longs
from qa_arch.types.tensors import Movable
from qa_arch.types.text import SelectionSet

RANDOM_DIM = 100
"""Width of random word vectors (Tan et al. 2015)."""
_SCALE = 0.25


@dataclass(frozen=True, slots=True, eq=False)
class SelectionBatch(Movable):
    """Questions and their candidate answers. Axes: ``B`` questions of at most ``Q`` words, ``A`` answers of
    at most ``L`` words, ``N`` candidates per question.

    A candidate shared by several questions appears once in ``answer``, so it is encoded once.
    """

    index: Int[Tensor, "B"]
    """Row of each question in its set (in training, of each question and right answer pair)."""
    question: Int[Tensor, "B Q"]
    """Row of each word in the word-vector table; 0 for padding and unknown words."""
    question_mask: Bool[Tensor, "B Q"]
    answer: Int[Tensor, "A L"]
    answer_mask: Bool[Tensor, "A L"]
    candidate: Int[Tensor, "B N"]
    """Row of each candidate in ``answer``; 0 at padding."""
    offered: Bool[Tensor, "B N"]
    """True on candidates, False on padding."""
    right: Bool[Tensor, "B N"]
    """True on the candidates that answer the question."""
    weight: Float[Tensor, "B"]
    """1 for a real question, 0 for one that only keeps an idle rank in step."""

    def __len__(self) -> int:
        return self.question.shape[0]


def candidate_vectors(config: Config, sets: Mapping[str, SelectionSet]) -> WordVectors:
    """Vectors of the words in ``sets`` (random without a file), then the vectors shared by unknown words."""
    if config.glove.use:
        words = {word for questions in sets.values() for word in _words(questions)}
        vectors = file_vectors(config, words)
    elif config.model.get("train_vectors", True):
        vectors = random_vectors(_words(sets["train"]), config.glove.dim or RANDOM_DIM, config.seed)
    else:
        raise ConfigError(
            "model.train_vectors: without a file of word vectors (glove=none) they are random and must be"
            " trained; set it to true or name a file (glove=file glove.path=...)"
        )
    return with_buckets(vectors, config.selection.unknown_buckets, config.seed)


def _words(questions: SelectionSet) -> Iterable[str]:
    for question in questions.questions:
        yield from question.question
    for answer in questions.answers:
        yield from answer


def word_rows(vectors: WordVectors, buckets: int) -> Callable[[str], int]:
    """Function word -> row in a table whose last ``buckets`` vectors are shared by unknown words.

    The bucket is a hash of the word, so an unknown word has the same vector in question and answer
    (Parikh et al. 2016, section 5.1). Without buckets an unknown word maps to row 0.
    """
    size = len(vectors.words) - buckets
    row_of: dict[str, int] = {}
    for number, word in enumerate(vectors.words[:size], 1):
        row_of.setdefault(word, number)

    def row(word: str) -> int:
        lower = word.lower()
        hit = row_of.get(word) or row_of.get(lower)
        if hit or not buckets:
            return hit or 0
        return size + 1 + zlib.crc32(lower.encode("utf-8", "surrogatepass")) % buckets

    return row


def with_buckets(vectors: WordVectors, buckets: int, seed: int) -> WordVectors:
    """``vectors`` followed by ``buckets`` random vectors of the same standard deviation."""
    trained = vectors.matrix[1:]
    spread = float(trained.std()) if trained.size else _SCALE
    extra = np.random.default_rng(seed).normal(0.0, spread, (buckets, vectors.dim)).astype(np.float32)
    names = tuple(f"<unknown {number}>" for number in range(buckets))
    return WordVectors((*vectors.words, *names), np.concatenate([vectors.matrix, extra]))


def random_vectors(words: Iterable[str], dim: int, seed: int) -> WordVectors:
    """Randomly initialised, trainable vectors of the lower-cased ``words``."""
    vocabulary = tuple(sorted({word.lower() for word in words}))
    matrix = np.random.default_rng(seed).uniform(-_SCALE, _SCALE, (len(vocabulary), dim))
    return WordVectors(vocabulary, np.concatenate([np.zeros((1, dim)), matrix]).astype(np.float32))


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """Concatenated texts as rows of words: text x is ``rows[offsets[x]:offsets[x + 1]]``."""

    rows: Longs
    offsets: Longs

    @classmethod
    def of(cls, texts: Sequence[Sequence[str]], row: Callable[[str], int], max_words: int) -> Texts:
        """``texts`` as rows of their first ``max_words`` words."""
        row_of: dict[str, int] = {}
        flat = []
        for text in texts:
            for word in text[:max_words]:
                if word not in row_of:
                    row_of[word] = row(word)
                flat.append(row_of[word])
        lengths = [min(len(text), max_words) for text in texts]
        return cls(np.array(flat, np.int64), np.r_[0, np.cumsum(lengths, dtype=np.int64)])

    @property
    def lengths(self) -> Longs:
        return np.diff(self.offsets)

    def padded(self, chosen: Longs, multiple: int = 1) -> tuple[Longs, Bools]:
        """(texts, words) rows and mask of the ``chosen`` texts, zero-padded to a width of at least 1."""
        lengths = self.lengths[chosen]
        width = max(1, int(lengths.max(initial=0)))
        column = np.arange(-(-width // multiple) * multiple)
        mask = column < lengths[:, None]
        source = np.where(mask, self.offsets[chosen][:, None] + column, 0)
        return np.where(mask, self.rows[source] if len(self.rows) else 0, 0), mask


@dataclass(frozen=True, slots=True, eq=False)
class SelectionTable:
    """A SelectionSet as arrays."""

    questions: Texts
    answers: Texts
    candidates: tuple[Sequence[int], ...]
    right: tuple[frozenset[int], ...]
    pairs: Longs
    """(P, 2): question and right answer of each training pair."""

    def __len__(self) -> int:
        return len(self.candidates)


def selection_table(task: SelectionSet, row: Callable[[str], int], settings: Selection) -> SelectionTable:
    """``task`` with words as word-vector rows; texts beyond the maximum length are truncated."""
    pairs = [(number, answer) for number, question in enumerate(task.questions) for answer in question.right]
    return SelectionTable(
        Texts.of([question.question for question in task.questions], row, settings.max_question),
        Texts.of(task.answers, row, settings.max_answer),
        tuple(question.candidates for question in task.questions),
        tuple(frozenset(question.right) for question in task.questions),
        np.array(pairs, np.int64).reshape(-1, 2),
    )


@dataclass(frozen=True, slots=True, eq=False)
class CandidateCollator:
    """Collates question rows into a SelectionBatch with all candidates. A padding row is ``-1 - row``."""

    table: SelectionTable
    multiple: int = 1
    """Pad widths to a multiple of this."""

    @property
    def lengths(self) -> Longs:
        """(questions,) words of the longest candidate, which groups questions of a paragraph into batches."""
        answer_lengths = self.table.answers.lengths
        longest = int(answer_lengths.max(initial=0))
        return np.array(
            [
                longest
                if isinstance(offered, range) and len(offered) == len(answer_lengths)
                else int(answer_lengths[list(offered)].max(initial=0))
                for offered in self.table.candidates
            ],
            np.int64,
        )

    def __call__(self, rows: Sequence[int]) -> SelectionBatch:
        index = np.asarray(rows, np.int64)
        questions = np.where(index < 0, -1 - index, index)
        offered = [list(self.table.candidates[question]) for question in questions]
        return _batch(self.table, questions, questions, offered, index >= 0, self.multiple)


@dataclass(frozen=True, slots=True, eq=False)
class PairCollator:
    """Collates (epoch, pair rows) into a SelectionBatch: the right answer first, then random wrong ones.

    The draw depends only on seed, epoch and pair, not on batch, rank or worker.
    """

    table: SelectionTable
    negatives: int
    seed: int
    multiple: int = 1

    @property
    def lengths(self) -> Longs:
        """(pairs,) words of the right answer."""
        return self.table.answers.lengths[self.table.pairs[:, 1]]

    def __call__(self, epoch_rows: tuple[int, Sequence[int]]) -> SelectionBatch:
        epoch, rows = epoch_rows
        index = np.asarray(rows, np.int64)
        pairs = np.where(index < 0, -1 - index, index)
        offered = [[int(self.table.pairs[p, 1]), *self._sample_negatives(epoch, int(p))] for p in pairs]
        return _batch(self.table, pairs, self.table.pairs[pairs, 0], offered, index >= 0, self.multiple)

    def _sample_negatives(self, epoch: int, pair: int) -> list[int]:
        question = int(self.table.pairs[pair, 0])
        candidates, right = self.table.candidates[question], self.table.right[question]
        generator = np.random.default_rng((self.seed, epoch, pair))
        # The draw may include right answers, so draw as many more.
        count = min(len(candidates), self.negatives + len(right))
        draw = generator.choice(len(candidates), count, replace=False)
        wrong = [candidates[i] for i in draw.tolist() if candidates[i] not in right]
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
    distinct, inverse = np.unique(
        np.concatenate([np.asarray(o, np.int64) for o in offered]), return_inverse=True
    )
    mask = np.arange(-(-widest // multiple) * multiple) < np.array([len(o) for o in offered])[:, None]
    candidate, right = np.zeros(mask.shape, np.int64), np.zeros(mask.shape, bool)
    candidate[mask] = inverse
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
    )
