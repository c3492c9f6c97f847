"""``create_app(models)``: REST API and web page for ``Reader`` models.

A request passes the check of its Host header, ``guard`` (token, size, time), the schema and limits defined
here, and ``Batcher``, which calls the model. Bodies are queries and responses answers (``qa.answers``),
which, with the models here, define the OpenAPI schema; errors have the form
``{"error": {"message", "field", "remedy"}}``.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import mimetypes
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from typing import Annotated, Any, get_type_hints

from batched.aio import AsyncBatchProcessor
from fastapi import Body, FastAPI, Request, Response
from fastapi.routing import APIRoute
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as CONTENT_TYPE
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import FileResponse, JSONResponse

from qa_arch.config.check import suggest
from qa_arch.data.sources import SYNTHETIC, recorded_format
from qa_arch.errors import ConfigError
from qa_arch.files import unique_keys
from qa_arch.manifest import module_of
from qa_arch.nn.reading import device_of
from qa_arch.qa.answers import INVALID_TEXT, UNKNOWN_FIELD, WHOLE, Answer, Fault, Passage, Query, Question
from qa_arch.qa.reader import Reader
from qa_arch.serving import ServiceOptions
from qa_arch.serving.guard import Guard, RefusalError, busy

FILES = Path(__file__).with_name("page")
# Override the system's registry: browsers refuse scripts of another type.
mimetypes.add_type("text/javascript", ".js")
REMEDIES = {
    400: "send a JSON object in UTF-8; /docs lists the fields",
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
"""Example question of the page, matched to the training data of the model."""
MOST_FIELDS = 20
"""Limit on the fields of an object, known or not."""
WAIT_MS = 2.0
"""Milliseconds a query waits for others; also the polling interval of an empty queue."""
TAGS = ("single", "batch")
"""Parts of pydantic's error locations that are not fields."""


BODY = ConfigDict(extra="forbid")
Name = Annotated[
    str | None, Field(description="A name from `/v1/models`; by default the first.", examples=[None])
]


@dataclass(frozen=True, slots=True, config=BODY)
class QueryBody(Query):
    """A question about one text (`context`) or several texts searched together (`documents`)."""

    top_k: Annotated[int, Field(ge=1, le=100), WHOLE] = Field(
        default=1, description="Maximum number of spans to return."
    )
    max_answer_tokens: Annotated[int, Field(ge=1, le=1000), WHOLE] | None = Field(
        default=None, description="Longest answer in tokens; by default as in evaluation."
    )
    null_threshold: float | None = Field(
        default=None,
        strict=True,
        allow_inf_nan=False,
        description='Null odds above it mean "no answer"; by default the model\'s own. `1e9` always answers.',
    )


@dataclass(frozen=True, slots=True, config=BODY)
class SingleBody(QueryBody):
    """A single query."""

    model: Name = None


@dataclass(frozen=True, slots=True, config=BODY)
class BatchBody:
    """Several queries in one request."""

    queries: list[QueryBody] = Field(min_length=1, fail_fast=True, description="Answered in order.")
    model: Name = None


def _kind(body: Any) -> str:
    is_batch = "queries" in body if isinstance(body, dict) else isinstance(body, BatchBody)
    return "batch" if is_batch else "single"


AnswerBody = Annotated[
    Annotated[SingleBody, Tag("single")] | Annotated[BatchBody, Tag("batch")], Discriminator(_kind)
]


@dataclass(frozen=True, slots=True, config=BODY)
class AttentionBody:
    """A question about a text, and the model whose attention to show."""

    question: Question
    context: Passage
    model: Name = None

    @property
    def documents(self) -> tuple[str]:
        return (self.context,)


class AnswersMessage(BaseModel):
    """Answers in the order of the queries; one for a single query."""

    model: str
    answers: list[Answer]


class ExampleMessage(BaseModel):
    question: str
    context: str


class ModelMessage(BaseModel):
    """A served model."""

    name: str
    architecture: str
    parameters: int
    null_threshold: float | None
    max_answer_tokens: int
    precision: str
    engine: str = Field(description="Engine and precision: `torch fp32`, `onnx fp32`.")
    device: str
    attention: bool = Field(description="Whether `/v1/attention` is available.")
    example: ExampleMessage = Field(description="A question that resembles the model's training data.")


class ModelsMessage(BaseModel):
    """The served models; the first is the default."""

    models: list[ModelMessage]


class AttentionMessage(BaseModel):
    """Attention of a match-LSTM over the question, in the window that contains the best span."""

    model: str
    context: list[tuple[int, int]] = Field(description="Characters [start, end) of each unit of the text.")
    question: list[tuple[int, int]] = Field(description="The same for the question.")
    weights: list[list[float]] = Field(
        description="Per unit of the text: the weight of each unit of the question, then that of no unit;"
        " mean of both directions."
    )


class ErrorDetails(BaseModel):
    message: str = Field(description="What is wrong.")
    field: str | None = Field(description="Which field of the body.")
    remedy: str = Field(description="What to do.")
    id: str | None = Field(None, description="Id of the error in the server's log (status 500).")


class ErrorMessage(BaseModel):
    """Response with a status of 400 or above."""

    error: ErrorDetails


ERRORS: dict[int | str, dict[str, Any]] = {status: {"model": ErrorMessage} for status in ("4XX", "5XX", 422)}


class Telemetry:
    """Prometheus metrics of one service, shown at ``/metrics``; they contain no text of a question."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()  # several services may share a process
        common: dict[str, Any] = {"namespace": "qa_arch", "registry": self.registry}
        self.seconds = Histogram("request_seconds", "Time to the response", ("path", "status"), **common)
        self.queue = Gauge("queue_length", "Queries waiting or being answered", ("model",), **common)
        self.answers = Counter("answers_total", "Answers and abstentions", ("model", "answered"), **common)


@dataclasses.dataclass(frozen=True, slots=True)
class _Item:
    """A query whose length, in characters, counts toward the batch limit of ``batched``."""

    query: Query

    def __len__(self) -> int:
        return len(self.query.question) + sum(map(len, self.query.documents))


class Batcher:
    """Bounded queue of one model, whose batches are shared by concurrent requests.

    It belongs to the event loop in which it is first used. The ``aio`` processor of the library ``batched``
    calls the model in a thread, which keeps the event loop free, drops queries cancelled while they waited,
    and limits a batch by number and length. Its queue is unbounded, so queries are counted before they enter
    it. Its batches fail as a whole; here only the query that the model cannot answer fails.
    """

    def __init__(self, name: str, reader: Reader, options: ServiceOptions, telemetry: Telemetry) -> None:
        self.reader, self.options = reader, options
        self.size = 0
        """Queries waiting or being answered."""
        self._lock = Lock()  # the thread of an attention releases its slot, too
        self._name, self._queue = name, telemetry.queue.labels(name)
        self._thread = ThreadPoolExecutor(1)
        self._processor: AsyncBatchProcessor[_Item, Answer | Exception] = AsyncBatchProcessor(
            self._answer,
            batch_size=options.max_batch,
            timeout_ms=WAIT_MS,
            max_batch_length=options.max_characters,
        )

    async def answer(self, queries: Sequence[Query]) -> list[Answer]:
        """Return the answers, in order. Cancelling drops queries not yet started.

        Raises RefusalError (429) if the queue is full, and whatever the model raises.
        """
        self._reserve(len(queries))
        try:
            results = await self._processor([_Item(query) for query in queries])
        finally:
            self._release(len(queries))
        answers = []
        for result in results:
            if isinstance(result, Exception):
                raise result
            answers.append(result)
        return answers

    async def attention(self, question: str, context: str) -> dict[str, Any]:
        """Run ``Reader.attention`` in a thread; it occupies a queue slot until it ends.

        Cancelling does not stop it once started. Raises like ``answer``.
        """
        self._reserve(1)
        future = self._thread.submit(self.reader.attention, question, context)
        future.add_done_callback(lambda _: self._release(1))
        return await asyncio.wrap_future(future)

    def _reserve(self, count: int) -> None:
        """Reserve queue slots; raises RefusalError (429) if too few are free."""
        with self._lock:
            if self.size + count > self.options.max_queue:
                raise busy(f"the queue of {self._name} is full ({self.size} of {self.options.max_queue})")
            self.size += count
            self._queue.set(self.size)

    def _release(self, count: int) -> None:
        with self._lock:
            self.size -= count
            self._queue.set(self.size)

    def _answer(self, items: list[_Item]) -> list[Answer | Exception]:
        """Answer all items in one batch or, if that fails, one by one. Runs in the worker thread."""
        try:
            return list(self.reader.answer([item.query for item in items]))
        except Exception as error:
            if len(items) == 1:
                return [error]
            return [result for item in items for result in self._answer([item])]


class Service:
    """The models of an app, each with its queue."""

    def __init__(self, models: Mapping[str, Reader], options: ServiceOptions) -> None:
        if not models:
            raise ConfigError("no model to serve; give at least one")
        self.models, self.options = dict(models), options
        self.telemetry = Telemetry()
        self._batchers: dict[str, Batcher] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        """Event loop of the queues."""

    def batcher(self, name: str | None) -> tuple[str, Batcher]:
        """Name and queue of a model, by default the first; RefusalError (404) for an unknown name."""
        name = next(iter(self.models)) if name is None else name
        if name not in self.models:
            names = ", ".join(self.models)
            raise RefusalError(404, "unknown model", field="model", remedy=f"choose from: {names}")
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # not in a lifespan handler: mounted apps do not run theirs
            self._loop = loop
            self._batchers = {
                model: Batcher(model, reader, self.options, self.telemetry)
                for model, reader in self.models.items()
            }
        return name, self._batchers[name]


def create_app(models: Mapping[str, Reader], options: ServiceOptions | None = None) -> FastAPI:
    """Create the ASGI app that serves ``models`` by name, the first by default; ConfigError if empty."""
    options = options or ServiceOptions()
    service = Service(models, options)
    app = FastAPI(
        title="qa_arch",
        version=version("qa-arch"),
        summary="Extractive question answering: a span of the text, or no answer.",
        docs_url=None,  # FastAPI's pages load their scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,  # a redirect would leave a proxy's https and prefix
    )
    app.router.route_class = _route_class(options)
    app.add_middleware(Guard, options=options, observe=service.telemetry.seconds)
    # The middleware that is added last is the first to see a request.
    hosts = [f"[{host}]" if ":" in host else host for host in options.allowed_hosts] or ["*"]
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)
    app.add_exception_handler(HTTPException, _http_error)
    descriptions = ModelsMessage(models=[_describe(*item) for item in service.models.items()])

    @app.post("/v1/answer", responses=ERRORS, summary="Answer one or several questions")
    async def answer(body: Annotated[AnswerBody, Body()]) -> AnswersMessage:
        """One question about a `context` or several `documents`, or a list of such `queries`."""
        name, batcher = service.batcher(body.model)
        bodies: Sequence[Query] = body.queries if isinstance(body, BatchBody) else [body]
        answers = await batcher.answer(bodies)
        for item in answers:
            service.telemetry.answers.labels(name, "yes" if item else "no").inc()
        return AnswersMessage(model=name, answers=answers)

    @app.get("/v1/models", responses=ERRORS, summary="List the models")
    async def models_() -> ModelsMessage:
        return descriptions

    @app.head("/healthz", include_in_schema=False)
    @app.get("/healthz", summary="Health check")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.head("/metrics", include_in_schema=False)
    @app.get("/metrics", response_class=Response, summary="Prometheus metrics")
    async def metrics() -> Response:
        return Response(generate_latest(service.telemetry.registry), media_type=CONTENT_TYPE)

    async def page(request: Request) -> Response:
        return FileResponse(FILES / ("index.html" if request.url.path.endswith("/") else "docs.html"))

    async def asset(request: Request) -> Response:
        if (name := request.path_params["name"]) not in {path.name for path in FILES.iterdir()}:
            raise HTTPException(404)
        return FileResponse(FILES / name)

    if module_of("attention"):
        _add_attention(app, service)
    app.add_route("/", page, ["GET"], include_in_schema=False)
    app.add_route("/docs", page, ["GET"], include_in_schema=False)
    # No mount of a folder, which finds nothing where a server before this one took a prefix off the path.
    app.add_route("/page/{name}", asset, ["GET"], include_in_schema=False)
    return app


def _add_attention(app: FastAPI, service: Service) -> None:
    @app.post("/v1/attention", responses=ERRORS, summary="Attention of a match-LSTM")
    async def attention(body: AttentionBody) -> AttentionMessage:
        """For models with `attention` in `/v1/models` only; covers one window of the text."""
        name, batcher = service.batcher(body.model)
        if not batcher.reader.has_attention:
            with_attention = [name for name, reader in service.models.items() if reader.has_attention]
            remedy = f"choose from: {', '.join(with_attention)}" if with_attention else "serve such a model"
            raise RefusalError(422, "the model has no match-LSTM", field="model", remedy=remedy)
        item = await batcher.attention(body.question, body.context)
        return AttentionMessage(model=name, **item)


def _describe(name: str, reader: Reader) -> ModelMessage:
    record, threshold = reader.record, reader.null_threshold
    parameters = sum(parameter.numel() for parameter in reader.model.parameters())
    generated = recorded_format(reader.config.data.train) is SYNTHETIC
    return ModelMessage(
        name=name,
        architecture=record.model if record else type(reader.model).__name__,
        parameters=parameters or (record.parameters.total if record else None) or 0,  # a graph has none
        null_threshold=threshold if abs(threshold) != float("inf") else None,
        max_answer_tokens=reader.config.decode.max_answer_tokens,
        precision=reader.precision,
        engine=reader.engine,
        device=str(device_of(reader.model)),
        attention=reader.has_attention,
        example=ExampleMessage(**EXAMPLES["synthetic" if generated else ""]),
    )


def _route_class(options: ServiceOptions) -> type[APIRoute]:
    """Routes that parse and validate bodies in one thread: a large body must not occupy the event loop, and
    several threads would compete with it for the interpreter."""
    thread = ThreadPoolExecutor(1)

    class Route(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handler, hints = super().get_route_handler(), get_type_hints(self.endpoint, include_extras=True)
            adapter: TypeAdapter[Any] = TypeAdapter(hints.get("body", Any))

            class ParsedRequest(Request):
                async def json(self) -> Any:
                    loop, content = asyncio.get_running_loop(), await self.body()
                    return await loop.run_in_executor(thread, _read_body, content, adapter, options)

            async def handle(request: Request) -> Response:
                return await handler(ParsedRequest(request.scope, request.receive))

            return handle

    return Route


def _read_body(
    content: bytes, adapter: TypeAdapter[Any], options: ServiceOptions
) -> SingleBody | BatchBody | AttentionBody:
    """Parse and validate a body. Raises RefusalError for the first fault; limits come before validation."""

    def read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        _require_at_most(MOST_FIELDS, len(pairs), "fields in an object")
        try:
            return unique_keys(pairs)
        except ValueError as error:
            raise RefusalError(400, f"the field {error}", remedy="give it once") from None

    try:
        value = json.loads(content, object_pairs_hook=read_object)
    except json.JSONDecodeError as error:
        message = f"invalid JSON: {error.msg} (character {error.pos})"
        raise RefusalError(400, message, remedy=REMEDIES[400]) from error
    except (ValueError, RecursionError) as error:  # invalid UTF-8, a long integer, or nested too deep
        raise RefusalError(400, "the body cannot be parsed", remedy=REMEDIES[400]) from error
    queries = value.get("queries") if isinstance(value, dict) else None
    if queries == []:
        raise RefusalError(422, "there is no query", field="queries", remedy="send at least one")
    queries = queries if isinstance(queries, list) else []
    _require_at_most(options.max_queue, len(queries), "queries", field="queries")
    for query in filter(lambda item: isinstance(item, dict), [value, *queries]):
        if isinstance(query.get("documents"), list):
            _require_at_most(options.max_documents, len(query["documents"]), "documents", field="documents")
    try:
        body = adapter.validate_python(value)
    except ValidationError as error:
        raise _refusal(error) from None
    read = body.queries if isinstance(body, BatchBody) else [body]
    characters = sum(len(text) for query in read for text in (query.question, *query.documents))
    _require_at_most(options.max_characters, characters, "characters of text", status=413)
    return body


def _require_at_most(
    limit: int, count: int, what: str, *, status: int = 422, field: str | None = None
) -> None:
    if count > limit:
        raise RefusalError(status, f"{count:,} {what}", field=field, remedy=f"send at most {limit:,}")


async def _http_error(_: Request, error: Any) -> JSONResponse:
    """Our errors, and those of the framework, such as an unknown path, in our format."""
    if isinstance(error, RefusalError):
        return error.response()
    status = error.status_code
    remedy = REMEDIES.get(status, HTTPStatus(status).description or "see /docs")
    return RefusalError(status, str(error.detail), remedy=remedy, headers=error.headers).response()


def _field_names(body: type) -> set[str]:
    """Names of the fields of a body; ``context`` is that of a query, which keeps it as its documents."""
    own = {item.name for item in dataclasses.fields(body)}
    return own | ({"context"} if "documents" in own else set())


def _refusal(error: ValidationError) -> RefusalError:
    """The refusal of a body with the first of pydantic's faults."""
    field, message, kind = Fault.of(error, within=TAGS)
    remedy = "/docs describes the field"
    if kind == UNKNOWN_FIELD:
        (tag, *inner), name = error.errors()[0]["loc"], field.rpartition(".")[2]
        single, batch = _field_names(SingleBody), _field_names(BatchBody)
        allowed = {"single": single, "batch": batch}.get(str(tag), _field_names(AttentionBody))
        if len(inner) > 1:  # in a query of a batch
            allowed = _field_names(QueryBody)
        known = "; it is not allowed here" if name in single | batch else suggest(name, allowed)
        remedy = f"leave it out{known}"
    if kind == "dataclass_type":
        message = "must be an object with the fields of a query"
    status = 400 if kind == INVALID_TEXT else 422
    return RefusalError(status, message, field=field or None, remedy=remedy)
