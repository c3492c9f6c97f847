"""The best spans of all windows -> one ranked list of answers per question.

Axes: ``N`` windows, ``K`` ranks within a window, best first; ``Q`` questions, ``M`` candidates in total.
The ranking is vectorised over all questions, on flat columns; ``Ranking.predictions`` turns it into objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import islice
from typing import Self

import numpy as np

from qa_arch.errors import RunError
from qa_arch.metrics.abstention import confidences, fit_temperature, softmax
from qa_arch.types import Candidate, Example, Prediction


class WindowColumns:
    """Dataclass of arrays with one row per window."""

    __slots__ = ()

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))  # type: ignore[arg-type]

    def take(self, rows: np.ndarray) -> Self:
        """Select the windows ``rows``, in that order."""
        return type(self)(*(getattr(self, f.name)[rows] for f in fields(self)))  # type: ignore[arg-type]

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """Concatenate the windows of several batches; all need the same decoding settings."""
        names = [f.name for f in fields(cls)]  # type: ignore[arg-type]
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


MAX_LISTED = 5
"""Question ids in an error message."""


@dataclass(frozen=True, slots=True, eq=False)
class SpanCandidates(WindowColumns):
    """The ``K`` best spans of ``N`` windows, best first, and the scores of "no answer".

    Unused ranks have logits of -inf and token 0, and come last.
    """

    start: np.ndarray
    """(N, K) int32: first token, an index on the window's token axis."""
    end: np.ndarray
    """(N, K) int32: last token, inclusive."""
    start_logit: np.ndarray
    """(N, K) float32."""
    end_logit: np.ndarray
    """(N, K) float32."""
    null_start: np.ndarray
    """(N,) float32."""
    null_end: np.ndarray
    """(N,) float32: the null's end logit plus the weighted verifier, if any."""
    invalid: np.ndarray
    """(N,): start and end logits that were NaN or +inf."""

    @property
    def score(self) -> np.ndarray:
        """(N, K) float32: start + end; -inf for unused ranks."""
        return self.start_logit + self.end_logit

    @property
    def null(self) -> np.ndarray:
        """(N,) float32: score of "no answer", on the scale of ``score``; +inf in place of NaN."""
        return self.null_start + self.null_end


@dataclass(frozen=True, eq=False)
class Ranking:
    """Candidates of every question, most probable first, including "no answer" once.

    The candidates of question q are rows ``[offsets[q], offsets[q + 1])`` of the M columns. "No answer"
    is the span of zero width, 0 to 0.
    """

    examples: Sequence[Example]
    offsets: np.ndarray
    """(Q + 1,) int64."""
    start: np.ndarray
    """(M,) int64: first character in the context."""
    end: np.ndarray
    """(M,) int64: end character in the context, exclusive."""
    start_logit: np.ndarray
    """(M,) float32."""
    end_logit: np.ndarray
    """(M,) float32."""
    probability: np.ndarray
    """(M,) float64: softmax over the candidates of the question."""
    best: np.ndarray
    """(Q,) int64: row of the best non-empty span; -1 if there is none."""
    null_odds: np.ndarray
    """(Q,) float64: null score minus the score of ``best``; +inf without spans."""
    windows: np.ndarray
    """(Q,) int64: number of windows of the context."""
    texts: Mapping[int, str] = field(default_factory=dict)
    """Texts of rows that are not a single span of the context; their offsets are -1."""

    @property
    def score(self) -> np.ndarray:
        """(M,) float32: start + end."""
        return self.start_logit + self.end_logit

    @property
    def null(self) -> np.ndarray:
        """(Q,) rows of "no answer"."""
        return np.flatnonzero((self.start == 0) & (self.end == 0))

    def answers(self, threshold: float) -> np.ndarray:
        """(Q,) rows of the answers given at a null threshold."""
        return np.where((self.null_odds > threshold) | (self.best < 0), self.null, self.best)

    def confidence(self, threshold: float, temperature: float) -> np.ndarray:
        """(Q,) calibrated probability that the given answer is right (``metrics.abstention``)."""
        candidates = confidences(
            self.score, self.null, self.offsets, threshold=threshold, temperature=temperature
        )
        return candidates[self.answers(threshold)]

    def fit_temperature(self, right: np.ndarray, threshold: float) -> float:
        """Fit the temperature of ``confidence``; ``right`` (Q,): whether the given answer is right."""
        return fit_temperature(self.score, self.null, self.offsets, right, threshold=threshold)

    @cached_property
    def best_predictions(self) -> list[Prediction]:
        """One Prediction per question, in order, without candidates; cached for all scores."""
        return self._predictions([()] * len(self.examples))

    def predictions(self) -> list[Prediction]:
        """One Prediction per question, in order, with candidates."""
        sizes = np.diff(self.offsets)
        candidates = self._candidates(np.arange(self.offsets[-1]), np.repeat(np.arange(len(sizes)), sizes))
        return self._predictions([tuple(islice(candidates, size)) for size in sizes.tolist()])

    def _predictions(self, candidates: Sequence[tuple[Candidate, ...]]) -> list[Prediction]:
        bests: list[Candidate | None] = [None] * len(self.examples)
        with_span = np.flatnonzero(self.best >= 0)
        spans = self._candidates(self.best[with_span], with_span)
        for question, best in zip(with_span.tolist(), spans, strict=True):
            bests[question] = best
        ids = (example.id for example in self.examples)
        columns = ids, bests, self.null_odds.tolist(), self.windows.tolist(), candidates
        return [Prediction(*row) for row in zip(*columns, strict=True)]

    def _candidates(self, rows: np.ndarray, question: np.ndarray) -> Iterator[Candidate]:
        """Candidates in these ``rows`` of the columns, with their texts."""
        columns = (np.arange(len(self.start)), self.start, self.end, self.score, self.probability)
        numbers = (column[rows].tolist() for column in columns)
        for q, row, start, end, score, probability in zip(question.tolist(), *numbers, strict=True):
            text = self.examples[q].context[start:end] if start >= 0 else self.texts[row]
            yield Candidate(text, start, end, score, probability)


def char_spans(
    spans: SpanCandidates, origin: np.ndarray, char_start: np.ndarray, char_end: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Character offsets in the context, end exclusive, of token spans: (N, K) each.

    ``origin`` (N,) is the row, in the token columns ``char_start`` and ``char_end``, that position 0 of
    each window would have. Unused ranks get the last row of the columns, which has zero width.
    """
    filled = spans.score > -np.inf
    first = np.where(filled, origin[:, None] + spans.start, -1)
    last = np.where(filled, origin[:, None] + spans.end, -1)
    return char_start[first], char_end[last]


def rank(
    spans: SpanCandidates,
    examples: Sequence[Example],
    *,
    window: np.ndarray,
    example: np.ndarray,
    char_start: np.ndarray,
    char_end: np.ndarray,
    expected: np.ndarray,
    n_best: int = 20,
    dedupe: bool = True,
) -> Ranking:
    """Merge the windows of each question: its ``n_best`` candidates over all windows.

    The null score is the minimum over the windows, since one window with an answer is enough. "No answer"
    is always a candidate, in addition to the ``n_best`` if it is not among them. Ties are ordered by window,
    then by the order of the search, independent of the order of the windows here. With ``dedupe`` a span
    in several windows counts once, with its best score; the common script keeps duplicates.

    ``window`` (N,) is the row of each window in its feature table, ``example`` (N,) the row of its question
    in ``examples``. ``char_start`` and ``char_end`` (N, K) are offsets in the context, end exclusive; spans
    of zero width are dropped. ``expected`` (Q,) is the number of windows of each question. Raises RunError
    naming the questions if windows are missing or repeated.
    """
    _check_complete(window, example, examples, expected)
    # So that ties do not depend on how the windows were batched.
    order = np.lexsort((window, example))
    spans, example = spans.take(order), example[order]
    char_start, char_end = char_start[order], char_end[order]
    null_start, null_end = _lowest_null(spans, example, len(examples))

    score = spans.score
    # Ranks that no span fills have -inf; tokens of repeated spaces have no width.
    row, column = np.nonzero((score > -np.inf) & (char_end > char_start))
    order = _order_by_question_and_score(example[row], score[row, column])
    row, column = row[order], column[order]
    question, start, end = example[row], char_start[row, column], char_end[row, column]
    # Overlapping windows both have the span; the order above puts its best score first.
    if dedupe:
        unique = _first_occurrences(question, start, end)
        row, column, question, start, end = (x[unique] for x in (row, column, question, start, end))
    columns = start, end, spans.start_logit[row, column], spans.end_logit[row, column]
    return with_null(examples, question, columns, (null_start, null_end), expected, n_best)


def _check_complete(
    window: np.ndarray, example: np.ndarray, examples: Sequence[Example], expected: np.ndarray
) -> None:
    """Raise RunError unless every question has each of its windows exactly once."""
    wrong = np.bincount(example, minlength=len(examples)) != expected
    if len(np.unique(window)) != len(window):
        # A window read twice can hide one that was not read at all: the count is right.
        wrong[example[np.bincount(window)[window] > 1]] = True
    if wrong.any():
        rows = np.flatnonzero(wrong)
        ids = [examples[q].id for q in rows[:MAX_LISTED]] + ["..."] * (len(rows) > MAX_LISTED)
        raise RunError(
            f"{len(rows)} of {len(examples)} questions have windows that were not read, or read twice "
            f"({', '.join(ids)}): run the model on every window of the set exactly once"
        )


def _lowest_null(spans: SpanCandidates, example: np.ndarray, questions: int) -> tuple[np.ndarray, np.ndarray]:
    """(Q,) start and end logit of "no answer" in the window of its lowest score; +inf without windows."""
    order = np.lexsort((spans.null, example))
    present, first = np.unique(example[order], return_index=True)  # its first row has its lowest null
    halves = np.full((2, questions), np.inf, dtype=np.float32)
    halves[:, present] = spans.null_start[order[first]], spans.null_end[order[first]]
    return halves[0], halves[1]


def _order_by_question_and_score(question: np.ndarray, score: np.ndarray) -> np.ndarray:
    """Stable order by question, then falling score.

    Both are packed into one integer key, which is nearly sorted, so that a stable sort is fast. The bits of a
    float32 sort like an integer once negative values are flipped.
    """
    bits = (np.float32(0) - score).view(np.int32).astype(np.int64)  # 0 - x: no negative zero
    key = np.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return np.argsort((question.astype(np.int64) << 32) + key + 2**31, kind="stable")


def _first_occurrences(question: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """First position of each distinct (question, start, end), ascending."""
    width = int(end.max(initial=0)) + 1
    key = (question.astype(np.int64) * width + start) * width + end
    return np.sort(np.unique(key, return_index=True)[1])


def with_null(
    examples: Sequence[Example],
    question: np.ndarray,
    spans: tuple[np.ndarray, ...],
    null_halves: tuple[np.ndarray, np.ndarray],
    windows: np.ndarray,
    n_best: int,
) -> Ranking:
    """Truncate the ranked spans of each question to ``n_best`` and insert "no answer" at its rank."""
    Q = len(examples)
    null = null_halves[0] + null_halves[1]
    score = spans[2] + spans[3]
    counts = np.bincount(question, minlength=Q)
    # Rank of each span within its question: its row minus the first row of the question.
    position = np.arange(len(question)) - (np.cumsum(counts) - counts)[question]
    above = score >= null[question]  # on a tie the span ranks first
    # "No answer" may take one of the n_best ranks: the last span must beat it. The best span always stays.
    selected = (position < max(n_best - 1, 1)) | ((position == n_best - 1) & above)
    question, position, above = (x[selected] for x in (question, position, above))

    # One row more per question: spans below "no answer" move down by one, and it takes the row between.
    counts = np.bincount(question, minlength=Q)
    offsets = np.concatenate([[0], np.cumsum(counts + 1)])
    target = offsets[question] + position + ~above
    null_target = offsets[:-1] + np.bincount(question[above], minlength=Q)
    columns = []
    for column, empty in zip(spans, (0, 0, *null_halves), strict=True):
        merged = np.empty(offsets[-1], dtype=column.dtype)
        merged[target], merged[null_target] = column[selected], empty
        columns.append(merged)

    has_span = counts > 0
    # The best span is the first row, or the second where "no answer" is the first.
    best = np.where(has_span, offsets[:-1] + (null_target == offsets[:-1]), -1)
    null_odds = np.full(Q, np.inf)
    top = columns[2] + columns[3]
    null_odds[has_span] = null[has_span].astype(np.float64) - top[best[has_span]]
    start, end, start_logit, end_logit = columns
    probability = softmax(top, offsets)
    return Ranking(
        examples, offsets, start, end, start_logit, end_logit, probability, best, null_odds, windows
    )
