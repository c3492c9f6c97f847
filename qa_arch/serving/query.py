"""What a reader is asked and what it answers: records of the standard library alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from qa_arch.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Query:
    """A question about one or several documents, and how it is to be answered.

    Raises ConfigError, which names the field, where a value is out of range.
    """

    question: str
    documents: tuple[str, ...]
    """Texts of any length; an empty one has no answer."""
    top_k: int = 1
    """Most spans to return, the best included."""
    max_answer_tokens: int | None = None
    """Longest answer in tokens; None: as the model was scored (``decode.max_answer_tokens``)."""
    null_threshold: float | None = None
    """Null odds above it mean "no answer"; ``inf``: always answer; None: the model's own."""
    distinct: bool = True
    """Whether a span that overlaps a better one of the same document by more than half is left out."""

    def __post_init__(self) -> None:
        for name, value in (("question", self.question), *(("documents", text) for text in self.documents)):
            if not isinstance(value, str):
                raise ConfigError(f"{name}: text is wanted, not {type(value).__name__}")
        for name, limit in (("top_k", self.top_k), ("max_answer_tokens", self.max_answer_tokens)):
            if limit is not None and limit < 1:
                raise ConfigError(f"{name}: {limit} is out of range, it must be >= 1")
        if not self.documents:
            raise ConfigError("documents: there is none; give at least one text")


@dataclass(frozen=True, slots=True)
class Span:
    """A possible answer: ``documents[document][start:end] == text``, offsets in characters."""

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

    ``start``, ``end`` (characters, end exclusive), ``document`` and ``score`` are None without an answer.
    """

    text: str
    start: int | None
    end: int | None
    document: int | None
    score: float | None
    confidence: float
    """Probability that the answer is right, that of "no answer" included."""
    null_odds: float
    """Score of "no answer" minus that of the best span, in the document where it is lowest; above
    ``null_threshold``, the answer is "no answer"."""
    null_threshold: float
    windows: int
    """Windows that were read, over all documents; 0 where question or documents are blank."""
    spans: tuple[Span, ...] = ()
    """The best ``top_k`` spans, most probable first, also where "no answer" is the answer."""
    query: Query | None = field(default=None, repr=False, compare=False)

    def __bool__(self) -> bool:
        return bool(self.text)

    def as_dict(self) -> dict[str, Any]:
        """All fields but the query, as JSON has them: an infinite number is None."""
        values = asdict(self)
        del values["query"]
        for name in ("null_odds", "null_threshold"):
            values[name] = values[name] if abs(values[name]) != float("inf") else None
        return values
