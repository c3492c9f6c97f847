"""``serve(app)``: uvicorn with a limit on slow headers, errors in our form, and an end that loses no answer.

At SIGTERM or SIGINT the service drains: requests under way are answered, new ones get 503, and it ends when
the last is answered or ``drain_seconds`` are over. A second signal drops them.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable
from functools import partial
from types import FrameType

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from qa_arch.errors import ConfigError, UnavailableError
from qa_arch.serving.guard import Traffic
from qa_arch.serving.options import ServiceOptions
from qa_arch.serving.refusals import REMEDIES


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
    """Run ``app`` until a signal; ``ready`` is called once when it takes requests."""
    config = uvicorn.Config(
        app,
        http=partial(_Connection, options.body_seconds),  # type: ignore[arg-type]
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        access_log=False,  # paths and addresses of clients are nobody's business
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=1,  # everything is answered by then, or too late
    )
    _Server(config, app.state.traffic, options.drain_seconds, ready).run([bound])


class _Server(uvicorn.Server):
    def __init__(
        self, config: uvicorn.Config, traffic: Traffic, seconds: float, ready: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self.traffic, self.seconds, self.ready = traffic, seconds, ready
        self.deadline = float("inf")

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal begins to drain. uvicorn would close the door first and raise the signal again."""
        if self.traffic.draining:
            self.should_exit = self.force_exit = True
        self.traffic.draining = True
        self.deadline = time.monotonic() + self.seconds

    async def on_tick(self, counter: int) -> bool:
        if self.traffic.draining and (not self.traffic.in_flight or time.monotonic() > self.deadline):
            self.should_exit = True
        return await super().on_tick(counter)


class _Connection(H11Protocol):
    """Closes a connection whose next request has no complete headers in time; uvicorn waits for ever."""

    def __init__(self, seconds: float, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.header_seconds = seconds
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_headers()

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._stop_waiting()
        elif self._late is None and (self.cycle is None or self.cycle.response_complete):
            self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _await_headers(self) -> None:
        self._late = self.loop.call_later(self.header_seconds, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP is refused in the form of all errors."""
        error = {"message": msg, "field": None, "remedy": REMEDIES[400]}
        headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
        response = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
        for event in (response, h11.Data(json.dumps({"error": error}).encode()), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
