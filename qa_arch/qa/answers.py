"""Queries and answers: fields, rules and JSON in Python, in JSON lines and over REST. No torch here.

``Query``, ``Answer`` and ``Span`` are pydantic dataclasses, and so the schema of the service.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import InitVar, field, fields
from functools import wraps
from html import escape
from numbers import Integral, Real
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    TypeAdapter,
    ValidationError,
    WrapValidator,
)
from pydantic.dataclasses import dataclass
from pydantic_core import PydanticCustomError

from qa_arch.config.check import suggest
from qa_arch.errors import ConfigError, DataError

MOST_CONTEXT = 160
"""Maximum number of characters shown on either side of an answer in its sentence."""
_SENTENCE_END = re.compile(r"[.!?…][\"'”’)\]]*\s+|[。！？]|\n+")
_CONTROLS = ("Cc", "Cs", "Zl", "Zp")
INVALID_TEXT = "invalid_text"
"""Kind of a fault in the characters of a text: DataError in Python, status 400 of the service."""
UNKNOWN_FIELD = "unexpected_keyword_argument"
T = TypeVar("T")


# Rules --------------------------------------------------------------------------------------------


def _fault(message: str, kind: Any = "invalid_value") -> PydanticCustomError:
    return PydanticCustomError(kind, "{message}", {"message": message})


def _not_blank(message: str) -> AfterValidator:
    def check(text: str) -> str:
        if not text.strip():
            raise _fault(message)
        return text

    return AfterValidator(check)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _fault(f"must be a string, not {type(value).__name__}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise _fault(
            f"character {error.start} is half a surrogate pair, which is not valid Unicode; decode the text"
            " with errors='replace'",
            INVALID_TEXT,
        ) from None
    return value


def _documents(value: Any, check: Callable[[Any], tuple[str, ...]]) -> tuple[str, ...] | None:
    if value is None:
        return None
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise _fault(f"must be a list of strings, not {type(value).__name__}")
    texts = check(value) if len(value) else ()  # an empty list gets our message, not pydantic's
    if not any(map(str.strip, texts)):
        raise _fault(NOTHING)
    return texts


def _odds(value: Any) -> float:
    try:
        if isinstance(value, Real) and not isinstance(value, bool) and not math.isnan(value):
            return float(value)
    except OverflowError:  # a whole number of hundreds of digits
        pass
    raise _fault(f"{value!r} is not a number (1e9: always answer)")


def _whole(value: Any) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise _fault(f"{value!r} is out of range, it must be a whole number >= 1")
    return int(value)


NOTHING = "no text to read; give at least one passage"
Text = Annotated[str, BeforeValidator(_text)]
Question = Annotated[Text, _not_blank("is empty; ask something")]
Passage = Annotated[Text, _not_blank(NOTHING)]
WHOLE = BeforeValidator(_whole)
if TYPE_CHECKING:
    Documents = tuple[str, ...]
else:  # None in the constructor and in JSON alone: a query with a context
    Documents = Annotated[Annotated[tuple[Text, ...], Field(min_length=1)] | None, WrapValidator(_documents)]


class Fault(NamedTuple):
    """What is wrong with a query."""

    field: str
    """``documents[1]``; empty for the query as a whole."""
    message: str
    kind: str
    """Of pydantic, or one of our rules."""

    @classmethod
    def of(cls, error: ValidationError, names: Sequence[str] = (), within: Sequence[str] = ()) -> Fault:
        """The first fault that pydantic found; ``names`` are the fields, in order, and ``within`` parts of
        its place that are none."""
        first = error.errors(include_url=False, include_input=False)[0]
        place = list(first["loc"])
        if place and place[0] in within:
            del place[0]
        elif place and isinstance(place[0], int) and place[0] < len(names):  # a positional argument
            place[0] = names[place[0]]
        field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")
        message = first["msg"].replace("Input should be", "must be")
        if first["type"] == UNKNOWN_FIELD:
            message = f"unknown field{suggest(field, names) if names else ''}"
        return cls(field, message, first["type"])


def _raising_ours(cls: type[T]) -> type[T]:
    """Let ``cls(...)`` raise ConfigError or DataError, which start with the field, in place of pydantic's."""
    names, build = [item.name for item in fields(cls)], cls.__init__  # type: ignore[arg-type]

    @wraps(build)
    def init(self: Any, *arguments: Any, **values: Any) -> None:
        try:
            build(self, *arguments, **values)
        except ValidationError as error:
            fault = Fault.of(error, names)
            kind = DataError if fault.kind == INVALID_TEXT else ConfigError
            raise kind(f"{fault.field}: {fault.message}".removeprefix(": ")) from None

    cls.__init__ = init  # type: ignore[method-assign]
    return cls


# Queries and answers ------------------------------------------------------------------------------


@_raising_ours
@dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))
class Query:
    """A question about one or more documents, with its decoding options.

    Raises ConfigError if a value has the wrong type or is out of range or if the question or all documents
    are empty, DataError for invalid Unicode (a lone surrogate); both name the field.
    """

    question: Question = Field(
        description="Must not be empty.", examples=["Which river was Kelldale reached by?"]
    )
    documents: Documents = Field(
        default=None,  # type: ignore[arg-type]
        description="Texts to read, instead of `context`.",
    )
    top_k: Annotated[int, Field(ge=1), WHOLE] = 1
    """Maximum number of spans to return, including the best."""
    max_answer_tokens: Annotated[int, Field(ge=1), WHOLE] | None = None
    """Longest answer in tokens; None: as in evaluation (``decode.max_answer_tokens``). Sequence models
    ignore it."""
    null_threshold: Annotated[float, BeforeValidator(_odds)] | None = None
    """Null odds above it mean "no answer"; ``inf``: always answer, ``-inf``: never; None: the model's own."""
    distinct: bool = Field(
        default=True,
        strict=True,
        description="Drop spans that overlap a better one of the same document by more than half.",
    )
    context: InitVar[Passage | None] = Field(
        default=None,
        description="The text to read: `documents` of one.",
        examples=["Kelldale was reached by the river Kemcreek."],
    )

    def __post_init__(self, context: str | None) -> None:
        if (context is None) == (self.documents is None):
            raise _fault("give either context (a text) or documents (a list of texts)")
        if context is not None:
            object.__setattr__(self, "documents", (context,))


QUERY = TypeAdapter(Query)
"""Validates a mapping to a query; raises pydantic's error, of which ``Fault.of`` tells the first fault."""
Finite = Annotated[
    float, PlainSerializer(lambda value: value if math.isfinite(value) else None, return_type=float | None)
]
"""A number that JSON shows as null if it is infinite."""
MESSAGE = ConfigDict(use_attribute_docstrings=True, json_schema_serialization_defaults_required=True)


@dataclass(frozen=True, slots=True, config=MESSAGE)
class Span:
    """A candidate answer: `documents[document][start:end] == text`, offsets in characters (code points).

    Both offsets are -1 if a sequence model chose words that are not contiguous.
    """

    text: str
    start: int
    end: int
    document: int
    """Index in the query's `documents`, from 0."""
    score: float
    """Start logit plus end logit."""
    confidence: float
    """Probability that this span is correct, comparable across documents and questions."""


@dataclass(frozen=True, slots=True, config=MESSAGE)
class Answer:
    """The answer to a query: a span of a document, or "no answer" (empty `text`; falsy).

    `start`, `end` (as in a span), `document` and `score` are None (null) for "no answer".
    """

    text: str
    start: int | None
    end: int | None
    document: int | None
    score: float | None
    confidence: float
    """Probability that the answer, or "no answer", is correct."""
    no_answer_probability: float
    """Probability that no document contains an answer: the lowest of the documents' probabilities, on the
    scale of `confidence`, at the model's own null threshold."""
    null_odds: Finite
    """Score of "no answer" minus score of the best span, the lowest over documents; above
    `null_threshold` the answer is "no answer"."""
    null_threshold: Finite
    """Null odds above it mean "no answer"; infinite (null in JSON): always answered, or never."""
    windows: int
    """Number of windows read, over all documents."""
    spans: tuple[Span, ...] = ()
    """The best `top_k` spans, most probable first, even if the answer is "no answer"."""
    query: Annotated[Query | None, Field(exclude=True)] = field(default=None, compare=False)
    question_cut: int = 0
    """Tokens at the end of the question that were not read, as it exceeds `features.max_question`."""

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
        return "".join(f'<div dir="auto">{line}</div>' for line in lines)  # by line, for right-to-left texts

    def as_dict(self) -> dict[str, Any]:
        """All fields except the query, JSON-serialisable: infinite numbers become None."""
        return ANSWER.dump_python(self)


ANSWER = TypeAdapter(Answer)


def sentence(text: str, start: int, end: int) -> tuple[str, str, str]:
    """Split the sentence around the span ``start:end`` into (text before, span, text after).

    A side longer than ``MOST_CONTEXT`` is cut at a space and marked with "…". All three are ``plain``.
    """
    # One character more on each side tells whether that side has to be cut.
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
