"""Question answering with a trained model: in Python, on the command line, over HTTP, in a web page."""

from __future__ import annotations

import math
from dataclasses import dataclass

from qa_arch.errors import ConfigError

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """Limits of a service. Raises ConfigError naming the option if a value is out of range."""

    max_queue: int = 128
    """Queries of a model waiting or being answered; more are refused with 429. Also the limit per request."""
    max_batch: int = 16
    """Queries per batch of a model."""
    max_documents: int = 100
    """Texts per query."""
    max_characters: int = 200_000
    """Characters per request, over all questions and texts; also per batch of several queries."""
    request_seconds: float = 60.0
    """Time limit from the headers of a request to its answer."""
    allowed_hosts: tuple[str, ...] = LOOPBACK
    """Accepted names in the Host header, without port; empty: any. Protects against DNS rebinding."""
    token: str | None = None
    """Token that clients must send as ``Authorization: Bearer TOKEN``, if any."""

    def __post_init__(self) -> None:
        for name in ("max_queue", "max_batch", "max_documents", "max_characters"):
            if getattr(self, name) < 1:
                option = f"--{name.replace('_', '-')}"
                raise ConfigError(f"{option}: {getattr(self, name)} is out of range, it must be >= 1")
        if not 0 < self.request_seconds < math.inf:
            seconds = self.request_seconds
            raise ConfigError(f"--timeout: {seconds} is out of range, it must be > 0 and finite")
        if self.token is not None and not (self.token and self.token.isascii() and self.token.isprintable()):
            raise ConfigError("token: must be non-empty and printable ASCII; choose another")
