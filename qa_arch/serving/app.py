"""``create_app(models)``: answers over HTTP what a ``Reader`` answers in Python, and shows a page.

A request passes ``guard`` (host, token, size, time), the schema (``messages``), the limits here, and
``batching``, which asks the model. Errors are ``refusals``.
"""

from __future__ import annotations

import asyncio
import mimetypes
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

from fastapi import Body, FastAPI, Request, Response
from starlette.responses import FileResponse
from starlette.staticfiles import StaticFiles

from qa_arch.errors import ConfigError, DataError
from qa_arch.serving.batching import Batcher
from qa_arch.serving.guard import Guard, Traffic
from qa_arch.serving.messages import (
    AnswerBody,
    AnswerMessage,
    AnswersMessage,
    AttentionBody,
    AttentionMessage,
    ErrorMessage,
    HealthMessage,
    ModelMessage,
    ModelsMessage,
    QueryBody,
)
from qa_arch.serving.options import ServiceOptions
from qa_arch.serving.query import Query
from qa_arch.serving.reader import Reader
from qa_arch.serving.refusals import RefusalError, handle_errors
from qa_arch.serving.telemetry import CONTENT_TYPE, Telemetry
from qa_arch.tasks.reading import device_of

PAGE = Path(__file__).with_name("page")
# Not what the system's registry says, which browsers may refuse to run.
mimetypes.add_type("text/javascript", ".js")
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
    handle_errors(app)
    app.add_middleware(Guard, options=service.options, telemetry=service.telemetry, traffic=service.traffic)
    _add_questions(app, service)
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
            with batcher.admit(1):
                item = await asyncio.to_thread(batcher.reader.attention, body.question, body.context)
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
        return Response(service.telemetry.text(), media_type=CONTENT_TYPE)


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


def _add_page(app: FastAPI) -> None:
    revalidated = {"Cache-Control": "no-cache"}

    async def file(request: Request) -> Response:
        name = "index.html" if request.url.path.endswith("/") else "docs.html"
        return FileResponse(PAGE / name, headers=revalidated)

    app.add_route("/", file, ["GET"], include_in_schema=False)
    app.add_route("/docs", file, ["GET"], include_in_schema=False)
    app.mount("/page", _Assets(directory=PAGE), name="page")


class _Assets(StaticFiles):
    """The page's own files: browsers ask again whether they have changed."""

    def file_response(self, *args, **kwargs) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["Cache-Control"] = "no-cache"
        return response
