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

AROUND = 400
"""Characters of the passage that a notebook shows on each side of the answer."""
_MARK = "background:rgba(255,200,0,.35);color:inherit;border-radius:.2em;padding:0 .1em"
_PASSAGE = "white-space:pre-wrap;border-left:.2em solid rgba(128,128,128,.5);padding-left:.8em;margin:.4em 0"
MOST = 160
"""Most characters that a terminal shows on either side of the answer."""
_SENTENCE_END = re.compile(r"[.!?…][\"'”’)\]]*\s+|[。！？]|\n+")
_CONTROLS = ("Cc", "Cs", "Zl", "Zp")


@dataclass(frozen=True, slots=True)
class Query:
    """A question about one or several documents, and how it is to be answered.

    Raises ConfigError where a value is of the wrong type or out of range, DataError where a text is no valid
    Unicode (a lone surrogate); both name the field.
    """

    question: str
    documents: tuple[str, ...]
    """Texts of any length; a blank one has no answer. A list is taken as well."""
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
            raise ConfigError(f"documents: a list of texts is wanted, not {_type(self.documents)}")
        object.__setattr__(self, "documents", tuple(self.documents))
        if not self.documents:
            raise ConfigError("documents: there is none; give at least one text")
        _check_text("question", self.question)
        for number, document in enumerate(self.documents):
            _check_text(f"documents[{number}]", document)
        _check_count("top_k", self.top_k)
        if self.max_answer_tokens is not None:
            _check_count("max_answer_tokens", self.max_answer_tokens)
        if self.null_threshold is not None:
            _check_threshold("null_threshold", self.null_threshold)
        if not isinstance(self.distinct, bool):
            raise ConfigError(f"distinct: true or false is wanted, not {_type(self.distinct)}")


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
    """Probability that the answer is right, that of "no answer" included (``metrics.confidence``); of several
    documents "no answer" has the lowest, that of the document which most probably holds one."""
    null_odds: float
    """Score of "no answer" minus that of the best span, in the document where it is lowest; above
    ``null_threshold``, the answer is "no answer"."""
    null_threshold: float
    windows: int
    """Windows that were read, over all documents; 0 where question or documents are blank."""
    spans: tuple[Span, ...] = ()
    """The best ``top_k`` spans, most probable first, also where "no answer" is the answer."""
    query: Query | None = field(default=None, compare=False)

    @property
    def alternatives(self) -> tuple[Span, ...]:
        """``spans`` without the answer. Offsets alone do not tell: a sequence model's may all be -1."""
        own = self.text, self.start, self.end, self.document
        return tuple(span for span in self.spans if (span.text, span.start, span.end, span.document) != own)

    def __bool__(self) -> bool:
        return bool(self.text)

    def __repr__(self) -> str:
        if not self:
            return f"Answer(no answer, confidence={self.confidence:.3f}, null_odds={self.null_odds:.2f})"
        return (
            f"Answer({self.text!r}, start={self.start}, end={self.end}, document={self.document},"
            f" confidence={self.confidence:.3f})"
        )

    def _repr_html_(self) -> str:
        """The passage with the answer marked, its confidence and the alternatives, as notebooks show them.

        Every text is escaped. Styles are inline and take colours from the page, so that light and dark fit.
        """
        documents = self.query.documents if self.query else ()
        parts = [f'<div dir="auto"><b>{_escaped(self.query.question)}</b></div>'] if self.query else []
        if passage := _passage(self, documents):
            parts.append(f'<div dir="auto" style="{_PASSAGE}">{passage}</div>')
        count = len(documents)
        parts.append(f"<div>{_line(self.text, self.confidence, self.document, count)}</div>")
        if others := self.alternatives:
            lines = (_line(span.text, span.confidence, span.document, count) for span in others)
            rows = "".join(f"<li>{line}</li>" for line in lines)
            parts.append(f'<div style="opacity:.7">Alternatives</div><ol style="margin:0">{rows}</ol>')
        return f'<div style="line-height:1.5;max-width:50em">{"".join(parts)}</div>'

    def as_dict(self) -> dict[str, Any]:
        """All fields but the query, as JSON has them: an infinite number is None."""
        values = asdict(self)
        del values["query"]
        for name in ("null_odds", "null_threshold"):
            values[name] = values[name] if math.isfinite(values[name]) else None
        return values


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise ConfigError(f"{name}: text is wanted, not {_type(value)}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"{name}: character {error.start} is half a surrogate pair, which is no valid Unicode; decode the"
            " text with errors='replace'"
        ) from None


def _check_count(name: str, value: object) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise ConfigError(f"{name}: a whole number is wanted, not {_type(value)}")
    if value < 1:
        raise ConfigError(f"{name}: {value} is out of range, it must be >= 1")


def _check_threshold(name: str, value: object) -> None:
    if not isinstance(value, Real) or isinstance(value, bool) or math.isnan(value):
        wrong = "NaN" if isinstance(value, float) else _type(value)
        raise ConfigError(f"{name}: a number is wanted (inf: always answer), not {wrong}")


def _type(value: object) -> str:
    return type(value).__name__


def _passage(answer: Answer, documents: tuple[str, ...]) -> str:
    """The document that holds the answer, cut around it; the only document where there is no answer."""
    if answer.document is None:
        return _cut(documents[0], 0, 2 * AROUND) if len(documents) == 1 else ""
    if not documents or answer.start is None or answer.end is None:
        return ""
    document = documents[answer.document]
    if answer.start < 0:  # words of a sequence model that do not stand side by side
        return _cut(document, 0, 2 * AROUND)
    before = _cut(document[: answer.start], answer.start - AROUND, answer.start)
    after = _cut(document[answer.end :], 0, AROUND)
    return f'{before}<mark style="{_MARK}">{_escaped(answer.text)}</mark>{after}'


def _line(text: str, confidence: float, document: int | None, documents: int) -> str:
    """A text, or that there is none, with its confidence and its place among several documents."""
    nothing = f"<em>no answer in {'these texts' if documents > 1 else 'this text'}</em>"
    place = f", document {document + 1} of {documents}" if documents > 1 and document is not None else ""
    words = f"<bdi>{_escaped(text)}</bdi>" if text else nothing
    return f'{words} <span style="opacity:.7">confidence {confidence:.0%}{place}</span>'


def _cut(text: str, start: int, end: int) -> str:
    """``text[start:end]`` escaped, with an ellipsis where something is left out."""
    start = max(start, 0)
    return ("…" if start else "") + _escaped(text[start:end]) + ("…" if end < len(text) else "")


def _escaped(text: str) -> str:
    return escape(text.replace("\x00", "\ufffd"))


def sentence(text: str, start: int, end: int) -> tuple[str, str, str]:
    """What precedes the span from ``start`` to ``end`` in its sentence, the span, and what follows.

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
