"""What a service takes and how long it waits."""

from __future__ import annotations

from dataclasses import dataclass

from qa_arch.errors import ConfigError

LOOPBACK = ("127.0.0.1", "::1", "localhost")


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

    @property
    def max_bytes(self) -> int:
        """Of a body: room for ``max_characters``, even where each is written as ``\\ud83d\\ude00``."""
        return 12 * self.max_characters + 65_536
