"""Features for answer selection: words -> word-vector rows, questions and candidates -> batches."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qa_arch.config.schema import Config
from qa_arch.extras.selection.manifest import Selection
from qa_arch.extras.selection.sets import SelectionSet
from qa_arch.features.vectors import WordVectors, file_vectors
from qa_arch.features.words import Longs
from qa_arch.tensors import Movable

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

    @property
    def labels(self) -> SelectionBatch:
        """The batch itself, whose fields mark the right candidates and the padding."""
        return self


def settings_of(config: Config) -> Selection:
    """The section ``selection`` of a config."""
    return getattr(config, "selection", None) or Selection()


def candidate_vectors(config: Config, sets: Mapping[str, SelectionSet]) -> WordVectors:
    """Vectors of the words in ``sets`` (random without a file), then the vectors shared by unknown words."""
    if config.glove.use:
        words = {word for questions in sets.values() for word in _words(questions)}
        vectors = file_vectors(config, words)
    else:
        # Random vectors of words that only other sets have would never be trained.
        vectors = random_vectors(_words(sets["train"]), config.glove.dim or RANDOM_DIM, config.seed)
    return with_buckets(vectors, settings_of(config).unknown_buckets, config.seed)


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
        hit = row_of.get(word) or row_of.get(lower)  # rows begin at 1
        if hit or not buckets:
            return hit or 0
        # Not ``hash``, whose values differ between processes; a lone surrogate has no UTF-8.
        return size + 1 + zlib.crc32(lower.encode("utf-8", "surrogatepass")) % buckets

    return row


def with_buckets(vectors: WordVectors, buckets: int, seed: int) -> WordVectors:
    """``vectors`` followed by ``buckets`` random vectors of the same standard deviation."""
    trained = vectors.matrix[1:]
    spread = float(trained.std()) if trained.size else _SCALE
    more = np.random.default_rng(seed).normal(0.0, spread, (buckets, vectors.dim)).astype(np.float32)
    names = tuple(f"<unknown {number}>" for number in range(buckets))
    return WordVectors((*vectors.words, *names), np.concatenate([vectors.matrix, more]))


def random_vectors(words: Iterable[str], dim: int, seed: int) -> WordVectors:
    """Randomly initialised, trainable vectors of the lower-cased ``words``."""
    vocabulary = tuple(sorted({word.lower() for word in words}))
    matrix = np.random.default_rng(seed).uniform(-_SCALE, _SCALE, (len(vocabulary), dim))
    return WordVectors(vocabulary, np.concatenate([np.zeros((1, dim)), matrix]).astype(np.float32))


@dataclass(frozen=True, slots=True, eq=False)
class SelectionTable:
    """A SelectionSet with words as word-vector rows."""

    questions: list[Longs]
    answers: list[Longs]
    candidates: tuple[Sequence[int], ...]
    right: tuple[frozenset[int], ...]
    pairs: Longs
    """(P, 2): question and right answer of each training pair."""

    def __len__(self) -> int:
        return len(self.candidates)


def selection_table(task: SelectionSet, row: Callable[[str], int], settings: Selection) -> SelectionTable:
    """``task`` with words as word-vector rows; texts beyond the maximum length are truncated."""
    row_of = cache(row)

    def rows(texts: Iterable[Sequence[str]], max_words: int) -> list[Longs]:
        return [np.array([row_of(word) for word in text[:max_words]], np.int64) for text in texts]

    pairs = [(number, answer) for number, question in enumerate(task.questions) for answer in question.right]
    return SelectionTable(
        rows((question.question for question in task.questions), settings.max_question),
        rows(task.answers, settings.max_answer),
        tuple(question.candidates for question in task.questions),
        tuple(frozenset(question.right) for question in task.questions),
        np.array(pairs, np.int64).reshape(-1, 2),
    )


@dataclass(frozen=True, slots=True, eq=False)
class CandidateCollator:
    """Collates question rows into a SelectionBatch with all candidates. A padding row is ``-1 - row``.

    With ``negatives`` it collates (epoch, pair rows): the right answer first, then random wrong ones. The
    draw depends only on seed, epoch and pair, not on batch, rank or worker.
    """

    table: SelectionTable
    negatives: int | None = None
    """Number of wrong answers sampled per pair; None for questions."""
    seed: int = 0

    @property
    def lengths(self) -> Longs:
        """(rows,) words of a pair's right answer, or of a question's longest candidate, which groups
        questions of a paragraph into batches."""
        words = np.array([len(answer) for answer in self.table.answers], np.int64)
        if self.negatives is not None:
            return words[self.table.pairs[:, 1]]
        # A range of all answers is common, and would be copied for every question.
        longest, all_answers = words.max(initial=0), range(len(words))
        return np.array(
            [longest if c == all_answers else words[list(c)].max(initial=0) for c in self.table.candidates],
            np.int64,
        )

    def __call__(self, rows: Any) -> SelectionBatch:
        epoch, rows = (0, rows) if self.negatives is None else rows
        table, index = self.table, np.asarray(rows, np.int64)
        numbers = np.where(index < 0, -1 - index, index)
        questions = numbers if self.negatives is None else table.pairs[numbers, 0]
        offered = [self._offered(epoch, number) for number in numbers.tolist()]
        right = [
            np.array([answer in table.right[question] for answer in answers], bool)
            for question, answers in zip(questions.tolist(), offered, strict=True)
        ]
        # Questions of a batch share answers: each is encoded once.
        distinct = np.unique(np.concatenate(offered))
        candidate, is_offered = _padded([np.searchsorted(distinct, answers) for answers in offered])
        question, question_mask = _padded([table.questions[number] for number in questions])
        answer, answer_mask = _padded([table.answers[number] for number in distinct])
        return SelectionBatch(
            index=torch.from_numpy(numbers),
            question=question,
            question_mask=question_mask,
            answer=answer,
            answer_mask=answer_mask,
            candidate=candidate,
            offered=is_offered,
            right=_padded(right)[0],
            weight=torch.from_numpy((index >= 0).astype(np.float32)),
        )

    def _offered(self, epoch: int, row: int) -> Longs:
        """All candidates of a question; of a pair, the right answer and the sampled wrong ones."""
        if self.negatives is None:
            return np.array(self.table.candidates[row], np.int64)
        question, answer = self.table.pairs[row].tolist()
        candidates, right = self.table.candidates[question], self.table.right[question]
        generator = np.random.default_rng((self.seed, epoch, row))
        # The draw may include right answers, so draw as many more.
        count = min(len(candidates), self.negatives + len(right))
        draw = generator.choice(len(candidates), count, replace=False)
        wrong = [candidates[i] for i in draw.tolist() if candidates[i] not in right]
        return np.array([answer, *wrong[: self.negatives]], np.int64)


def _padded(rows: Sequence[npt.NDArray[Any]]) -> tuple[Tensor, Tensor]:
    """Rows zero-padded to a width of at least 1, and their mask."""
    lengths = np.array([len(row) for row in rows])
    mask = np.arange(max(1, lengths.max())) < lengths[:, None]
    padded = np.zeros(mask.shape, rows[0].dtype)
    padded[mask] = np.concatenate(rows)  # row by row, as a mask selects
    return torch.from_numpy(padded), torch.from_numpy(mask)
