"""``qa_arch.load(SOURCE)``: a model that is asked questions about texts.

Everything that serves a model asks a ``Reader``, which reads texts with the same windows, model and decoding
as evaluation does: what is scored is what is served.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any, overload

import torch

from qa_arch.config.schema import Decode
from qa_arch.data.question_sets import question_set
from qa_arch.errors import ConfigError
from qa_arch.evaluation.attention_maps import attention_maps
from qa_arch.nn.match_lstm import MatchLSTM
from qa_arch.nn.precision import Precision
from qa_arch.results.attention import AttentionMap
from qa_arch.serving.query import Answer, Query, Span
from qa_arch.tasks.base import Predictor
from qa_arch.tasks.loading import load_predictor
from qa_arch.tasks.span_predictor import SpanPredictor
from qa_arch.types.text import Example, Prediction

Documents = str | Sequence[str]
"""A text, or several that are searched for the same question."""
MOST_OVERLAP = 0.5
"""Share of the shorter span above which two spans are near-duplicates."""
PART = 256
"""Queries that ``Reader.stream`` reads at once: enough to sort windows by length."""


def load(
    source: str | Path,
    *,
    device: str | torch.device | None = None,
    precision: Precision = "fp32",
    trust: Sequence[str] = (),
) -> Reader | Predictor:
    """A model ready to be asked: a ``Reader`` of spans, or the predictor of a run that ranks candidates.

    Weights come from safetensors and classes from trusted packages only (``trust`` adds prefixes).
    ``int8`` needs a CPU, the default device then. Raises RunError where the folder is not a finished
    run, ConfigError for an untrusted target, UnavailableError for a precision that the device has not.
    """
    predictor = load_predictor(source, device=device, precision=precision, trust=trust)
    return Reader(predictor) if isinstance(predictor, SpanPredictor) else predictor


class Reader:
    """Answers questions about texts of any length with a span of a text or "no answer".

    Calls from several threads take turns.
    """

    def __init__(self, predictor: SpanPredictor) -> None:
        self.predictor = predictor
        self._lock = Lock()

    @property
    def null_threshold(self) -> float:
        """Null odds above it mean "no answer": fitted on the run's calibration split."""
        return self.predictor.null_threshold

    @overload
    def __call__(self, question: str, context: Documents, **options: Any) -> Answer: ...
    @overload
    def __call__(
        self, question: list[str] | tuple[str, ...], context: Sequence[Documents] | str, **options: Any
    ) -> list[Answer]: ...
    def __call__(self, question, context, **options):
        """The answer to a question about a text, or about several; or those of many questions.

        ``qa("Who?", text)`` and ``qa("Who?", [text, text])`` give an Answer, the latter about all texts
        together; ``qa([q, q], [text, text])`` answers pair by pair and ``qa([q, q], text)`` all about one
        text. ``options`` are the fields of ``Query``: ``top_k``, ``max_answer_tokens``,
        ``null_threshold``, ``distinct``. Raises ConfigError where numbers of questions and texts differ,
        DataError for a text that is no valid Unicode.
        """
        if isinstance(question, str):
            return self.answer([Query(question, _documents(context), **options)])[0]
        contexts = [context] * len(question) if isinstance(context, str) else context
        if len(contexts) != len(question):
            raise ConfigError(
                f"context: there are {len(question)} questions and {len(contexts)} texts; give a text for"
                " each question, or a single one for all"
            )
        pairs = zip(question, contexts, strict=True)
        return self.answer([Query(text, _documents(context), **options) for text, context in pairs])

    def stream(
        self, pairs: Iterable[tuple[str, Documents]], *, size: int = PART, **options
    ) -> Iterator[Answer]:
        """The answers to any number of (question, documents), in order, ``size`` in memory at a time."""
        queries = (Query(question, _documents(context), **options) for question, context in pairs)
        while part := list(islice(queries, size)):
            yield from self.answer(part)

    def answer(self, queries: Sequence[Query]) -> list[Answer]:
        """The answers to ``queries``, in order; their windows share batches."""
        answers: list[Answer | None] = [None] * len(queries)
        settings = [self._decode(query) for query in queries]
        for decode in dict.fromkeys(settings):
            rows = [row for row, other in enumerate(settings) if other == decode]
            pairs = [(queries[row].question, text) for row in rows for text in queries[row].documents]
            with self._lock, torch.inference_mode():
                predictions = iter(self.predictor.predict(pairs, decode=decode))
            for row in rows:
                own = list(islice(predictions, len(queries[row].documents)))
                answers[row] = self._answer(queries[row], own)
        return [answer for answer in answers if answer is not None]

    @property
    def has_attention(self) -> bool:
        """Whether the model has a match-LSTM, whose attention can be shown."""
        return any(isinstance(module, MatchLSTM) for module in self.predictor.model.modules())

    def attention(self, question: str, context: str) -> AttentionMap:
        """What the match-LSTM looks at, in the window that holds the best span.

        Raises ConfigError for a blank text, RunError where the model has no match-LSTM.
        """
        for name, text in (("question", question), ("context", context)):
            if not text.strip():
                raise ConfigError(f"{name}: it is blank, so there is nothing to look at")
        questions = question_set("question", [Example("0", question, context)], "2.0")
        with self._lock:
            table = self.predictor.table(questions, cache=False)
            predictions = self.predictor.read(questions, table=table).best_predictions
            return attention_maps(self.predictor, questions, predictions, ["0"])[0]

    def _decode(self, query: Query) -> Decode:
        """How spans are searched: as the model was scored, but for what ``query`` asks otherwise."""
        own = self.predictor.config.decode
        return replace(
            own,
            n_best=max(own.n_best, query.top_k + 1),
            max_answer_tokens=query.max_answer_tokens or own.max_answer_tokens,
        )

    def _answer(self, query: Query, predictions: Sequence[Prediction]) -> Answer:
        """The best answer of all documents: that of highest confidence where "no answer" does not win."""
        threshold = self.null_threshold if query.null_threshold is None else query.null_threshold
        spans = sorted(
            (span for number, prediction in enumerate(predictions) for span in _spans(prediction, number)),
            key=lambda span: -span.confidence,
        )
        open_documents = {n for n, prediction in enumerate(predictions) if prediction.at(threshold)}
        best = next((span for span in spans if span.document in open_documents), None)
        null = max((_null_confidence(prediction) for prediction in predictions), default=1.0)
        return Answer(
            text=best.text if best else "",
            start=best.start if best else None,
            end=best.end if best else None,
            document=best.document if best else None,
            score=best.score if best else None,
            confidence=best.confidence if best else null,
            null_odds=min(prediction.null_odds for prediction in predictions),
            null_threshold=threshold,
            windows=sum(prediction.windows for prediction in predictions),
            spans=tuple(islice(_distinct(spans) if query.distinct else spans, query.top_k)),
            query=query,
        )


def _documents(context: Documents) -> tuple[str, ...]:
    return (context,) if isinstance(context, str) else tuple(context)


def _spans(prediction: Prediction, document: int) -> Iterator[Span]:
    """The spans of a document, most probable first."""
    for candidate in prediction.candidates:
        if candidate.text:
            yield Span(
                candidate.text,
                candidate.start,
                candidate.end,
                document,
                candidate.score,
                candidate.probability,
            )


def _null_confidence(prediction: Prediction) -> float:
    """Probability that the document holds no answer; 1 where there was nothing to read."""
    return next((c.probability for c in prediction.candidates if not c.text), 1.0)


def _distinct(spans: Iterable[Span]) -> Iterator[Span]:
    """``spans`` without those that overlap an earlier one of their document by more than ``MOST_OVERLAP``."""
    chosen: list[Span] = []
    for span in spans:
        if all(_overlap(span, other) <= MOST_OVERLAP for other in chosen):
            chosen.append(span)
            yield span


def _overlap(span: Span, other: Span) -> float:
    """Characters that two spans share, as a share of the shorter span; 0 in different documents.

    The texts of a sequence model may be no single span (-1 to -1) and overlap nothing.
    """
    shared = min(span.end, other.end) - max(span.start, other.start)
    if span.document != other.document or shared <= 0:
        return 0.0
    return shared / min(span.end - span.start, other.end - other.start)
