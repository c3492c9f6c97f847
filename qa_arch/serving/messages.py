"""Requests and responses of the REST interface, as the OpenAPI schema has them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from qa_arch.serving.query import Answer, Query

NO_UNICODE = "no_unicode"
"""Kind of pydantic's error for half a surrogate pair, which Python takes from JSON and no tokenizer takes."""


def _unicode(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PydanticCustomError(
            NO_UNICODE, "character {at} is half a surrogate pair", {"at": error.start}
        ) from None
    return text


Text = Annotated[str, AfterValidator(_unicode)]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Response(BaseModel):
    model_config = ConfigDict(from_attributes=True)


class QueryBody(_Request):
    """A question about one text (`context`) or about several that are searched together (`documents`)."""

    question: Text = Field(description="An empty question has no answer.", examples=["Who built the bridge?"])
    context: Text | None = Field(
        None, description="The text to read.", examples=["The bridge was built by Ada Stone in 1871."]
    )
    documents: list[Text] | None = Field(
        None, min_length=1, description="Texts to read, in place of `context`."
    )
    top_k: int = Field(1, ge=1, le=100, description="Most spans to return.")
    max_answer_tokens: int | None = Field(
        None, ge=1, le=1000, description="Longest answer in tokens; by default as the model was scored."
    )
    null_threshold: float | None = Field(
        None,
        allow_inf_nan=False,
        description='Null odds above it mean "no answer"; by default the model\'s own. `1e9` always answers.',
    )

    @model_validator(mode="after")
    def _has_text(self) -> QueryBody:
        if (self.context is None) == (self.documents is None):
            raise ValueError("give either context (a text) or documents (a list of texts)")
        return self

    def query(self) -> Query:
        documents = (self.context,) if self.context is not None else tuple(self.documents or ())
        return Query(
            self.question,
            documents,
            top_k=self.top_k,
            max_answer_tokens=self.max_answer_tokens,
            null_threshold=self.null_threshold,
        )


class _Model(_Request):
    model: Text | None = Field(
        None, description="A name of `/v1/models`; by default the first.", examples=[None]
    )


class SingleBody(QueryBody, _Model):
    """A single query."""

    def bodies(self) -> list[QueryBody]:
        return [self]


class BatchBody(_Model):
    """Several queries at once."""

    queries: list[QueryBody] = Field(min_length=1, description="Answered in order.")

    def bodies(self) -> list[QueryBody]:
        return self.queries


def _kind(body: Any) -> str:
    return "batch" if isinstance(body, dict) and "queries" in body else "single"


AnswerBody = Annotated[
    Annotated[SingleBody, Tag("single")] | Annotated[BatchBody, Tag("batch")], Discriminator(_kind)
]


class AttentionBody(_Model):
    """A question about a text, and a model whose attention is shown."""

    question: Text
    context: Text


class SpanMessage(_Response):
    """A span of a document: `documents[document][start:end] == text`, counted in characters (code points)."""

    text: str
    start: int
    end: int
    document: int = Field(description="From 0.")
    score: float = Field(description="Start logit plus end logit.")
    confidence: float = Field(description="Probability that this span is right.")


class AnswerMessage(_Response):
    """The answer to a query. An empty `text` is no answer; then start, end, document, score are null."""

    text: str
    start: int | None
    end: int | None
    document: int | None
    score: float | None
    confidence: float = Field(description='Probability that the answer, or "no answer", is right.')
    null_odds: float | None = Field(description="Score of no answer minus that of the best span.")
    null_threshold: float | None = Field(description="Null odds above it mean no answer; null: unlimited.")
    windows: int = Field(description="Windows of the texts that were read.")
    spans: list[SpanMessage] = Field(description="The best spans, also where there is no answer.")

    @staticmethod
    def of(answer: Answer) -> AnswerMessage:
        return AnswerMessage.model_validate(answer.as_dict())


class AnswersMessage(_Response):
    """The answers of a request, in the order of its queries; a single query has one."""

    model: str
    answers: list[AnswerMessage]


class ModelMessage(_Response):
    """A model that can be asked."""

    name: str
    architecture: str
    parameters: int
    null_threshold: float | None
    max_answer_tokens: int
    precision: str
    engine: str = Field(description="What computes, and in which precision: `torch fp32`, `onnx fp32`.")
    device: str
    attention: bool = Field(description="Whether `/v1/attention` has something to show.")


class ModelsMessage(_Response):
    """The models that were named at start; the first is asked by default."""

    models: list[ModelMessage]


class AttentionMessage(_Response):
    """Attention of a match-LSTM over the question, in the window that holds the best span."""

    model: str
    context: list[tuple[int, int]] = Field(description="Characters of each unit of the text, end exclusive.")
    question: list[tuple[int, int]] = Field(description="The same in the question.")
    weights: list[list[float]] = Field(
        description="Per unit of the text: the weight of each unit of the question, and last that of none;"
        " the mean of both directions."
    )


class HealthMessage(_Response):
    """`ok`, or with status 503 `draining`."""

    status: str


class ErrorDetails(BaseModel):
    message: str = Field(description="What is wrong.")
    field: str | None = Field(description="Where in the body.")
    remedy: str = Field(description="What to do.")
    id: str | None = Field(None, description="Under which the server's log has more (status 500).")


class ErrorMessage(BaseModel):
    """Every response with a status of 400 and above."""

    error: ErrorDetails
