"""``create_app(models)``: answers over HTTP what a ``Reader`` answers in Python, and shows a page.

A request passes ``guard`` (host, token, size, time), the schema and the limits here, and ``batching``, which
asks the model. Requests and responses stand here as the OpenAPI schema has them; every error has one form,
``{"error": {"message", "field", "remedy"}}``.
"""

from __future__ import annotations

import asyncio
import mimetypes
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

from fastapi import Body, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as CONTENT_TYPE
from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, JSONResponse
from starlette.staticfiles import StaticFiles

from qa_arch.errors import ConfigError, DataError
from qa_arch.manifest import module_of
from qa_arch.serving.answers import Answer, Query
from qa_arch.serving.batching import Batcher, Telemetry
from qa_arch.serving.guard import Guard, RefusalError, ServiceOptions, Traffic
from qa_arch.serving.reader import Reader
from qa_arch.tasks import device_of

FILES = Path(__file__).with_name("page")
# Not what the system's registry says, which browsers may refuse to run.
mimetypes.add_type("text/javascript", ".js")
NO_UNICODE = "no_unicode"
"""Kind of pydantic's error for half a surrogate pair, which Python takes from JSON and no tokenizer takes."""
NESTED = "There was an error parsing the body"
"""FastAPI's words for JSON that cannot be read for another reason than its grammar: depth, huge numbers."""
REMEDIES = {
    400: "send a JSON object in UTF-8; /docs shows the fields",
    404: "/docs lists the paths",
    405: "/docs lists the methods of each path",
}
TAGS = ("body", "single", "batch")
"""Parts of pydantic's place of an error that are no fields."""


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


ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorMessage},
    "5XX": {"model": ErrorMessage},
    422: {"model": ErrorMessage},
}


class Service:
    """The models of an app, each with its queue; nothing else can be asked."""

    def __init__(self, models: Mapping[str, Reader], options: ServiceOptions) -> None:
        if not models:
            raise ConfigError("there is no model to serve; name at least one")
        self.models, self.options = dict(models), options
        self.telemetry, self.traffic = Telemetry(), Traffic()
        for name in self.models:
            self.telemetry.queue.labels(name).set(0)  # shown before the first question
        self._batchers: dict[str, Batcher] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        """To which the queues belong."""

    def batcher(self, name: str | None) -> tuple[str, Batcher]:
        """Name and queue of a model, of the first by default; RefusalError (404) for any other name."""
        name = next(iter(self.models)) if name is None else name
        if name not in self.models:
            names = ", ".join(self.models)
            raise RefusalError(404, "there is no such model", field="model", remedy=f"choose among: {names}")
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # not left to a lifespan, which nobody runs where the app is mounted
            self._loop = loop
            self._batchers = {
                model: Batcher(model, reader, self.options, self.telemetry)
                for model, reader in self.models.items()
            }
        return name, self._batchers[name]

    def queries(self, bodies: list[QueryBody]) -> list[Query]:
        """What is asked; RefusalError where it is more than the options allow."""
        if len(bodies) > self.options.max_queue:
            most = f"send at most {self.options.max_queue} in a request"
            raise RefusalError(422, f"there are {len(bodies)} queries", field="queries", remedy=most)
        for body in bodies:
            if len(body.documents or ()) > self.options.max_documents:
                most = f"send at most {self.options.max_documents} for a question"
                raise RefusalError(422, "there are too many documents", field="documents", remedy=most)
        queries = [body.query() for body in bodies]
        self.check_length(text for query in queries for text in (query.question, *query.documents))
        return queries

    def check_length(self, texts: Iterable[str]) -> None:
        count, most = sum(map(len, texts)), self.options.max_characters
        if count > most:
            remedy = f"send at most {most:,} in a request"
            raise RefusalError(413, f"the request has {count:,} characters of text", remedy=remedy)


def create_app(models: Mapping[str, Reader], options: ServiceOptions | None = None) -> FastAPI:
    """The ASGI app that serves ``models`` by these names, the first by default.

    ``app.state.traffic`` tells a server what goes on and takes from it that the service is to end. Raises
    ConfigError where there is no model.
    """
    service = Service(models, options or ServiceOptions())
    app = FastAPI(
        title="qa_arch",
        version=version("qa-arch"),
        summary="Questions about texts, answered with a span of the text or with no answer.",
        docs_url=None,
        redoc_url=None,
    )
    app.state.traffic = service.traffic
    _handle_errors(app)
    app.add_middleware(
        Guard, options=service.options, traffic=service.traffic, observe=service.telemetry.observe
    )
    _add_questions(app, service)
    if module_of("attention"):
        _add_attention(app, service)
    _add_state(app, service)
    _add_page(app)
    return app


def _add_questions(app: FastAPI, service: Service) -> None:
    @app.post("/v1/answer", responses=ERRORS, summary="Answer a question, or several")
    async def answer(body: Annotated[AnswerBody, Body()]) -> AnswersMessage:
        """A single question about a `context` or several `documents`, or a list of such `queries`."""
        name, batcher = service.batcher(body.model)
        try:
            answers = await batcher.answer(service.queries(body.bodies()))
        except (ConfigError, DataError) as error:
            raise _wrong_text(error) from error
        for item in answers:
            service.telemetry.answers.labels(name, "yes" if item else "no").inc()
        return AnswersMessage(model=name, answers=[AnswerMessage.of(item) for item in answers])


def _add_attention(app: FastAPI, service: Service) -> None:
    @app.post("/v1/attention", responses=ERRORS, summary="What a match-LSTM looks at")
    async def attention(body: AttentionBody) -> AttentionMessage:
        """Only for models with `attention` in `/v1/models`; one window of the text."""
        name, batcher = service.batcher(body.model)
        if not batcher.reader.has_attention:
            with_attention = [name for name, reader in service.models.items() if reader.has_attention]
            remedy = f"choose among: {', '.join(with_attention)}" if with_attention else "serve one that has"
            raise RefusalError(422, "the model has no match-LSTM", field="model", remedy=remedy)
        service.check_length((body.question, body.context))
        try:
            item = await batcher.attention(body.question, body.context)
        except (ConfigError, DataError) as error:
            raise _wrong_text(error) from error
        weights = item.weights.astype(float).mean(axis=0).round(4).tolist()
        places = {"context": item.context.tolist(), "question": item.question.tolist()}
        return AttentionMessage(model=name, weights=weights, **places)


def _wrong_text(error: Exception) -> RefusalError:
    """What the reader has against a text; its message begins with the field."""
    field, _, message = str(error).partition(": ")
    return RefusalError(422, message, field=field, remedy="change it as the message says")


def _add_state(app: FastAPI, service: Service) -> None:
    descriptions = ModelsMessage(models=[_describe(*item) for item in service.models.items()])

    @app.get("/v1/models", responses=ERRORS, summary="The models that can be asked")
    async def models() -> ModelsMessage:
        return descriptions

    @app.get("/healthz", summary="Whether the service takes requests")
    async def health() -> HealthMessage:
        """While the service ends it answers 503, as everything does."""
        return HealthMessage(status="ok")

    @app.get("/metrics", response_class=Response, summary="Counters for Prometheus")
    async def metrics() -> Response:
        return Response(generate_latest(service.telemetry.registry), media_type=CONTENT_TYPE)


def _describe(name: str, reader: Reader) -> ModelMessage:
    predictor = reader.predictor
    record = predictor.record
    counted = sum(parameter.numel() for parameter in predictor.model.parameters())
    threshold = predictor.null_threshold
    return ModelMessage(
        name=name,
        architecture=record.model if record else type(predictor.model).__name__,
        parameters=counted or (record.parameters.total if record else None) or 0,  # a graph tells none
        null_threshold=threshold if abs(threshold) != float("inf") else None,
        max_answer_tokens=predictor.config.decode.max_answer_tokens,
        precision=predictor.precision,
        engine=predictor.engine,
        device=str(device_of(predictor.model)),
        attention=reader.has_attention,
    )


def _handle_errors(app: FastAPI) -> None:
    """Let ``app`` answer the errors of its framework, such as unknown paths, in our form."""

    @app.exception_handler(HTTPException)
    async def of_http(_: Request, error: HTTPException) -> JSONResponse:
        status, message = error.status_code, str(error.detail)
        if isinstance(error.__cause__, UnicodeDecodeError):
            message = f"the body is not UTF-8 (byte {error.__cause__.start})"
        elif message == NESTED:
            message = "the JSON is too deep or holds a number that is too long"
        remedy = REMEDIES.get(status, HTTPStatus(status).description or "see /docs")
        return RefusalError(status, message, remedy=remedy, headers=error.headers).response()

    @app.exception_handler(RequestValidationError)
    async def of_body(_: Request, error: RequestValidationError) -> JSONResponse:
        return _of_field(error.errors()[0]).response()


def _of_field(error: Mapping[str, Any]) -> RefusalError:
    """The first problem that pydantic has with a body."""
    kind, message = error["type"], error["msg"].removeprefix("Value error, ")
    if kind == "json_invalid":
        message = f"no valid JSON: {error['ctx']['error']} (character {error['loc'][-1]})"
        return RefusalError(400, message, remedy=REMEDIES[400])
    field = field_name(error["loc"])
    if kind == NO_UNICODE:
        return RefusalError(400, message, field=field, remedy="replace it, for instance by U+FFFD")
    remedy = "leave it out" if kind == "extra_forbidden" else "change it as the message says"
    return RefusalError(422, message, field=field, remedy=remedy)


def field_name(place: Sequence[str | int]) -> str | None:
    """``queries[2].question`` for pydantic's ``("body", "batch", "queries", 2, "question")``."""
    parts = list(place)
    while parts and parts[0] in TAGS:
        parts.pop(0)
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return text.lstrip(".") or None


def _add_page(app: FastAPI) -> None:
    async def file(request: Request) -> Response:
        return FileResponse(FILES / ("index.html" if request.url.path.endswith("/") else "docs.html"))

    app.add_route("/", file, ["GET"], include_in_schema=False)
    app.add_route("/docs", file, ["GET"], include_in_schema=False)
    app.mount("/page", StaticFiles(directory=FILES), name="page")
