"""Access control and limits in front of the service, and the server that runs it.

``Guard`` is plain ASGI middleware because it must see incomplete bodies and disconnecting clients.
"""

from __future__ import annotations

import asyncio
import errno
import hmac
import logging
import signal
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import uvicorn
from fastapi import FastAPI
from fastapi.routing import APIRoute
from prometheus_client import Histogram
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qa_arch.errors import ConfigError, UnavailableError
from qa_arch.serving import ServiceOptions

LOG = logging.getLogger(__name__)
CLOSE = {"Connection": "close"}
"""For refusals before the end of the body, whose rest must not be parsed as the next request."""
OPEN, PAGE_FILES = ("/", "/docs", "/openapi.json", "/healthz"), "/page/"
"""Paths that need no token: page, schema and health expose no data."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class RefusalError(HTTPException):
    """A refused request: HTTP status, message, field and remedy."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        remedy: str,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, headers)
        self.error = {"message": message, "field": field, "remedy": remedy}

    def response(self) -> JSONResponse:
        return JSONResponse({"error": self.error}, self.status_code, self.headers)


def busy(message: str, status: int = 429) -> RefusalError:
    """A refusal after which the client may retry."""
    headers = {"Retry-After": "1", **CLOSE}
    return RefusalError(status, message, remedy="try again in a moment", headers=headers)


class Guard:
    """Enforce ``options``, pass on requests once their body is complete, and set ``HEADERS``.

    ``observe`` is given the seconds of every response, by path and status.
    """

    def __init__(self, app: ASGIApp, options: ServiceOptions, observe: Histogram) -> None:
        self.app, self.options, self.observe = app, options, observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, began = False, time.perf_counter()

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                seconds = time.perf_counter() - began
                self.observe.labels(_route(scope), message["status"]).observe(seconds)
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        try:
            await self._answer(scope, receive, send_with_headers)
        except Exception as error:
            if started:  # the server closes the connection
                if not isinstance(error, RefusalError):
                    raise
                return  # it timed out, as the client does not read the response
            if not isinstance(error, RefusalError):
                id_ = uuid.uuid4().hex[:12]
                LOG.error("request %s failed", id_, exc_info=error)
                error = RefusalError(500, "the request failed", remedy=f"report it with the id {id_}")
                error.error["id"] = id_
            await error.response()(scope, receive, send_with_headers)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, path = Headers(scope=scope), _path_in_app(scope)
        if path not in OPEN and not path.startswith(PAGE_FILES):
            self._check_token(headers)
        if scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise RefusalError(  # JSON only: browsers send it cross-site only after a preflight request
                415,
                "the content type is not JSON",
                remedy="send the header Content-Type: application/json",
                headers=CLOSE,
            )
        seconds = self.options.request_seconds
        try:
            async with asyncio.timeout(seconds):
                body = await self._body(headers, Request(scope, receive))
                await self._run(body, scope, receive, send)
        except TimeoutError:
            raise busy(f"timed out after {seconds:g} s", 503) from None
        except ClientDisconnect:
            pass

    def _check_token(self, headers: Headers) -> None:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        expected = self.options.token
        if expected is None or (
            scheme.lower() == "bearer" and hmac.compare_digest(token.strip().encode(), expected.encode())
        ):
            return
        raise RefusalError(
            401,
            "the token is wrong" if token else "a token is required",
            remedy="send the header Authorization: Bearer TOKEN",
            headers={"WWW-Authenticate": "Bearer", **CLOSE},
        )

    async def _body(self, headers: Headers, request: Request) -> bytes:
        """Read the whole body. Raises RefusalError if it is too large, ClientDisconnect."""
        characters = self.options.max_characters
        limit = 6 * characters + 65_536  # a character takes up to 6 bytes, escaped as \u00e9 (an emoji 12)
        length = headers.get("content-length", "0")
        # A length of thousands of digits would raise where it is read as a number.
        body, fits = bytearray(), len(length) < 20 and length.isdecimal() and int(length) <= limit
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
                remedy=f"send at most {characters:,} characters of text per request",
                headers=CLOSE,
            )
        return bytes(body) or b" "  # FastAPI reads an empty body as null, and a blank one as invalid JSON

    async def _run(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app on the buffered body; cancel it if the client disconnects."""
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return messages.pop() if messages else await _disconnected(receive)

        work = asyncio.ensure_future(self.app(scope, replay, send))
        disconnect = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({work, disconnect}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            for task in (work, disconnect):
                task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await task  # takes its error, which asyncio would log


def _path_in_app(scope: Scope) -> str:
    """Path as the router sees it: in ASGI, ``path`` includes the mount point."""
    path, root = scope["path"], scope.get("root_path", "")
    return path.removeprefix(root) if path.startswith(f"{root}/") else path


def _route(scope: Scope) -> str:
    """Path of the request in the API, also if the guard refused it before the router saw it."""
    if routed := getattr(scope.get("route"), "path", ""):
        return str(routed)
    path = _path_in_app(scope)
    known = any(isinstance(route, APIRoute) and route.path == path for route in scope["app"].routes)
    return path if known else "other"  # else every path asked for would be a label of its own


async def _disconnected(receive: Receive) -> Message:
    """Wait until the client disconnects."""
    while (message := await receive())["type"] != "http.disconnect":
        pass
    return message


def bind(host: str, port: int) -> socket.socket:
    """Bind a socket without listening yet; port 0 picks a free one.

    Raises ConfigError for an invalid port, UnavailableError if the address cannot be used.
    """
    if not 0 <= port <= 65535:  # getaddrinfo would wrap around
        raise ConfigError(f"--port: {port} is out of range, it must be 0 to 65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except (OSError, UnicodeError) as error:  # UnicodeError: a host name with an empty or too long label
        reason = getattr(error, "strerror", None) or error
        raise UnavailableError(
            f"{host}, port {port}: cannot be bound ({reason}); choose another --port or --host"
        ) from error
    return bound


def address(bound: socket.socket) -> str:
    """URL of a socket: ``http://127.0.0.1:8000``."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _log_full_once() -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    """Handler of the loop's errors that says once, in one line, that no more connections can be opened.

    The loop would log a traceback at each of its thousands of attempts.
    """
    logged = False

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal logged
        error = context.get("exception")
        if logged and isinstance(error, ValueError) and "_start_serving" in context["message"]:
            return  # the service stopped before the loop tried to accept connections again
        if not (isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)):
            loop.default_exception_handler(context)
        elif not logged:
            logged = True
            LOG.error("no more connections can be opened (%s); raise the limit: ulimit -n", error.strerror)

    return handle


def serve(
    app: FastAPI, bound: socket.socket, options: ServiceOptions, *, ready: Callable[[], None] = lambda: None
) -> None:
    """Run ``app`` until SIGTERM, SIGINT or SIGHUP; ``ready`` is called once it accepts requests.

    On the signal it stops accepting connections, answers pending requests within ``request_seconds`` and
    returns. A second signal drops them.
    """

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            asyncio.get_running_loop().set_exception_handler(_log_full_once())
            await super().startup(sockets)
            ready()

        def handle_exit(self, sig: int, frame: Any) -> None:  # uvicorn would re-raise the signal at the end
            self.should_exit, self.force_exit = True, self.should_exit

    # It says so where a client does not read its answer, or is gone.
    unanswered = "ASGI callable returned without"
    logging.getLogger("uvicorn.error").addFilter(lambda record: not str(record.msg).startswith(unanswered))
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))
    Server(
        uvicorn.Config(
            app,
            http="h11",
            ws="none",
            loop="asyncio",
            lifespan="on",
            log_config=None,
            log_level="error",  # its warnings are about requests, and advise packages that are not used
            access_log=False,  # privacy: no paths and client addresses
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=int(options.request_seconds) + 1,
        )
    ).run([bound])
