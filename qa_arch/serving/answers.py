"""Questions to a reader, its answers, and how they are shown; records of the standard library alone."""

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

MOST = 160
"""Most characters of its sentence that are shown on either side of an answer."""
_SENTENCE_END = re.compile(r"[.!?…][\"'”’)\]]*\s+|[。！？]|\n+")
_CONTROLS = ("Cc", "Cs", "Zl", "Zp")


@dataclass(frozen=True, slots=True)
class Query:
    """A question about one or several documents, and how it is to be answered.

    Raises ConfigError where a value is of the wrong type or out of range and where question or documents are
    empty, DataError where a text is no valid Unicode (a lone surrogate); both name the field.
    """

    question: str
    documents: tuple[str, ...]
    """Texts of any length, of which one at least is not blank. A list is taken as well."""
    top_k: int = 1
    """Most spans to return, the best included."""
    max_answer_tokens: int | None = None
    """Longest answer in tokens; None: as the model was scored (``decode.max_answer_tokens``). The answer of
    a sequence model is as long as the model makes it."""
    null_threshold: float | None = None
    """Null odds above it mean "no answer"; ``inf``: always answer, ``-inf``: never; None: the model's own."""
    distinct: bool = True
    """Whether a span that overlaps a better one of the same document by more than half is left out."""

    def __post_init__(self) -> None:
        if isinstance(self.documents, str | bytes) or not isinstance(self.documents, Sequence):
            raise ConfigError(f"documents: a list of texts is wanted, not {type(self.documents).__name__}")
        object.__setattr__(self, "documents", tuple(self.documents))
        _require_text("question", self.question)
        for number, document in enumerate(self.documents):
            _require_text(f"documents[{number}]", document)
        if not self.question.strip():
            raise ConfigError("question: is empty; ask something")
        if not any(map(str.strip, self.documents)):
            raise ConfigError("documents: hold no text; give at least one passage to read")
        for name in ("top_k", "max_answer_tokens"):
            count = getattr(self, name)
            if count is None and name == "max_answer_tokens":
                continue
            if not isinstance(count, Integral) or isinstance(count, bool) or count < 1:
                raise ConfigError(f"{name}: {count!r} is out of range, it must be a whole number >= 1")
        threshold = self.null_threshold
        if threshold is not None and (not isinstance(threshold, Real) or math.isnan(threshold)):
            raise ConfigError(f"null_threshold: {threshold!r} is no number (inf: always answer)")
        if not isinstance(self.distinct, bool):
            raise ConfigError(f"distinct: true or false is wanted, not {self.distinct!r}")


def _require_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise ConfigError(f"{name}: text is wanted, not {type(value).__name__}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"{name}: character {error.start} is half a surrogate pair, which is no valid Unicode; decode the"
            " text with errors='replace'"
        ) from None


@dataclass(frozen=True, slots=True)
class Span:
    """A possible answer: ``documents[document][start:end] == text``, offsets in characters.

    Both are -1 where a sequence model chose words that do not stand side by side.
    """

    text: str
    start: int
    end: int
    document: int
    """Which of the query's documents, from 0."""
    score: float
    """Start logit plus end logit."""
    confidence: float
    """Probability that this span is right, which compares across documents and questions."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a query: a span of a document, or "no answer" (an empty ``text``; false as a condition).

    ``start``, ``end`` (as those of a ``Span``), ``document`` and ``score`` are None without an answer.
    """

    text: str
    start: int | None
    end: int | None
    document: int | None
    score: float | None
    confidence: float
    """Probability that the answer is right, that of "no answer" included (``metrics.confidence``)."""
    no_answer_probability: float
    """Probability that no document holds an answer: of several the lowest, that of the document which most
    probably holds one. It is on the scale of ``confidence``, at the model's own null threshold."""
    null_odds: float
    """Score of "no answer" minus that of the best span, in the document where it is lowest; above
    ``null_threshold``, the answer is "no answer"."""
    null_threshold: float
    windows: int
    """Windows that were read, over all documents."""
    spans: tuple[Span, ...] = ()
    """The best ``top_k`` spans, most probable first, also where "no answer" is the answer."""
    query: Query | None = field(default=None, compare=False)

    @property
    def alternatives(self) -> tuple[Span, ...]:
        """``spans`` without the answer. Offsets alone do not tell: a sequence model's may all be -1."""
        own = self.text, self.start, self.end, self.document
        return tuple(span for span in self.spans if (span.text, span.start, span.end, span.document) != own)

    @property
    def in_sentence(self) -> tuple[str, str, str] | None:
        """The text before the answer in its sentence, the answer, the text after it; None where the answer is
        no span of a text."""
        if self.query is None or self.document is None or self.start is None or self.start < 0:
            return None
        return sentence(self.query.documents[self.document], self.start, self.end or 0)

    def __bool__(self) -> bool:
        return bool(self.text)

    def __repr__(self) -> str:
        if not self:
            return (
                f"Answer(no answer, no_answer_probability={self.no_answer_probability:.3f},"
                f" null_odds={self.null_odds:.2f})"
            )
        return (
            f"Answer({self.text!r}, start={self.start}, end={self.end}, document={self.document},"
            f" confidence={self.confidence:.3f})"
        )

    def _repr_html_(self) -> str:
        """The answer marked in its sentence, and the alternatives, for notebooks; every text is escaped."""
        lines = [f"<b>{escape(self.query.question)}</b>"] if self.query else []
        if place := self.in_sentence:
            before, span, after = map(escape, place)
            lines.append(f"{before}<mark>{span}</mark>{after}")
        answered = (
            f"{escape(plain(self.text))} ({self.confidence:.0%})"
            if self
            else f"<em>no answer</em> ({self.no_answer_probability:.0%})"
        )
        others = (f"{escape(plain(span.text))} ({span.confidence:.0%})" for span in self.alternatives)
        lines += [answered, *(f"<small>{other}</small>" for other in others)]
        return "".join(f'<div dir="auto">{line}</div>' for line in lines)

    def as_dict(self) -> dict[str, Any]:
        """All fields but the query, as JSON has them: an infinite number is None."""
        values = asdict(self)
        del values["query"]
        for name in ("null_odds", "null_threshold"):
            values[name] = values[name] if math.isfinite(values[name]) else None
        return values


def sentence(text: str, start: int, end: int) -> tuple[str, str, str]:
    """The text before the span from ``start`` to ``end`` in its sentence, the span, and the text after it.

    A side that is longer than ``MOST`` is cut at a space and marked by "…". All three are ``plain``.
    """
    before, after = text[max(0, start - MOST - 1) : start], text[end : end + MOST + 1]
    ends = [match.end() for match in _SENTENCE_END.finditer(before)]
    if ends:
        before = before[ends[-1] :]
    elif len(before) > MOST:
        before = "…" + before.partition(" ")[2]
    own = text[max(start, end - 1) : end]  # its full stop may be the sentence's
    stop = _SENTENCE_END.search(own + after)
    if stop:
        after = after[: max(0, stop.end() - len(own))]
    elif len(after) > MOST:
        after = after.rpartition(" ")[0] + "…"
    return plain(before.lstrip()), plain(text[start:end]), plain(after.rstrip())


def plain(text: str) -> str:
    """``text`` with spaces for line ends and control characters, so that no text steers a terminal."""
    return "".join(" " if unicodedata.category(c) in _CONTROLS else c for c in text)
