"""In front of the service: who may ask, how much, for how long; and the server that runs it.

``Guard`` is a plain ASGI middleware, as it has to see a body before it is complete and a client that leaves.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

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
OPEN, PAGE_FILES = ("/", "/docs", "/openapi.json", "/healthz"), "/page/"
"""Paths that need no token: page, schema and health hold no data. All others do, if there is one."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
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
    request_seconds: float = 60.0
    """From the headers of a request to its answer."""
    allowed_hosts: tuple[str, ...] = LOOPBACK
    """Names that the Host header may have, without port; empty: any. Against pages that point a name of
    theirs to this machine (DNS rebinding)."""
    token: str | None = None
    """The token that clients must send as ``Authorization: Bearer TOKEN``, if any."""

    def __post_init__(self) -> None:
        for name in ("max_queue", "max_batch", "max_documents", "max_characters"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: {getattr(self, name)} is out of range, it must be >= 1")
        if not self.request_seconds > 0:
            raise ConfigError(f"request_seconds: {self.request_seconds} is out of range, it must be > 0")
        if self.token is not None and not (self.token and self.token.isascii() and self.token.isprintable()):
            raise ConfigError("token: is empty or has other than printable ASCII characters; choose another")


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
    ) -> None:
        super().__init__(message)
        self.error = {"message": message, "field": field, "remedy": remedy}
        self.status, self.headers = status, headers

    def response(self) -> JSONResponse:
        return JSONResponse({"error": self.error}, self.status, self.headers)


def busy(message: str, status: int = 429) -> RefusalError:
    """A refusal that the client may repeat."""
    headers = {"Retry-After": "1", **CLOSE}
    return RefusalError(status, message, remedy="try again in a moment", headers=headers)


class Guard:
    """Refuses what ``options`` do not allow, hands on requests whose body is complete, sets ``HEADERS``.

    ``observe`` gets path, status and seconds of every request.
    """

    def __init__(
        self, app: ASGIApp, options: ServiceOptions, observe: Callable[[str, int, float], None]
    ) -> None:
        self.app, self.options, self.observe = app, options, observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, began = GONE, time.perf_counter()

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        try:
            await self._answer(scope, receive, send_with_headers)
        except Exception as error:
            if status != GONE:
                raise  # the response has begun: the server can only close the connection
            if not isinstance(error, RefusalError):
                id_ = uuid.uuid4().hex[:12]
                LOG.error("request %s failed", id_, exc_info=error)
                error = RefusalError(500, "the request failed", remedy=f"report it with the id {id_}")
                error.error["id"] = id_
            await error.response()(scope, receive, send_with_headers)
        finally:
            route = getattr(scope.get("route"), "path", "") or "other"
            self.observe(route, status, time.perf_counter() - began)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, path = Headers(scope=scope), _path_in_app(scope)
        if path not in OPEN and not path.startswith(PAGE_FILES):
            self._check_token(headers)
        if scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise RefusalError(  # JSON alone, as browsers send it to another site only after asking
                415,
                "the body is not declared as JSON",
                remedy="send the header Content-Type: application/json",
                headers=CLOSE,
            )
        seconds = self.options.request_seconds
        try:
            async with asyncio.timeout(seconds):
                body = await self._body(headers, Request(scope, receive))
                await self._run(body, scope, receive, send)
        except TimeoutError:
            raise busy(f"there was no answer after {seconds:g} s", 503) from None
        except ClientDisconnect:
            pass

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
        """The whole body. Raises RefusalError where it is too large, ClientDisconnect."""
        most = self.options.max_characters
        limit = 12 * most + 65_536  # room for all characters, even where each is written as \ud83d\ude00
        length = headers.get("content-length", "0")
        body, fits = bytearray(), length.isdecimal() and int(length) <= limit
        if fits:
            async for part in request.stream():
                body += part
                if len(body) > limit:
                    fits = False
                    break
        if not fits:
            raise RefusalError(
                413,
                f"the body has more than {limit:,} bytes",
                remedy=f"send at most {most:,} characters of text in a request",
                headers=CLOSE,
            )
        return bytes(body) or b" "  # FastAPI takes an empty body for null, and blanks for no JSON

    async def _run(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        """The rest of the service; cancelled where the client goes away."""
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return messages.pop() if messages else await _gone(receive)

        work = asyncio.ensure_future(self.app(scope, replay, send))
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
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
    """Run ``app`` until SIGTERM or SIGINT; ``ready`` is called once when it takes requests.

    At the signal no new connection is taken, requests under way are answered within ``request_seconds``, and
    the process goes on behind this call. A second signal drops them.
    """

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            ready()

        def handle_exit(self, sig: int, frame: Any) -> None:  # not raised again at the end, as uvicorn does
            self.should_exit, self.force_exit = True, self.should_exit

    Server(
        uvicorn.Config(
            app,
            http="h11",
            ws="none",
            loop="asyncio",
            lifespan="on",
            log_config=None,
            access_log=False,  # paths and addresses of clients are nobody's business
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=int(options.request_seconds) + 1,
        )
    ).run([bound])
