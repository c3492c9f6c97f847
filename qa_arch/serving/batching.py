"""Queries of many requests as batches for a model, in a thread of their own, with a bounded queue in front.

The batches are made by the library ``batched``. Its ``aio`` processor calls the model in a thread, so that
the event loop stays free, leaves out what was cancelled while it waited, and limits a batch by number and by
length. What it has not is a bound: its queue takes everything, so queries are counted before they enter it.
And a batch fails as a whole; here only the query that the model cannot answer does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from batched.aio import AsyncBatchProcessor

from qa_arch.serving.options import ServiceOptions
from qa_arch.serving.query import Answer, Query
from qa_arch.serving.reader import Reader
from qa_arch.serving.refusals import busy
from qa_arch.serving.telemetry import Telemetry

WAIT_MS = 2.0
"""How long a query waits for others, and how often an empty queue is looked at."""


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
        self._telemetry, self._name = telemetry, name
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
        with self.admit(len(queries)):
            results = await self._processor([_Item(query) for query in queries])
        answers = []
        for result in results:
            if isinstance(result, Exception):
                raise result
            answers.append(result)
        return answers

    @contextmanager
    def admit(self, count: int) -> Iterator[None]:
        """Hold ``count`` places of the queue; RefusalError (429) where there are too few."""
        if self.size + count > self.options.max_queue:
            raise busy(f"the queue of {self._name} is full ({self.size} of {self.options.max_queue})")
        self.size += count
        self._telemetry.queue.labels(self._name).set(self.size)
        try:
            yield
        finally:
            self.size -= count
            self._telemetry.queue.labels(self._name).set(self.size)

    def _answer(self, items: list[_Item]) -> list[Answer | Exception]:
        """In the thread: all together, or alone where that fails."""
        self._telemetry.batch.labels(self._name).observe(len(items))
        queries = [item.query for item in items]
        try:
            return list(self.reader.answer(queries))
        except Exception as error:
            if len(items) == 1:
                return [error]
            return [result for item in items for result in self._answer([item])]
