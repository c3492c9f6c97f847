"""Queries, answers and their text and HTML rendering. Standard library only."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from numbers import Integral, Real
from typing import Any

from qa_arch.errors import ConfigError, DataError

MOST_CONTEXT = 160
"""Maximum number of characters shown on either side of an answer in its sentence."""
_SENTENCE_END = re.compile(r"[.!?…][\"'”’)\]]*\s+|[。！？]|\n+")
_CONTROLS = ("Cc", "Cs", "Zl", "Zp")


@dataclass(frozen=True, slots=True)
class Query:
    """A question about one or more documents, with its decoding options.

    Raises ConfigError if a value has the wrong type or is out of range or if the question or all documents
    are empty, DataError for invalid Unicode (a lone surrogate); both name the field.
    """

    question: str
    documents: tuple[str, ...]
    """Texts of any length, at least one of them not blank. A list is accepted too."""
    top_k: int = 1
    """Maximum number of spans to return, including the best."""
    max_answer_tokens: int | None = None
    """Longest answer in tokens; None: as in evaluation (``decode.max_answer_tokens``). Sequence models
    ignore it."""
    null_threshold: float | None = None
    """Null odds above it mean "no answer"; ``inf``: always answer, ``-inf``: never; None: the model's own."""
    distinct: bool = True
    """Drop spans that overlap a better one of the same document by more than half."""

    def __post_init__(self) -> None:
        if isinstance(self.documents, str | bytes) or not isinstance(self.documents, Sequence):
            raise ConfigError(f"documents: must be a list of strings, not {type(self.documents).__name__}")
        object.__setattr__(self, "documents", tuple(self.documents))
        _require_text("question", self.question)
        for number, document in enumerate(self.documents):
            _require_text(f"documents[{number}]", document)
        if not self.question.strip():
            raise ConfigError("question: is empty; ask something")
        if not any(map(str.strip, self.documents)):
            raise ConfigError("documents: no text to read; give at least one passage")
        for name in ("top_k", "max_answer_tokens"):
            count = getattr(self, name)
            if count is None and name == "max_answer_tokens":
                continue
            if not isinstance(count, Integral) or isinstance(count, bool) or count < 1:
                raise ConfigError(f"{name}: {count!r} is out of range, it must be a whole number >= 1")
        threshold = self.null_threshold
        if threshold is not None and (not isinstance(threshold, Real) or math.isnan(threshold)):
            raise ConfigError(f"null_threshold: {threshold!r} is not a number (inf: always answer)")
        if not isinstance(self.distinct, bool):
            raise ConfigError(f"distinct: must be true or false, not {self.distinct!r}")


def _require_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise ConfigError(f"{name}: must be a string, not {type(value).__name__}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"{name}: character {error.start} is half a surrogate pair, which is not valid Unicode; decode"
            " the text with errors='replace'"
        ) from None


@dataclass(frozen=True, slots=True)
class Span:
    """A candidate answer: ``documents[document][start:end] == text``, offsets in characters.

    Both offsets are -1 if a sequence model chose words that are not contiguous.
    """

    text: str
    start: int
    end: int
    document: int
    """Index in the query's documents, from 0."""
    score: float
    """Start logit plus end logit."""
    confidence: float
    """Probability that this span is correct, comparable across documents and questions."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a query: a span of a document, or "no answer" (empty ``text``; falsy).

    ``start``, ``end`` (as in ``Span``), ``document`` and ``score`` are None for "no answer".
    """

    text: str
    start: int | None
    end: int | None
    document: int | None
    score: float | None
    confidence: float
    """Probability that the answer, or "no answer", is correct (``metrics.confidence``)."""
    no_answer_probability: float
    """Probability that no document contains an answer: the lowest of the documents' probabilities, on the
    scale of ``confidence``, at the model's own null threshold."""
    null_odds: float
    """Score of "no answer" minus score of the best span, the lowest over documents; above
    ``null_threshold`` the answer is "no answer"."""
    null_threshold: float
    windows: int
    """Number of windows read, over all documents."""
    spans: tuple[Span, ...] = ()
    """The best ``top_k`` spans, most probable first, even if the answer is "no answer"."""
    query: Query | None = field(default=None, compare=False)
    question_cut: int = 0
    """Tokens at the end of the question that were not read, as it exceeds ``features.max_question``."""

    @property
    def alternatives(self) -> tuple[Span, ...]:
        """``spans`` without the answer. Compares texts too: a sequence model's offsets may all be -1."""
        own = self.text, self.start, self.end, self.document
        return tuple(span for span in self.spans if (span.text, span.start, span.end, span.document) != own)

    @property
    def in_sentence(self) -> tuple[str, str, str] | None:
        """The answer's sentence as (text before, answer, text after); None if the answer is not a span."""
        if self.query is None or self.document is None or self.start is None or self.start < 0:
            return None
        return sentence(self.query.documents[self.document], self.start, self.end or 0)

    def __bool__(self) -> bool:
        return bool(self.text)

    @property
    def warning(self) -> str:
        """What the reader of the answer must know; empty if nothing."""
        if not self.question_cut:
            return ""
        return (
            f"the last {self.question_cut} tokens of the question were not read; raise max_question"
            " (--max-question), or shorten it"
        )

    def __repr__(self) -> str:
        cut = f", question_cut={self.question_cut}" if self.question_cut else ""
        if not self:
            return (
                f"Answer(no answer, no_answer_probability={self.no_answer_probability:.3f},"
                f" null_odds={self.null_odds:.2f}{cut})"
            )
        return (
            f"Answer({self.text!r}, start={self.start}, end={self.end}, document={self.document},"
            f" confidence={self.confidence:.3f}{cut})"
        )

    def _repr_html_(self) -> str:
        """HTML for notebooks: the answer marked in its sentence, and the alternatives; all text escaped."""
        lines = [f"<b>{escape(self.query.question)}</b>"] if self.query else []
        if parts := self.in_sentence:
            before, span, after = map(escape, parts)
            lines.append(f"{before}<mark>{span}</mark>{after}")
        answered = (
            f"{escape(plain(self.text))} ({self.confidence:.0%})"
            if self
            else f"<em>no answer</em> ({self.no_answer_probability:.0%})"
        )
        others = (f"{escape(plain(span.text))} ({span.confidence:.0%})" for span in self.alternatives)
        lines += [answered, *(f"<small>{other}</small>" for other in others)]
        lines += [f"<em>{self.warning}</em>"] if self.warning else []
        return "".join(f'<div dir="auto">{line}</div>' for line in lines)

    def as_dict(self) -> dict[str, Any]:
        """All fields except the query, JSON-serialisable: infinite numbers become None."""
        values = asdict(self)
        del values["query"]
        for name in ("null_odds", "null_threshold"):
            values[name] = values[name] if math.isfinite(values[name]) else None
        return values


def sentence(text: str, start: int, end: int) -> tuple[str, str, str]:
    """Split the sentence around the span ``start:end`` into (text before, span, text after).

    A side longer than ``MOST_CONTEXT`` is cut at a space and marked with "…". All three are ``plain``.
    """
    before, after = text[max(0, start - MOST_CONTEXT - 1) : start], text[end : end + MOST_CONTEXT + 1]
    ends = [match.end() for match in _SENTENCE_END.finditer(before)]
    if ends:
        before = before[ends[-1] :]
    elif len(before) > MOST_CONTEXT:
        before = "…" + before.partition(" ")[2]
    last = text[max(start, end - 1) : end]  # the span may end with the sentence's full stop
    stop = _SENTENCE_END.search(last + after)
    if stop:
        after = after[: max(0, stop.end() - len(last))]
    elif len(after) > MOST_CONTEXT:
        after = after.rpartition(" ")[0] + "…"
    return plain(before.lstrip()), plain(text[start:end]), plain(after.rstrip())


def plain(text: str) -> str:
    """Replace line ends and control characters with spaces, so that text cannot control a terminal."""
    return "".join(" " if unicodedata.category(c) in _CONTROLS else c for c in text)
