"""``qa_arch.load(SOURCE)``: answer questions about texts with a trained model.

All serving goes through a ``Reader``, which uses the same windows, model and decoding as evaluation: what is
scored is what is served.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from os import PathLike, fspath
from threading import Lock
from typing import Any, NoReturn, TypedDict, Unpack, overload

import numpy as np
import torch

from qa_arch.config.schema import Decode
from qa_arch.errors import ConfigError, QaArchError, UnavailableError
from qa_arch.manifest import module_of
from qa_arch.metrics.confidence import confidences
from qa_arch.nn.precision import Precision
from qa_arch.serving.answers import Answer, Query, Span
from qa_arch.spans.loading import load_predictor, require_spans
from qa_arch.spans.predictor import SpanPredictor
from qa_arch.tasks import device_of
from qa_arch.types.text import Candidate, Example, Prediction

Documents = str | Sequence[str]
"""A text, or several to search for the answer to one question."""
MAX_OVERLAP = 0.5
"""Overlap, as a share of the shorter span, above which two spans are near-duplicates."""
CANDIDATES_PER_SPAN = 20
"""Candidates decoded per distinct span: the best spans of a window are mostly near-duplicates."""
STREAM_SIZE = 256
"""Queries that ``Reader.stream`` answers at once: enough to sort windows by length."""


OTHER_PROCESS = (
    "a Reader works only in the process that loaded it, and cannot be pickled or copied: call qa_arch.load in"
    " each process, as in the initializer of a pool"
)


class Options(TypedDict, total=False):
    """Decoding options: the fields of ``Query`` of the same names."""

    top_k: int
    max_answer_tokens: int | None
    null_threshold: float | None
    distinct: bool


def load(
    source: str | PathLike[str],
    *,
    device: str | torch.device | None = None,
    precision: Precision = "fp32",
    trust: Sequence[str] = (),
    max_question: int | None = None,
) -> Reader:
    """Load a trained span model: a run, a downloaded checkpoint or a graph of ``qa-arch export --to onnx``.

    ``max_question`` is a higher limit of a question, in tokens, than the
    run's own, up to what its encoder can read; what is cut off is counted in ``Answer.question_cut``.

    Weights come from safetensors and classes from trusted packages only (``trust`` adds prefixes).
    Only a graph runs in ``int8``. Raises RunError if the folder is not a finished
    run of a span model, ConfigError for an untrusted target or another precision than a graph's,
    UnavailableError for a precision the device does not support.
    """
    source = fspath(source)
    loaded = load_predictor(source, device=device, precision=precision, trust=trust)
    predictor = require_spans(source, loaded)
    if max_question is not None:
        predictor.raise_question_limit(max_question)
    return Reader(predictor)


class Reader:
    """Answers questions about texts of any length with a span of a text or "no answer".

    Thread-safe: calls from several threads take turns. It works in the process that loaded it; in a forked
    one, where torch's threads and a lock held by another thread would hang, and when pickled it raises
    UnavailableError.
    """

    def __init__(self, predictor: SpanPredictor) -> None:
        self.predictor = predictor
        self._lock, self._process = Lock(), os.getpid()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if os.getpid() != self._process:
            raise UnavailableError(OTHER_PROCESS)
        with self._lock:
            yield

    def __reduce__(self) -> NoReturn:
        raise UnavailableError(OTHER_PROCESS)

    def __repr__(self) -> str:
        predictor = self.predictor
        name = predictor.record.model if predictor.record else type(predictor.model).__name__
        return (
            f"Reader({name}, null_threshold={self.null_threshold:.2f}, temperature={self.temperature:.2f},"
            f" engine={predictor.engine}, device={device_of(predictor.model)})"
        )

    @property
    def null_threshold(self) -> float:
        """Null odds above it mean "no answer"; fitted on the run's calibration split."""
        return self.predictor.null_threshold

    @property
    def temperature(self) -> float:
        """Divisor of scores before they become confidences; 1 if not fitted."""
        return self.predictor.temperature

    @overload
    def __call__(self, question: str, context: Documents, **options: Unpack[Options]) -> Answer: ...
    @overload
    def __call__(
        self,
        question: list[str] | tuple[str, ...],
        context: Sequence[Documents] | str,
        **options: Unpack[Options],
    ) -> list[Answer]: ...
    def __call__(self, question, context, **options):
        """Answer one question about one or several texts, or many questions.

        ``qa("Who?", text)`` and ``qa("Who?", [text, text])`` return an Answer, the latter over all texts
        together; ``qa([q, q], [text, text])`` answers pair by pair and ``qa([q, q], text)`` all about one
        text. ``options`` are the fields of ``Query``: ``top_k``, ``max_answer_tokens``, ``null_threshold``,
        ``distinct``. Raises ConfigError for a wrong type or value, an empty question or text, or unequal
        numbers of questions and texts, DataError for invalid Unicode.
        """
        if isinstance(question, str):
            return self.answer([Query(question, _documents(context), **options)])[0]
        if not isinstance(question, list | tuple):
            raise ConfigError(
                f"question: must be a string or a list of strings, not {type(question).__name__};"
                " Reader.stream accepts any iterable of (question, text)"
            )
        contexts = (context,) * len(question) if isinstance(context, str) else _documents(context)
        if len(contexts) != len(question):
            raise ConfigError(
                f"context: there are {len(question)} questions and {len(contexts)} texts; give one text"
                " per question, or a single one for all"
            )
        return self.answer(list(_queries(zip(question, contexts, strict=True), options)))

    def stream(self, pairs: Iterable[tuple[str, Documents]], **options: Unpack[Options]) -> Iterator[Answer]:
        """Answer any number of (question, documents), in order, holding ``STREAM_SIZE`` in memory.

        Raises like a call on reaching an invalid pair, after the answers to those before it.
        """
        queries = _queries(pairs, options)
        fault: QaArchError | None = None
        while fault is None:
            part: list[Query] = []
            try:
                part.extend(islice(queries, STREAM_SIZE))
            except QaArchError as error:
                fault = error
            if not part:
                break
            yield from self.answer(part)
        if fault is not None:
            raise fault

    def answer(self, queries: Sequence[Query]) -> list[Answer]:
        """Answer ``queries``, in order; their windows share batches."""
        answers: dict[int, Answer] = {}
        settings = [self._decode(query) for query in queries]
        for decode in dict.fromkeys(settings):
            rows = [row for row, other in enumerate(settings) if other == decode]
            pairs = [(queries[row].question, text) for row in rows for text in queries[row].documents]
            with self._turn():
                predictions = iter(self.predictor.predict(pairs, decode=decode))
            for row in rows:
                by_document = list(islice(predictions, len(queries[row].documents)))
                answers[row] = self._answer(queries[row], by_document)
        return [answers[row] for row in range(len(queries))]

    @property
    def has_attention(self) -> bool:
        """Whether the model has a match-LSTM and the inspection extra is installed."""
        inspection = module_of("attention")
        return inspection is not None and bool(inspection.find_match_lstm(self.predictor.model))

    def attention(self, question: str, context: str) -> dict[str, Any]:
        """Attention of the match-LSTM in the window that contains the best span: ``context`` and ``question``
        with the characters of their units, and ``weights``, (C, Q + 1), as the service returns them.

        Raises ConfigError for a blank text, RunError if the model has no match-LSTM, UnavailableError without
        the inspection extra.
        """
        inspection = module_of("attention")
        if inspection is None:
            raise UnavailableError("attention: needs the extra qa_arch/extras/inspection, which is missing")
        with self._turn():
            return inspection.match_attention(self.predictor, Example("question", question, context))

    def _decode(self, query: Query) -> Decode:
        """Decoding as in evaluation, with the overrides of ``query``.

        Only the exact search may return more spans: with the others the best span would change.
        """
        default, max_length = self.predictor.config.decode, self.predictor.config.features.max_length
        longest = min(query.max_answer_tokens or default.max_answer_tokens, max_length)
        several = query.distinct and query.top_k > 1
        n_best = query.top_k * CANDIDATES_PER_SPAN if several else query.top_k + 1
        n_best = min(n_best, max_length * longest) if default.search == "band" else 0
        return replace(default, n_best=max(default.n_best, n_best), max_answer_tokens=longest)

    def _answer(self, query: Query, predictions: Sequence[Prediction]) -> Answer:
        """The most confident span of the documents in which "no answer" does not win."""
        threshold = self.null_threshold if query.null_threshold is None else float(query.null_threshold)
        spans: list[Span] = []
        null_confidences = []
        for document, prediction in enumerate(predictions):
            for span, confidence in self._confidences(prediction):
                if span.text:
                    spans.append(Span(span.text, span.start, span.end, document, span.score, confidence))
                else:
                    null_confidences.append(confidence)
        spans.sort(key=lambda span: -span.confidence)
        answered = {document for document, prediction in enumerate(predictions) if prediction.at(threshold)}
        best = next((span for span in spans if span.document in answered), None)
        no_answer_probability = min(null_confidences, default=1.0)
        return Answer(
            text=best.text if best else "",
            start=best.start if best else None,
            end=best.end if best else None,
            document=best.document if best else None,
            score=best.score if best else None,
            confidence=best.confidence if best else no_answer_probability,
            no_answer_probability=no_answer_probability,
            null_odds=min(prediction.null_odds for prediction in predictions),
            null_threshold=threshold,
            windows=sum(prediction.windows for prediction in predictions),
            spans=tuple(_distinct(spans, query.top_k) if query.distinct else spans[: query.top_k]),
            question_cut=max(prediction.question_cut for prediction in predictions),
            query=query,
        )

    def _confidences(self, prediction: Prediction) -> list[tuple[Candidate, float]]:
        """Candidates with their confidences, at the model's own threshold whatever the query's.

        The softmax is over as many candidates as in evaluation, so that confidences do not depend on
        ``top_k``; except where spans of different tokens have equal characters, as inside an emoji with
        byte-level BPE: there, evaluation has fewer.
        """
        candidates = prediction.candidates
        if not candidates:
            return []
        null = next(row for row, candidate in enumerate(candidates) if not candidate.text)
        scored = self.predictor.config.decode.n_best
        counted = [
            row < scored or row == null or candidate == prediction.best
            for row, candidate in enumerate(candidates)
        ]
        values = confidences(
            np.array([candidate.score for candidate in candidates]),
            np.array([null]),
            np.array([0, len(candidates)]),
            threshold=self.null_threshold,
            temperature=self.temperature,
            counted=np.array(counted),
        )
        return list(zip(candidates, values.tolist(), strict=True))


def _queries(pairs: Iterable[Any], options: Mapping[str, Any]) -> Iterator[Query]:
    """Queries of (question, documents); an error names the pair, counted from 0."""
    for number, pair in enumerate(pairs):
        try:
            if isinstance(pair, str | Mapping):  # two characters, or the names of two columns, would unpack
                raise TypeError
            question, context = pair
        except (TypeError, ValueError):
            raise ConfigError(f"pair {number}: must be (question, text), not {type(pair).__name__}") from None
        try:
            yield Query(question, _documents(context), **options)
        except QaArchError as error:
            raise type(error)(f"pair {number}: {error}") from None


def _documents(context: Documents) -> tuple[str, ...]:
    if isinstance(context, str):
        return (context,)
    if isinstance(context, bytes) or not isinstance(context, Sequence):
        raise ConfigError(f"context: must be a string or a list of strings, not {type(context).__name__}")
    return tuple(context)


def _distinct(spans: Iterable[Span], count: int) -> list[Span]:
    """The first ``count`` spans that overlap no earlier one of them by more than ``MAX_OVERLAP``."""
    chosen: list[Span] = []
    for span in spans:
        if len(chosen) < count and all(_overlap(span, other) <= MAX_OVERLAP for other in chosen):
            chosen.append(span)
    return chosen


def _overlap(span: Span, other: Span) -> float:
    """Characters shared by two spans, relative to the shorter span; 0 in different documents.

    Answers of a sequence model may not be contiguous (-1 to -1); they overlap nothing.
    """
    shared = min(span.end, other.end) - max(span.start, other.start)
    if span.document != other.document or shared <= 0:
        return 0.0
    return shared / min(span.end - span.start, other.end - other.start)
