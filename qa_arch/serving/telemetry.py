"""What ``/metrics`` shows, in Prometheus' text format. No text of a question is in it."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as CONTENT_TYPE

__all__ = ["CONTENT_TYPE", "Telemetry"]

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
SIZES = (1, 2, 4, 8, 16, 32, 64)


class Telemetry:
    """The counters of one service, with a registry of their own: several services may share a process."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "qa_arch_requests_total",
            "Requests by path and HTTP status; 499: the client went away",
            ("path", "status"),
            registry=registry,
        )
        self.seconds = Histogram(
            "qa_arch_request_seconds",
            "From the headers of a request to the end of its response",
            ("path",),
            buckets=SECONDS,
            registry=registry,
        )
        self.queue = Gauge(
            "qa_arch_queue_length", "Queries that wait or are being answered", ("model",), registry=registry
        )
        self.batch = Histogram(
            "qa_arch_batch_size",
            "Queries answered together",
            ("model",),
            buckets=SIZES,
            registry=registry,
        )
        self.answers = Counter(
            "qa_arch_answers_total", "Answers, and no-answers", ("model", "answered"), registry=registry
        )

    def text(self) -> bytes:
        return generate_latest(self.registry)
