"""Queries of many requests as batches for a model, in a thread of their own, with a bounded queue in front.

The batches are made by the library ``batched``. Its ``aio`` processor calls the model in a thread, so that
the event loop stays free, leaves out what was cancelled while it waited, and limits a batch by number and by
length. What it has not is a bound: its queue takes everything, so queries are counted before they enter it.
And a batch fails as a whole; here only the query that the model cannot answer does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import Any

from batched.aio import AsyncBatchProcessor
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from qa_arch.serving.answers import Answer, Query
from qa_arch.serving.guard import ServiceOptions, busy
from qa_arch.serving.reader import Reader
from qa_arch.types.text import AttentionMap

WAIT_MS = 2.0
"""How long a query waits for others, and how often an empty queue is looked at."""
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
SIZES = (1, 2, 4, 8, 16, 32, 64)


class Telemetry:
    """The counters of one service that ``/metrics`` shows; no text of a question is in them.

    They have a registry of their own: several services may share a process.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own: dict[str, Any] = {"namespace": "qa_arch", "registry": self.registry}
        about = "Requests by path and HTTP status; 499: the client went away"
        self.requests = Counter("requests_total", about, ("path", "status"), **own)
        about = "From the headers of a request to the end of its response"
        self.seconds = Histogram("request_seconds", about, ("path",), buckets=SECONDS, **own)
        self.queue = Gauge("queue_length", "Queries that wait or are being answered", ("model",), **own)
        self.batch = Histogram("batch_size", "Queries answered together", ("model",), buckets=SIZES, **own)
        self.answers = Counter("answers_total", "Answers, and no-answers", ("model", "answered"), **own)

    def observe(self, path: str, status: int, seconds: float) -> None:
        """Count a request that has ended."""
        self.requests.labels(path, status).inc()
        self.seconds.labels(path).observe(seconds)


@dataclass(frozen=True, slots=True)
class _Item:
    """A query; its length is what ``batched`` limits a batch by."""

    query: Query

    def __len__(self) -> int:
        return len(self.query.question) + sum(map(len, self.query.documents))


class Batcher:
    """The queue of one model. Belongs to the event loop in which it is first used."""

    def __init__(self, name: str, reader: Reader, options: ServiceOptions, telemetry: Telemetry) -> None:
        self.reader, self.options = reader, options
        self.size = 0
        """Queries that wait or are being answered."""
        self._lock = Lock()
        self._queue, self._batch = telemetry.queue.labels(name), telemetry.batch.labels(name)
        self._name = name
        self._thread = ThreadPoolExecutor(1)
        self._processor: AsyncBatchProcessor[_Item, Answer | Exception] = AsyncBatchProcessor(
            self._answer,
            batch_size=options.max_batch,
            timeout_ms=WAIT_MS,
            max_batch_length=options.max_characters,
        )

    async def answer(self, queries: Sequence[Query]) -> list[Answer]:
        """The answers, in order. Cancelling drops what was not begun.

        Raises RefusalError (429) where the queue is full, and what the model raised.
        """
        self._take(len(queries))
        try:
            results = await self._processor([_Item(query) for query in queries])
        finally:
            self._give_back(len(queries))
        answers = []
        for result in results:
            if isinstance(result, Exception):
                raise result
            answers.append(result)
        return answers

    async def attention(self, question: str, context: str) -> AttentionMap:
        """``Reader.attention`` in a thread, which keeps its place of the queue until it ends.

        Cancelling does not stop it once it has begun. Raises as ``answer`` does.
        """
        self._take(1)
        work = self._thread.submit(self.reader.attention, question, context)
        work.add_done_callback(lambda _: self._give_back(1))
        return await asyncio.wrap_future(work)

    def _take(self, count: int) -> None:
        """Take places of the queue; RefusalError (429) where there are too few."""
        with self._lock:
            if self.size + count > self.options.max_queue:
                raise busy(f"the queue of {self._name} is full ({self.size} of {self.options.max_queue})")
            self.size += count
            self._queue.set(self.size)

    def _give_back(self, count: int) -> None:
        with self._lock:
            self.size -= count
            self._queue.set(self.size)

    def _answer(self, items: list[_Item]) -> list[Answer | Exception]:
        """In the thread: all together, or alone where that fails."""
        self._batch.observe(len(items))
        try:
            return list(self.reader.answer([item.query for item in items]))
        except Exception as error:
            if len(items) == 1:
                return [error]
            return [result for item in items for result in self._answer([item])]
