"""``create_app(models)``: answers over HTTP what a ``Reader`` answers in Python, and shows a page.

A request passes the check of its Host header, ``guard`` (token, size, time), the schema and the limits here,
and ``batching``, which asks the model. Requests and responses stand here as the OpenAPI schema has them; an
error has the form ``{"error": {"message", "field", "remedy"}}``.
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
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import FileResponse, JSONResponse
from starlette.staticfiles import StaticFiles

from qa_arch.config.check import suggest
from qa_arch.errors import ConfigError, DataError
from qa_arch.manifest import module_of
from qa_arch.serving.answers import Query
from qa_arch.serving.batching import Batcher, Telemetry
from qa_arch.serving.guard import Guard, RefusalError, ServiceOptions
from qa_arch.serving.reader import Reader
from qa_arch.tasks import device_of

FILES = Path(__file__).with_name("page")
# Not what the system's registry says, which browsers may refuse to run.
mimetypes.add_type("text/javascript", ".js")
REMEDIES = {
    400: "send a JSON object in UTF-8; /docs shows the fields",
    404: "/docs lists the paths",
    405: "/docs lists the methods of each path",
}
EXAMPLES = {
    "synthetic": {
        "question": "Which river was Kelldale reached by?",
        "context": "Kelldale is a southern town. The town was destroyed in 1752. The town was reached by the"
        " river Kemcreek.",
    },
    "": {
        "question": "When was the lighthouse lit for the first time?",
        "context": "The lighthouse on Skerry Point was lit for the first time on 3 October 1868. Its keeper,"
        " Maren Holt, rowed out from the village every evening until a causeway was laid eleven years later.",
    },
}
"""The first question of the page, by the training data: a model knows texts like those it learned from."""
TAGS = ("body", "single", "batch")
"""Parts of pydantic's place of an error that are no fields."""


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


def _query(question: str, context: str | None, documents: list[str] | None = None, **options: Any) -> Query:
    """The query of a body; pydantic's error, with the field, for what ``Query`` refuses."""
    if (context is None) == (documents is None):
        raise ValueError("give either context (a text) or documents (a list of texts)")
    try:
        return Query(question, (context,) if context is not None else tuple(documents or ()), **options)
    except (ConfigError, DataError) as error:
        field, _, message = str(error).partition(": ")
        if context is not None and field.startswith("documents"):
            field, message = "context", message.replace("hold no text", "is empty")
        kind = "invalid_text" if isinstance(error, DataError) else "invalid_query"
        raise PydanticCustomError(kind, "{message}", {"message": message, "field": field}) from error


class QueryBody(_Request):
    """A question about one text (`context`) or about several that are searched together (`documents`)."""

    question: str = Field(description="Must not be empty.", examples=["Who built the bridge?"])
    context: str | None = Field(
        None, description="The text to read.", examples=["The bridge was built by Ada Stone in 1871."]
    )
    documents: list[str] | None = Field(
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
    def _can_be_asked(self) -> QueryBody:
        self.query()
        return self

    def query(self) -> Query:
        return _query(**{name: getattr(self, name) for name in QueryBody.model_fields})


class _Model(_Request):
    model: str | None = Field(
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

    question: str
    context: str

    @model_validator(mode="after")
    def _can_be_asked(self) -> AttentionBody:
        _query(self.question, self.context)
        return self


class SpanMessage(BaseModel):
    """A span of a document: `documents[document][start:end] == text`, counted in characters (code points)."""

    text: str
    start: int
    end: int
    document: int = Field(description="From 0.")
    score: float = Field(description="Start logit plus end logit.")
    confidence: float = Field(description="Probability that this span is right.")


class AnswerMessage(BaseModel):
    """The answer to a query. An empty `text` is no answer; then start, end, document, score are null."""

    text: str
    start: int | None
    end: int | None
    document: int | None
    score: float | None
    confidence: float = Field(description='Probability that the answer, or "no answer", is right.')
    no_answer_probability: float = Field(description="Probability that the texts hold no answer.")
    null_odds: float | None = Field(description="Score of no answer minus that of the best span.")
    null_threshold: float | None = Field(description="Null odds above it mean no answer; null: unlimited.")
    windows: int = Field(description="Windows of the texts that were read.")
    spans: list[SpanMessage] = Field(description="The best spans, also where there is no answer.")


class AnswersMessage(BaseModel):
    """The answers of a request, in the order of its queries; a single query has one."""

    model: str
    answers: list[AnswerMessage]


class ExampleMessage(BaseModel):
    question: str
    context: str


class ModelMessage(BaseModel):
    """A model that can be asked."""

    name: str
    architecture: str
    parameters: int
    null_threshold: float | None
    max_answer_tokens: int
    precision: str
    engine: str = Field(description="Engine and precision: `torch fp32`, `onnx fp32`.")
    device: str
    attention: bool = Field(description="Whether `/v1/attention` is available.")
    example: ExampleMessage = Field(description="A question that suits the model's training data.")


class ModelsMessage(BaseModel):
    """The models that were named at start; the first is asked by default."""

    models: list[ModelMessage]


class AttentionMessage(BaseModel):
    """Attention of a match-LSTM over the question, in the window that holds the best span."""

    model: str
    context: list[tuple[int, int]] = Field(description="Characters of each unit of the text, end exclusive.")
    question: list[tuple[int, int]] = Field(description="The same in the question.")
    weights: list[list[float]] = Field(
        description="Per unit of the text: the weight of each unit of the question, and last that of none;"
        " the mean of both directions."
    )


class HealthMessage(BaseModel):
    """`ok`."""

    status: str


class ErrorDetails(BaseModel):
    message: str = Field(description="What is wrong.")
    field: str | None = Field(description="Where in the body.")
    remedy: str = Field(description="What to do.")
    id: str | None = Field(None, description="Id of the error in the server's log (status 500).")


class ErrorMessage(BaseModel):
    """A response with a status of 400 and above."""

    error: ErrorDetails


ERRORS: dict[int | str, dict[str, Any]] = {status: {"model": ErrorMessage} for status in ("4XX", "5XX", 422)}


class Service:
    """The models of an app, each with its queue; nothing else can be asked."""

    def __init__(self, models: Mapping[str, Reader], options: ServiceOptions) -> None:
        if not models:
            raise ConfigError("there is no model to serve; name at least one")
        self.models, self.options = dict(models), options
        self.telemetry = Telemetry()
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

    def check_size(self, queries: Sequence[Query]) -> None:
        """Raise RefusalError for a request of more than the options allow."""
        characters = sum(len(text) for query in queries for text in (query.question, *query.documents))
        documents = max(len(query.documents) for query in queries)
        for status, field, count, most in (
            (422, "queries", len(queries), self.options.max_queue),
            (422, "documents", documents, self.options.max_documents),
            (413, None, characters, self.options.max_characters),
        ):
            if count > most:
                what = field or "characters of text"
                remedy = f"send at most {most:,}"
                raise RefusalError(status, f"there are {count:,} {what}", field=field, remedy=remedy)


def create_app(models: Mapping[str, Reader], options: ServiceOptions | None = None) -> FastAPI:
    """The ASGI app that serves ``models`` by these names, the first by default; ConfigError without any."""
    options = options or ServiceOptions()
    service = Service(models, options)
    app = FastAPI(
        title="qa_arch",
        version=version("qa-arch"),
        summary="Questions about texts, answered with a span of the text or with no answer.",
        docs_url=None,
        redoc_url=None,
    )
    app.add_middleware(Guard, options=options, observe=service.telemetry.observe)
    hosts = [f"[{host}]" if ":" in host else host for host in options.allowed_hosts] or ["*"]
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)
    app.add_exception_handler(HTTPException, _of_framework)
    app.add_exception_handler(RequestValidationError, _of_field)
    descriptions = ModelsMessage(models=[_describe(*item) for item in service.models.items()])

    @app.post("/v1/answer", responses=ERRORS, summary="Answer a question, or several")
    async def answer(body: Annotated[AnswerBody, Body()]) -> AnswersMessage:
        """A single question about a `context` or several `documents`, or a list of such `queries`."""
        name, batcher = service.batcher(body.model)
        queries = [item.query() for item in body.bodies()]
        service.check_size(queries)
        answers = await batcher.answer(queries)
        for item in answers:
            service.telemetry.answers.labels(name, "yes" if item else "no").inc()
        return AnswersMessage.model_validate({"model": name, "answers": [item.as_dict() for item in answers]})

    @app.get("/v1/models", responses=ERRORS, summary="The models that can be asked")
    async def models_() -> ModelsMessage:
        return descriptions

    @app.get("/healthz", summary="Whether the service takes requests")
    async def health() -> HealthMessage:
        return HealthMessage(status="ok")

    @app.get("/metrics", response_class=Response, summary="Counters for Prometheus")
    async def metrics() -> Response:
        return Response(generate_latest(service.telemetry.registry), media_type=CONTENT_TYPE)

    async def page(request: Request) -> Response:
        return FileResponse(FILES / ("index.html" if request.url.path.endswith("/") else "docs.html"))

    if module_of("attention"):
        _add_attention(app, service)
    app.add_route("/", page, ["GET"], include_in_schema=False)
    app.add_route("/docs", page, ["GET"], include_in_schema=False)
    app.mount("/page", StaticFiles(directory=FILES), name="page")
    return app


def _add_attention(app: FastAPI, service: Service) -> None:
    @app.post("/v1/attention", responses=ERRORS, summary="What a match-LSTM looks at")
    async def attention(body: AttentionBody) -> AttentionMessage:
        """Only for models with `attention` in `/v1/models`; one window of the text."""
        name, batcher = service.batcher(body.model)
        if not batcher.reader.has_attention:
            with_attention = [name for name, reader in service.models.items() if reader.has_attention]
            remedy = f"choose among: {', '.join(with_attention)}" if with_attention else "serve one that has"
            raise RefusalError(422, "the model has no match-LSTM", field="model", remedy=remedy)
        service.check_size([_query(body.question, body.context)])
        item = await batcher.attention(body.question, body.context)
        weights = item.weights.astype(float).mean(axis=0).round(4).tolist()
        places = {"context": item.context.tolist(), "question": item.question.tolist()}
        return AttentionMessage(model=name, weights=weights, **places)


def _describe(name: str, reader: Reader) -> ModelMessage:
    predictor = reader.predictor
    record = predictor.record
    counted = sum(parameter.numel() for parameter in predictor.model.parameters())
    threshold = predictor.null_threshold
    generated = str(predictor.config.data.train).startswith("synthetic")
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
        example=ExampleMessage(**EXAMPLES["synthetic" if generated else ""]),
    )


async def _of_framework(_: Request, error: Any) -> JSONResponse:
    """An error of the framework, such as an unknown path, in our form."""
    status = error.status_code
    remedy = REMEDIES.get(status, HTTPStatus(status).description or "see /docs")
    return RefusalError(status, str(error.detail), remedy=remedy, headers=error.headers).response()


async def _of_field(_: Request, problems: Any) -> JSONResponse:
    """The first problem with the fields of a body."""
    error = problems.errors()[0]
    kind, message, context = error["type"], error["msg"].removeprefix("Value error, "), error.get("ctx", {})
    if kind == "json_invalid":
        message = f"no valid JSON: {context['error']} (character {error['loc'][-1]})"
        return RefusalError(400, message, remedy=REMEDIES[400]).response()
    field = field_name([*error["loc"], *([context["field"]] if "field" in context else [])])
    remedy = "/docs shows what the field takes"
    if kind == "extra_forbidden":
        known = {*SingleBody.model_fields, *BatchBody.model_fields}
        remedy = f"leave it out{suggest(str(error['loc'][-1]), known)}"
    if kind == "model_attributes_type":
        message = "an object with the fields of a query is wanted"
    status = 400 if kind == "invalid_text" else 422
    return RefusalError(status, message, field=field, remedy=remedy).response()


def field_name(place: Iterable[str | int]) -> str | None:
    """``queries[2].question`` for pydantic's ``("body", "batch", "queries", 2, "question")``."""
    parts = list(place)
    while parts and parts[0] in TAGS:
        parts.pop(0)
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return text.lstrip(".") or None
