"""What a reader is asked and what it answers: records of the standard library alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from numbers import Integral, Real
from typing import Any

from qa_arch.errors import ConfigError, DataError


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
        """The passage with the answer marked, as notebooks show it."""
        from qa_arch.serving.notebook import answer_html

        return answer_html(self)

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
