"""``Reader``: a trained span model with its tokenizer and word vectors, which answers questions about texts.

Evaluation, Python, the command line, JSON lines and the service all use it, with the same windows, model and
decoding: what is scored is what is served.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from numbers import Integral
from threading import RLock
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict, Unpack, overload

import numpy as np
from torch import nn
from transformers import PreTrainedTokenizerBase

from qa_arch.config.schema import Config, Decode
from qa_arch.data.question_sets import question_set
from qa_arch.errors import ConfigError, QaArchError, UnavailableError, named
from qa_arch.features.batches import Collator
from qa_arch.features.cache import windows_of
from qa_arch.features.vectors import WordVectors, vector_rows
from qa_arch.features.windows import FeatureTable, check_ids, probe
from qa_arch.manifest import module_of
from qa_arch.metrics.abstention import confidences
from qa_arch.nn.encoder import encoder_of
from qa_arch.nn.precision import Precision
from qa_arch.nn.reading import Watch, device_of, run_model
from qa_arch.qa.decoding import SpanCollector
from qa_arch.qa.ranking import Ranking
from qa_arch.records import RunRecord
from qa_arch.types import Candidate, Example, Prediction, QuestionSet

if TYPE_CHECKING:  # imported where questions are answered: training and scoring need no pydantic
    from qa_arch.qa.answers import Answer, Query, Span

log = logging.getLogger(__name__)
Texts = str | Sequence[str]
"""A text, or several to search for the answer to one question."""
PART_SIZE = 1000
"""Questions in memory at once in ``rank_parts``: enough to sort windows by length."""
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


class Reader:
    """Answers questions about texts of any length with a span of a text or "no answer".

    Null threshold and temperature are those of ``record``; 0 and 1 without one. Thread-safe: calls from
    several threads take turns. It works in the process that loaded it; in a forked one, where torch's threads
    and a lock held by another thread would hang, and when pickled it raises UnavailableError. ``library``
    computes the logits: ``onnx`` for a graph, ``onnx + torch`` for an ensemble of both.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        vectors: WordVectors | None,
        config: Config,
        *,
        segments: bool,
        record: RunRecord | None = None,
        precision: Precision = "fp32",
        vocab_size: int | None = None,
        library: str = "torch",
    ) -> None:
        self.model, self.tokenizer, self.vectors = model.eval(), tokenizer, vectors
        self.segments = segments
        self.config, self.record = config, record
        self.records: tuple[RunRecord, ...] = () if record is None else (record,)
        """The record of each model of an ensemble, in order; that of the model itself if it is none."""
        self.null_threshold = record.null_threshold if record else 0.0
        self.temperature = record.temperature if record else 1.0
        self.precision: Precision = precision
        self.vocab_size, self.library = vocab_size, library
        self._lock, self._process = RLock(), os.getpid()
        self.longest: dict[str, int] = {}
        """Limits of ``prepare`` beyond those of the config."""

    @property
    def engine(self) -> str:
        """The ``library`` and its precision, as scores record them: ``torch fp32``."""
        return f"{self.library} {self.precision}"

    def raise_question_limit(self, max_question: int) -> None:
        """Read questions of up to ``max_question`` tokens whole, if the encoder can; answers to shorter ones
        stay the same.

        Raises ConfigError unless it is at least the run's own limit, and leaves room for the passage.
        """
        if not isinstance(max_question, Integral) or isinstance(max_question, bool):
            raise ConfigError(f"max_question: {max_question!r} is not a whole number")
        windows, specials = self.config.features, probe(self.tokenizer, self.segments).specials
        longest = _longest_window(self.model, windows.max_length, windows.max_length + max_question)
        largest = longest - specials - windows.stride - 1  # a window advances by one token at least
        if not windows.max_question <= max_question <= largest:
            raise ConfigError(
                f"max_question: {max_question} is out of range; give at least {windows.max_question}, the"
                f" run's limit, and at most {largest}, which leave room for a passage in windows of {longest}"
            )
        self.longest = {"longest_question": max_question, "longest_window": longest}

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if os.getpid() != self._process:
            raise UnavailableError(OTHER_PROCESS)
        with self._lock:
            yield

    def __reduce__(self) -> NoReturn:
        raise UnavailableError(OTHER_PROCESS)

    def __repr__(self) -> str:
        name = self.record.model if self.record else type(self.model).__name__
        return (
            f"Reader({name}, null_threshold={self.null_threshold:.2f}, temperature={self.temperature:.2f},"
            f" engine={self.engine}, device={device_of(self.model)})"
        )

    @overload
    def __call__(self, question: str, context: Texts, **options: Unpack[Options]) -> Answer: ...
    @overload
    def __call__(
        self,
        question: list[str] | tuple[str, ...],
        context: Sequence[Texts] | str,
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
        from qa_arch.qa.answers import Query

        if isinstance(question, str):
            return self.answer([Query(question, _texts(context), **options)])[0]
        if isinstance(question, bytes) or not isinstance(question, Sequence):
            raise ConfigError(
                f"question: must be a string or a list of strings, not {type(question).__name__};"
                " Reader.stream accepts any iterable of (question, text)"
            )
        contexts = (context,) * len(question) if isinstance(context, str) else _texts(context)
        if len(contexts) != len(question):
            raise ConfigError(
                f"context: there are {len(question)} questions and {len(contexts)} texts; give one text"
                " per question, or a single one for all"
            )
        return self.answer(list(_queries(zip(question, contexts, strict=True), options)))

    def stream(self, pairs: Iterable[tuple[str, Texts]], **options: Unpack[Options]) -> Iterator[Answer]:
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
        """Answer ``queries``, in order; their windows share batches. Raises ConfigError for anything else."""
        from qa_arch.qa.answers import Query

        _require_iterable("queries", queries, "a list of Query")
        queries = list(queries)
        for query in queries:
            if not isinstance(query, Query):
                kind = type(query).__name__
                raise ConfigError(f"queries: must be a list of Query, not of {kind}; qa(...) takes texts")
        answers: dict[int, Answer] = {}
        settings = [self._decode(query) for query in queries]
        for decode in dict.fromkeys(settings):
            rows = [row for row, other in enumerate(settings) if other == decode]
            pairs = [(queries[row].question, text) for row in rows for text in queries[row].documents]
            predictions = iter(self.predict(pairs, decode=decode))
            for row in rows:
                by_document = list(islice(predictions, len(queries[row].documents)))
                answers[row] = self._answer(queries[row], by_document)
        return [answers[row] for row in range(len(queries))]

    def predict(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        decode: Decode | None = None,
    ) -> list[Prediction]:
        """Predict, with candidates, the answer for each (question, text) pair, in order.

        A blank question or text has none (``best`` is None, ``windows`` is 0). ``decode`` overrides the
        model's own settings. Raises DataError for a text that is not valid Unicode.
        """
        examples = [
            Example(id=str(number), question=question, context=context)
            for number, (question, context) in enumerate(pairs)
            if question.strip() and context.strip()
        ]
        predictions = [
            Prediction(str(n), best=None, null_odds=math.inf, windows=0) for n in range(len(pairs))
        ]
        if examples:
            questions = question_set("questions", examples, "2.0")
            with self._turn():
                table = self.table(questions, cache=False)
                ranking = self.rank(questions, table=table, decode=decode)
            # The same in all windows of a question.
            cut = dict(zip(table.example.tolist(), table.question_cut.tolist(), strict=True))
            for row, prediction in enumerate(ranking.predictions()):
                predictions[int(prediction.id)] = replace(prediction, question_cut=cut[row])
        return predictions

    def try_out(self) -> None:
        """Answer two questions, to find files that do not fit together; ValueError if no score is finite."""
        pairs = [("Who?", "Ada \U00013000."), ("Who wrote it?", "It was written by Ada.")]
        if not any(math.isfinite(prediction.null_odds) for prediction in self.predict(pairs)):
            raise ValueError("its scores are not finite")

    def table(self, questions: QuestionSet, *, cache: bool = True) -> FeatureTable:
        """Windows of a set under the settings that the model was trained with.

        Raises ConfigError for a token id beyond the model's ``vocab_size``, which graphs do not state.
        """
        settings = self.config.features if cache else replace(self.config.features, cache_dir=None)
        table = windows_of(questions, self.tokenizer, settings, segments=self.segments, **self.longest)
        if self.vocab_size is not None:
            encoder = self.config.encoder
            label = encoder.name if encoder.init == "pretrained" else f"the encoder {encoder.family}"
            check_ids(table, self.vocab_size, str(label))
        return table

    def rank(
        self,
        questions: QuestionSet,
        *,
        table: FeatureTable | None = None,
        batch_size: int | None = None,
        decode: Decode | None = None,
        watch: Watch | None = None,
    ) -> Ranking:
        """The ranked answers to each question of a set, in order.

        ``table`` may hold the set's features if they exist already; ``decode`` replaces the config's
        decoding. ``watch`` counts windows.
        """
        with self._turn():
            table = self.table(questions) if table is None else table
            return run_model(
                self.model,
                Collator(table, vector_rows(self.vectors, table), labels=False),
                SpanCollector(questions, table, decode or self.config.decode),
                batch_size=batch_size or self.config.trainer.eval_batch_size,
                precision=self.precision,
                watch=watch,
            )

    def rank_parts(
        self,
        questions: QuestionSet,
        *,
        size: int = PART_SIZE,
        batch_size: int | None = None,
        watch: Watch | None = None,
    ) -> Iterator[Ranking]:
        """``rank`` any number of questions in parts of ``size``, to bound memory; one ranking per part.

        Features are not cached. ``watch`` counts questions. Questions that are cut are counted in the log.
        """
        cut = 0
        for begin in range(0, len(questions), size):
            examples = questions.examples[begin : begin + size]
            part = question_set(questions.name, examples, questions.protocol, language=questions.language)
            table = self.table(part, cache=False)
            cut += table.truncated_questions
            yield self.rank(part, table=table, batch_size=batch_size)
            if watch is not None:
                watch(begin + len(examples), len(questions))
        if cut:
            limit = self.longest.get("longest_question", self.config.features.max_question)
            log.warning("%s: %d questions were cut to %d tokens", questions.name, cut, limit)

    @property
    def has_attention(self) -> bool:
        """Whether the model has a match-LSTM and the inspection extra is installed."""
        inspection = module_of("attention")
        return inspection is not None and bool(inspection.find_match_lstm(self.model))

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
            return inspection.match_attention(self, Example("question", question, context))

    def _decode(self, query: Query) -> Decode:
        """Decoding as in evaluation, with the overrides of ``query``.

        Only the exact search may return more spans: with the others the best span would change.
        """
        default, max_length = self.config.decode, self.config.features.max_length
        longest = min(query.max_answer_tokens or default.max_answer_tokens, max_length)
        several = query.distinct and query.top_k > 1
        # Overlapping spans are dropped later, so several distinct ones need more candidates.
        n_best = query.top_k * CANDIDATES_PER_SPAN if several else query.top_k + 1  # one for the null
        n_best = min(n_best, max_length * longest) if default.search == "band" else 0
        return replace(default, n_best=max(default.n_best, n_best), max_answer_tokens=longest)

    def _answer(self, query: Query, predictions: Sequence[Prediction]) -> Answer:
        """The most confident span of the documents in which "no answer" does not win."""
        from qa_arch.qa.answers import Answer, Span

        threshold = self.null_threshold if query.null_threshold is None else float(query.null_threshold)
        spans: list[Span] = []
        null_confidences = []
        for document, prediction in enumerate(predictions):
            for span, confidence in self._confidences(prediction):
                if span.text:
                    spans.append(Span(span.text, span.start, span.end, document, span.score, confidence))
                else:
                    null_confidences.append(confidence)
        spans.sort(key=lambda span: -span.confidence)  # stable: ties stay in the order of documents and ranks
        # Each document abstains by its own null odds; the best span comes from those that do not.
        answered = {document for document, prediction in enumerate(predictions) if prediction.at(threshold)}
        best = next((span for span in spans if span.document in answered), None)
        # A set of documents has no answer only if none of them has.
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
        scored = self.config.decode.n_best
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
    from qa_arch.qa.answers import Query

    _require_iterable("pairs", pairs, "an iterable of (question, text)")
    for number, pair in enumerate(pairs):
        try:
            if isinstance(pair, str | Mapping):  # two characters, or the names of two columns, would unpack
                raise TypeError
            question, context = pair
        except (TypeError, ValueError):
            raise ConfigError(f"pair {number}: must be (question, text), not {type(pair).__name__}") from None
        with named(f"pair {number}"):
            yield Query(question, _texts(context), **options)


def _require_iterable(name: str, value: Any, kind: str) -> None:
    if not isinstance(value, Iterable):
        raise ConfigError(f"{name}: must be {kind}, not {type(value).__name__}")


def _texts(context: Texts) -> tuple[str, ...]:
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


def _longest_window(model: nn.Module, stated: int, unlimited: int) -> int:
    """Tokens of the longest window that a model, or every member of an ensemble, can read: ``stated`` if it
    is not known (a graph), ``unlimited`` if nothing limits it."""
    members: Any = getattr(model, "members", [model])
    encoders = [encoder_of(member) for member in members]
    limits = [stated if encoder is None else encoder.max_tokens for encoder in encoders]
    return min(unlimited if limit is None else limit for limit in limits)
