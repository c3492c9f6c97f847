"""In front of the service: who may ask, how much, for how long; the same headers on every response.

A plain ASGI middleware, as it has to see a body before it is complete and a client that goes away.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from email.message import Message as Header

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qa_arch.serving.options import ServiceOptions
from qa_arch.serving.refusals import RefusalError, busy
from qa_arch.serving.telemetry import Telemetry

LOG = logging.getLogger(__name__)
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
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


@dataclass
class Traffic:
    """What goes on in a service; the server that runs it sets ``draining``."""

    in_flight: int = 0
    """Requests that have begun and have not ended."""
    draining: bool = False
    """Whether the service is to end: new requests get 503."""


class Guard:
    """Refuses what ``options`` do not allow and hands on requests whose body is complete."""

    def __init__(self, app: ASGIApp, options: ServiceOptions, telemetry: Telemetry, traffic: Traffic) -> None:
        self.app, self.options, self.telemetry, self.traffic = app, options, telemetry, traffic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, began = GONE, time.perf_counter()

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        self.traffic.in_flight += 1
        try:
            await self._answer(scope, receive, send_with_headers)
        except Exception as error:
            if status != GONE:
                raise  # the response has begun: the server can only close the connection
            refusal = error if isinstance(error, RefusalError) else _failed(error)
            await refusal.response()(scope, receive, send_with_headers)
        finally:
            self.traffic.in_flight -= 1
            path = getattr(scope.get("route"), "path", "") or "other"
            self.telemetry.requests.labels(path, status).inc()
            self.telemetry.seconds.labels(path).observe(time.perf_counter() - began)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        self._check_host(headers)
        if self.traffic.draining:
            refusal = busy("the service is about to end", 503)
            refusal.headers |= CLOSE
            raise refusal
        path = _path_in_app(scope)
        if path not in OPEN and not path.startswith(PAGE_FILES):
            self._check_token(headers)
        if scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        _check_type(headers)
        body = await self._body(headers, receive)
        if body is not None:
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

    async def _body(self, headers: Headers, receive: Receive) -> bytes | None:
        """The whole body; None where the client goes away before its end."""
        limit = self.options.max_bytes
        too_large = RefusalError(
            413,
            f"the body has more than {limit:,} bytes",
            remedy=f"send at most {self.options.max_characters:,} characters of text in a request",
            headers=CLOSE,
        )
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > limit:
            raise too_large
        body, more = bytearray(), True
        try:
            async with asyncio.timeout(self.options.body_seconds):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    body += message.get("body", b"")
                    if len(body) > limit:
                        raise too_large
                    more = message.get("more_body", False)
        except TimeoutError:
            raise RefusalError(
                408,
                f"the body was not complete after {self.options.body_seconds:g} s",
                remedy="send it faster, or less of it",
                headers=CLOSE,
            ) from None
        return bytes(body)

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
        500, "the request could not be answered", remedy=f"report it with the id {id_}", id_=id_
    )
