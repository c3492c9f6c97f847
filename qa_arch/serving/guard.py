"""In front of the service: who may ask, how much, for how long; and the server that runs it.

``Guard`` is a plain ASGI middleware, as it has to see a body before it is complete and a client that leaves.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import signal
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from email.message import Message as Header

import uvicorn
from fastapi import FastAPI
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qa_arch.errors import ConfigError, UnavailableError

LOG = logging.getLogger(__name__)
LOOPBACK = ("127.0.0.1", "::1", "localhost")
GONE = 499
"""Status in ``/metrics`` of a request whose client went away."""
CLOSE = {"Connection": "close"}
"""With a refusal before the end of the body: what is left of it must not be read as the next request."""
PAGE, PAGE_FILES = ("/", "/docs"), "/page/"
OPEN = (*PAGE, "/openapi.json", "/healthz")
"""Paths that need no token: page, schema and health hold no data. All others do, if there is one."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """Limits of a service. Raises ConfigError, which names the option, where a value is out of range."""

    max_queue: int = 128
    """Queries of a model that wait or are being answered; further ones get 429. No request may have more."""
    max_batch: int = 16
    """Queries that a model answers together."""
    max_documents: int = 100
    """Texts of a query."""
    max_characters: int = 200_000
    """Characters of a request, over all its questions and texts; also those of a batch of several queries."""
    body_seconds: float = 10.0
    """For the headers of a request, and again for its body."""
    request_seconds: float = 60.0
    """From the end of the body to the answer."""
    drain_seconds: float = 60.0
    """For the requests under way when the service is to end."""
    allowed_hosts: tuple[str, ...] = LOOPBACK
    """Names that the Host header may have, without port; empty: any. Against pages that point a name of
    theirs to this machine (DNS rebinding)."""
    token: str | None = None
    """What clients must send as ``Authorization: Bearer TOKEN``, if anything."""

    def __post_init__(self) -> None:
        for name in ("max_queue", "max_batch", "max_documents", "max_characters"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: {getattr(self, name)} is out of range, it must be >= 1")
        for name in ("body_seconds", "request_seconds", "drain_seconds"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}: {getattr(self, name)} is out of range, it must be > 0")
        if self.token is not None and not (self.token and self.token.isascii() and self.token.isprintable()):
            raise ConfigError(
                "token: it is empty or has other than printable ASCII characters; choose another"
            )


class RefusalError(Exception):
    """A request that is not answered: HTTP status, what is wrong, in which field, and what to do."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        remedy: str,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
        **more: str,
    ) -> None:
        super().__init__(message)
        self.error = {"message": message, "field": field, "remedy": remedy, **more}
        self.status, self.headers = status, headers

    def response(self) -> JSONResponse:
        return JSONResponse({"error": self.error}, self.status, self.headers)


def busy(message: str, status: int = 429, **headers: str) -> RefusalError:
    """A refusal that the client may repeat."""
    headers = {"Retry-After": "1", **headers}
    return RefusalError(status, message, remedy="try again in a moment", headers=headers)


@dataclass
class Traffic:
    """What goes on in a service; the server that runs it sets ``draining``."""

    in_flight: int = 0
    """Requests that have begun and have not ended."""
    draining: bool = False
    """Whether the service is to end: new requests get 503."""


class Guard:
    """Refuses what ``options`` do not allow, hands on requests whose body is complete, sets ``HEADERS``.

    ``observe`` gets path, status and seconds of every request.
    """

    def __init__(
        self,
        app: ASGIApp,
        options: ServiceOptions,
        traffic: Traffic,
        observe: Callable[[str, int, float], None],
    ) -> None:
        self.app, self.options, self.traffic, self.observe = app, options, traffic, observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, began, path = GONE, time.perf_counter(), _path_in_app(scope)

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                is_page = path in PAGE or path.startswith(PAGE_FILES)
                headers["Cache-Control"] = "no-cache" if is_page else "no-store"
            await send(message)

        self.traffic.in_flight += 1
        try:
            await self._answer(path, scope, receive, send_with_headers)
        except Exception as error:
            if status != GONE:
                raise  # the response has begun: the server can only close the connection
            refusal = error if isinstance(error, RefusalError) else _failed(error)
            await refusal.response()(scope, receive, send_with_headers)
        finally:
            self.traffic.in_flight -= 1
            route = getattr(scope.get("route"), "path", "") or "other"
            self.observe(route, status, time.perf_counter() - began)

    async def _answer(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        self._check_host(headers)
        if self.traffic.draining:
            raise busy("the service is about to end", 503, **CLOSE)
        if path not in OPEN and not path.startswith(PAGE_FILES):
            self._check_token(headers)
        if "transfer-encoding" in headers and "content-length" in headers:  # RFC 9112, 6.1: smuggling
            raise RefusalError(
                400,
                "the body has both Content-Length and Transfer-Encoding",
                remedy="send one of the two headers",
                headers=CLOSE,
            )
        if scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        _check_type(headers)
        with suppress(ClientDisconnect):
            body = await self._body(headers, Request(scope, receive))
            await self._run(body, scope, receive, send)

    def _check_host(self, headers: Headers) -> None:
        allowed, host = self.options.allowed_hosts, headers.get("host", "")
        name = host[1 : host.find("]")] if host.startswith("[") else host.partition(":")[0]
        if allowed and name.lower() not in allowed:
            raise RefusalError(
                421,
                "this service is not known by the name in the Host header",
                remedy="ask for localhost, or start it with --allow-host NAME",
                headers=CLOSE,
            )

    def _check_token(self, headers: Headers) -> None:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        wanted = self.options.token
        if wanted is None or (
            scheme.lower() == "bearer" and hmac.compare_digest(token.strip().encode(), wanted.encode())
        ):
            return
        raise RefusalError(
            401,
            "the token is wrong" if token else "a token is needed",
            remedy="send the header Authorization: Bearer TOKEN",
            headers={"WWW-Authenticate": "Bearer", **CLOSE},
        )

    async def _body(self, headers: Headers, request: Request) -> bytes:
        """The whole body. Raises RefusalError where it is too large or too slow, ClientDisconnect."""
        options = self.options
        # Room for all characters, even where each is written as \ud83d\ude00.
        limit = 12 * options.max_characters + 65_536
        too_large = RefusalError(
            413,
            f"the body has more than {limit:,} bytes",
            remedy=f"send at most {options.max_characters:,} characters of text in a request",
            headers=CLOSE,
        )
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > limit:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(options.body_seconds):
                async for part in request.stream():
                    body += part
                    if len(body) > limit:
                        raise too_large
        except TimeoutError:
            raise RefusalError(
                408,
                f"the body was not complete after {options.body_seconds:g} s",
                remedy="send it faster, or less of it",
                headers=CLOSE,
            ) from None
        return bytes(body) or b" "  # FastAPI takes an empty body for null, and blanks for no JSON

    async def _run(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        """The rest of the service; cancelled where the client goes away or the time is up."""
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return messages.pop() if messages else await _gone(receive)

        work = asyncio.ensure_future(self.app(scope, replay, send))
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait(
                {work, gone}, timeout=self.options.request_seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if work.done():
                work.result()
            elif not gone.done():
                raise busy(f"there was no answer after {self.options.request_seconds:g} s", 503)
        finally:
            for task in (work, gone):
                task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await task


def _path_in_app(scope: Scope) -> str:
    """The path that the router sees: in ASGI ``path`` begins with the place where the app is mounted."""
    path, root = scope["path"], scope.get("root_path", "")
    return path.removeprefix(root) if path.startswith(f"{root}/") else path


async def _gone(receive: Receive) -> Message:
    """Returns when the client goes away."""
    while (message := await receive())["type"] != "http.disconnect":
        pass
    return message


def _check_type(headers: Headers) -> None:
    header = Header()
    header["content-type"] = headers.get("content-type", "")
    charset = str(header.get_param("charset", "utf-8")).lower()
    if header.get_content_type() != "application/json" or charset not in ("utf-8", "utf8"):
        raise RefusalError(
            415,
            "the body is not declared as JSON in UTF-8",
            remedy="send the header Content-Type: application/json",
            headers=CLOSE,
        )


def _failed(error: Exception) -> RefusalError:
    id_ = uuid.uuid4().hex[:12]
    LOG.error("request %s failed", id_, exc_info=error)
    return RefusalError(
        500, "the request could not be answered", remedy=f"report it with the id {id_}", id=id_
    )


def bind(host: str, port: int) -> socket.socket:
    """A socket of this address that does not listen yet; port 0 is a free one.

    Raises ConfigError for a number that is no port, UnavailableError where the address cannot be used.
    """
    if not 0 <= port <= 65535:  # getaddrinfo would take the remainder
        raise ConfigError(f"--port: {port} is out of range, it must be 0 to 65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        raise UnavailableError(
            f"{host}, port {port}: cannot be used ({error.strerror}); choose another --port or --host"
        ) from error
    return bound


def address(bound: socket.socket) -> str:
    """``http://127.0.0.1:8000``."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(
    app: FastAPI, bound: socket.socket, options: ServiceOptions, *, ready: Callable[[], None] = lambda: None
) -> None:
    """Run ``app`` until a signal; ``ready`` is called once when it takes requests.

    At SIGTERM or SIGINT it drains: requests under way are answered, new ones get 503, and it ends when the
    last is answered or ``drain_seconds`` are over. A second signal drops them.
    """
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        access_log=False,  # paths and addresses of clients are nobody's business
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=1,  # everything is answered by then, or too late
    )
    asyncio.run(_serve(uvicorn.Server(config), bound, app.state.traffic, options, ready))


async def _serve(
    server: uvicorn.Server,
    bound: socket.socket,
    traffic: Traffic,
    options: ServiceOptions,
    ready: Callable[[], None],
) -> None:
    serving = asyncio.create_task(server.serve([bound]))
    while not (server.started or serving.done()):
        await asyncio.sleep(0.01)
    deadline = float("inf")

    def end(*_: object) -> None:
        nonlocal deadline
        server.should_exit = server.force_exit = traffic.draining
        traffic.draining, deadline = True, time.monotonic() + options.drain_seconds

    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn's own handlers close the door at once
        signal.signal(number, end)
    ready()
    waiting: dict[object, float] = {}
    while not serving.done():
        await asyncio.sleep(min(0.1, options.body_seconds / 4))
        if traffic.draining and (not traffic.in_flight or time.monotonic() > deadline):
            server.should_exit = True
        waiting = _close_slow(server, waiting, options.body_seconds)
    await serving


def _close_slow(server: uvicorn.Server, waiting: dict[object, float], seconds: float) -> dict[object, float]:
    """Close connections whose next request has no complete headers in time; uvicorn waits for ever.

    ``waiting`` and what is returned: since when those are idle that have this last request.
    """
    now = time.monotonic()
    still: dict[object, float] = {}
    for connection in list(server.server_state.connections):
        last = getattr(connection, "cycle", None)
        if last is None or last.response_complete:
            since = still[connection, last] = waiting.get((connection, last), now)
            if now - since > seconds and connection.transport is not None:
                connection.transport.close()
    return still
