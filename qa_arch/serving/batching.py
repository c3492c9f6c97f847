"""Dynamic batching: queries of concurrent requests share batches, behind a bounded queue.

Batches come from the library ``batched``. Its ``aio`` processor calls the model in a thread, which keeps the
event loop free, drops queries cancelled while they waited, and limits a batch by number and length. Its queue
is unbounded, so queries are counted before they enter it. Its batches fail as a whole; here only the query
that the model cannot answer fails.
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

from qa_arch.qa.answers import Answer, Query
from qa_arch.qa.reader import Reader
from qa_arch.serving import ServiceOptions
from qa_arch.serving.guard import busy

WAIT_MS = 2.0
"""Milliseconds a query waits for others; also the polling interval of an empty queue."""


class Telemetry:
    """Prometheus metrics of one service, shown at ``/metrics``; they contain no text of a question."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()  # several services may share a process
        common: dict[str, Any] = {"namespace": "qa_arch", "registry": self.registry}
        self.seconds = Histogram("request_seconds", "Time to the response", ("path", "status"), **common)
        self.queue = Gauge("queue_length", "Queries waiting or being answered", ("model",), **common)
        self.answers = Counter("answers_total", "Answers and abstentions", ("model", "answered"), **common)


@dataclass(frozen=True, slots=True)
class _Item:
    """A query whose length, in characters, counts toward the batch limit of ``batched``."""

    query: Query

    def __len__(self) -> int:
        return len(self.query.question) + sum(map(len, self.query.documents))


class Batcher:
    """Queue of one model. It belongs to the event loop in which it is first used."""

    def __init__(self, name: str, reader: Reader, options: ServiceOptions, telemetry: Telemetry) -> None:
        self.reader, self.options = reader, options
        self.size = 0
        """Queries waiting or being answered."""
        self._lock = Lock()
        self._name, self._queue = name, telemetry.queue.labels(name)
        self._thread = ThreadPoolExecutor(1)
        self._processor: AsyncBatchProcessor[_Item, Answer | Exception] = AsyncBatchProcessor(
            self._answer,
            batch_size=options.max_batch,
            timeout_ms=WAIT_MS,
            max_batch_length=options.max_characters,
        )

    async def answer(self, queries: Sequence[Query]) -> list[Answer]:
        """Return the answers, in order. Cancelling drops queries not yet started.

        Raises RefusalError (429) if the queue is full, and whatever the model raises.
        """
        self._reserve(len(queries))
        try:
            results = await self._processor([_Item(query) for query in queries])
        finally:
            self._release(len(queries))
        answers = []
        for result in results:
            if isinstance(result, Exception):
                raise result
            answers.append(result)
        return answers

    async def attention(self, question: str, context: str) -> dict[str, Any]:
        """Run ``Reader.attention`` in a thread; it occupies a queue slot until it ends.

        Cancelling does not stop it once started. Raises like ``answer``.
        """
        self._reserve(1)
        future = self._thread.submit(self.reader.attention, question, context)
        future.add_done_callback(lambda _: self._release(1))
        return await asyncio.wrap_future(future)

    def _reserve(self, count: int) -> None:
        """Reserve queue slots; raises RefusalError (429) if too few are free."""
        with self._lock:
            if self.size + count > self.options.max_queue:
                raise busy(f"the queue of {self._name} is full ({self.size} of {self.options.max_queue})")
            self.size += count
            self._queue.set(self.size)

    def _release(self, count: int) -> None:
        with self._lock:
            self.size -= count
            self._queue.set(self.size)

    def _answer(self, items: list[_Item]) -> list[Answer | Exception]:
        """Answer all items in one batch or, if that fails, one by one. Runs in the worker thread."""
        try:
            return list(self.reader.answer([item.query for item in items]))
        except Exception as error:
            if len(items) == 1:
                return [error]
            return [result for item in items for result in self._answer([item])]
