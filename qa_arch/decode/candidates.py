"""Array records of decoding: the best spans of each window, then the ranking and answers of each question.

Axes: ``N`` windows, ``K`` ranks within a window, best first; ``Q`` questions, ``M`` candidates of all
questions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import islice
from typing import Self, TypeVar

import numpy as np

from qa_arch.metrics.confidence import confidences, fit_temperature
from qa_arch.types.text import Candidate, Example, Prediction


class WindowRecord:
    """Base of dataclasses whose arrays have one row per window."""

    __slots__ = ()

    def take(self, rows: np.ndarray) -> Self:
        """The windows ``rows``, in that order."""
        columns = (getattr(self, f.name) for f in fields(self))  # type: ignore[arg-type]
        return type(self)(*(None if column is None else column[rows] for column in columns))

    @staticmethod
    def concatenate(parts: Sequence[Record]) -> Record:
        """Windows of several batches in one record; all need the same decoding settings."""
        names = [f.name for f in fields(parts[0])]  # type: ignore[arg-type]
        columns = ([getattr(part, name) for part in parts] for name in names)
        return type(parts[0])(*(None if column[0] is None else np.concatenate(column) for column in columns))


Record = TypeVar("Record", bound=WindowRecord)


@dataclass(frozen=True, slots=True, eq=False)
class SpanCandidates(WindowRecord):
    """The ``K`` best spans of ``N`` windows, best first, and the scores of "no answer".

    An empty place has logits of -inf and token 0; empty places come last.
    """

    start: np.ndarray
    """(N, K) int32: first token, an index on the window's token axis."""
    end: np.ndarray
    """(N, K) int32: last token, inclusive."""
    start_logit: np.ndarray
    """(N, K) float32."""
    end_logit: np.ndarray
    """(N, K) float32: what start and end score together is added, where a model has that."""
    null_start: np.ndarray
    """(N,) float32."""
    null_end: np.ndarray
    """(N,) float32: the null's end logit plus the weighted verifier, if any."""
    any_span: np.ndarray | None = None
    """(N,) float32: log of the sum of exp(score) over all spans of the window, however long; -inf without
    any. None where null odds are those against the best span."""

    def __len__(self) -> int:
        return self.start.shape[0]

    @property
    def score(self) -> np.ndarray:
        """(N, K) float32: start + end; -inf where there is no span."""
        return self.start_logit + self.end_logit

    @property
    def null(self) -> np.ndarray:
        """(N,) float32: the score of "no answer", on the scale of ``score``; +inf where it was NaN."""
        return self.null_start + self.null_end


@dataclass(frozen=True, eq=False)
class Ranking:
    """The candidates of every question, most probable first, "no answer" once among them.

    The candidates of question q are rows ``[offsets[q], offsets[q + 1])`` of the M columns. "No answer"
    is the span of zero width, 0 to 0.
    """

    examples: Sequence[Example]
    offsets: np.ndarray
    """(Q + 1,) int64."""
    start: np.ndarray
    """(M,) int64: first character in the context."""
    end: np.ndarray
    """(M,) int64: end in the context, exclusive."""
    start_logit: np.ndarray
    """(M,) float32."""
    end_logit: np.ndarray
    """(M,) float32."""
    probability: np.ndarray
    """(M,) float64: softmax over the candidates of the question."""
    best: np.ndarray
    """(Q,) int64: row of the best non-empty span; -1 if there is none."""
    null_odds: np.ndarray
    """(Q,) float64: null score minus the score of ``best``, or under ``decode.null_odds=any`` minus the log
    sum of all spans' (``answers.rank``); +inf where there is no span."""
    windows: np.ndarray
    """(Q,) int64: number of windows of the context."""
    texts: Mapping[int, str] = field(default_factory=dict)
    """Text of the rows that are no single span of the context; their offsets are -1."""

    @property
    def score(self) -> np.ndarray:
        """(M,) float32: start + end."""
        return self.start_logit + self.end_logit

    @property
    def null(self) -> np.ndarray:
        """(Q,) row of "no answer"."""
        return np.flatnonzero((self.start == 0) & (self.end == 0))

    def given(self, threshold: float) -> np.ndarray:
        """(Q,) row of the answer given at a null threshold."""
        return np.where((self.null_odds > threshold) | (self.best < 0), self.null, self.best)

    def confidence(self, threshold: float, temperature: float) -> np.ndarray:
        """(Q,) calibrated probability that the answer given is right (``metrics.confidence``)."""
        every = confidences(self.score, self.null, self.offsets, threshold=threshold, temperature=temperature)
        return every[self.given(threshold)]

    def fit_temperature(self, right: np.ndarray, threshold: float) -> float:
        """Temperature of that confidence; ``right`` (Q,): whether the answer given is."""
        return fit_temperature(self.score, self.null, self.offsets, right, threshold=threshold)

    @cached_property
    def best_predictions(self) -> list[Prediction]:
        """A Prediction for each question, in order, without its candidates; made once for all scores."""
        return self._predictions([()] * len(self.examples))

    def predictions(self) -> list[Prediction]:
        """A Prediction for each question, in order, with its candidates."""
        sizes = np.diff(self.offsets)
        candidates = self._candidates(np.arange(self.offsets[-1]), np.repeat(np.arange(len(sizes)), sizes))
        return self._predictions([tuple(islice(candidates, size)) for size in sizes.tolist()])

    def _predictions(self, candidates: Sequence[tuple[Candidate, ...]]) -> list[Prediction]:
        bests: list[Candidate | None] = [None] * len(self.examples)
        with_span = np.flatnonzero(self.best >= 0)
        spans = self._candidates(self.best[with_span], with_span)
        for question, best in zip(with_span.tolist(), spans, strict=True):
            bests[question] = best
        numbers = self.null_odds.tolist(), self.windows.tolist()
        columns = zip(self.examples, bests, *numbers, candidates, strict=True)
        return [
            Prediction(example.id, best, odds, windows, nbest)
            for example, best, odds, windows, nbest in columns
        ]

    def _candidates(self, rows: np.ndarray, question: np.ndarray) -> Iterator[Candidate]:
        """Candidates in the ``rows`` of the columns, with their texts."""
        columns = (np.arange(len(self.start)), self.start, self.end, self.score, self.probability)
        numbers = (column[rows].tolist() for column in columns)
        for q, row, start, end, score, probability in zip(question.tolist(), *numbers, strict=True):
            text = self.examples[q].context[start:end] if start >= 0 else self.texts[row]
            yield Candidate(text, start, end, score, probability)
