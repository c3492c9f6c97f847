"""Load test of ``qa-arch serve``: clients that query without pause, and the service in another process.

    python -m benchmarks.serving [--clients 64] [--seconds 60] [--small]

Prints answers per second, latencies and statuses for batches of up to 16 queries and for single queries. The
model is MiniLM with a random head; with ``--small`` one layer of width 16, which leaves the cost of the
service. Questions come from the generated set.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import quantiles

import httpx2

from qa_arch.data.synthetic import generate

BATCHES = (16, 1)
HEALTH_SECONDS = 0.25
"""Interval between requests to ``/healthz``."""


@dataclass
class Load:
    """Client-side statistics."""

    seconds: float
    statuses: Counter[int] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)
    """Seconds per answer."""
    health: list[float] = field(default_factory=list)
    """Seconds per request to ``/healthz``: how long the event loop was busy."""

    @property
    def rate(self) -> float:
        """Answers per second."""
        return self.statuses[200] / self.seconds

    def percentiles(self, values: Sequence[float]) -> tuple[float, float]:
        """50th and 95th percentile."""
        cuts = quantiles(values, n=20)
        return cuts[9], cuts[18]


def measure(address: str, *, clients: int, seconds: float) -> Load:
    """Query from ``clients`` without pause for ``seconds``."""
    return asyncio.run(_measure(address, clients, seconds))


async def _measure(address: str, clients: int, seconds: float) -> Load:
    pairs = [(e.question, e.context) for e in generate(4, 3, 1, "dev").examples]
    bodies = itertools.cycle([{"question": question, "context": context} for question, context in pairs])
    load = Load(seconds)
    limits = httpx2.Limits(max_connections=clients + 1)
    async with httpx2.AsyncClient(base_url=address, timeout=120, limits=limits) as client:
        await client.post("/v1/answer", json=next(bodies))  # the first batch of a process is slow
        end = time.perf_counter() + seconds

        async def ask() -> None:
            while (started := time.perf_counter()) < end:
                response = await client.post("/v1/answer", json=next(bodies))
                load.statuses[response.status_code] += 1
                if response.status_code == 200:
                    load.latencies.append(time.perf_counter() - started)
                else:
                    await asyncio.sleep(0.1)

        async def poll_health() -> None:
            while (started := time.perf_counter()) < end:
                await client.get("/healthz")
                load.health.append(time.perf_counter() - started)
                await asyncio.sleep(HEALTH_SECONDS)

        started = time.perf_counter()
        await asyncio.gather(poll_health(), *(ask() for _ in range(clients)))
        load.seconds = time.perf_counter() - started
    return load


@contextmanager
def service(*, batch: int, queue: int, small: bool) -> Iterator[str]:
    """Address of a service running in its own process."""
    options = ["--batch", str(batch), "--queue", str(queue), *(["--small"] if small else [])]
    command = [sys.executable, "-m", "benchmarks.serving", "--serve", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.stdout.readline().strip()  # type: ignore[union-attr]
        finally:
            process.terminate()


def _serve(batch: int, queue: int, small: bool) -> None:
    from benchmarks.prediction import build_predictor
    from benchmarks.small import small_predictor
    from qa_arch.serving import ServiceOptions
    from qa_arch.serving.app import create_app
    from qa_arch.serving.guard import address, bind, serve

    predictor = small_predictor() if small else build_predictor("fp32")
    options = ServiceOptions(max_queue=queue, max_batch=batch)
    bound = bind("127.0.0.1", 0)
    app = create_app({"model": predictor}, options)
    serve(app, bound, options, ready=lambda: print(address(bound), flush=True))


def report(batch: int, load: Load) -> str:
    """Format one row of the table."""
    p50, p95 = load.percentiles(load.latencies)
    health, busiest = load.percentiles(load.health)
    statuses = ", ".join(f"{status}: {count:,}" for status, count in sorted(load.statuses.items()))
    return (
        f"| {batch} | {load.rate:.1f} | {1000 * p50:.0f} | {1000 * p95:.0f} | {1000 * health:.0f} |"
        f" {1000 * busiest:.0f} | {statuses} |"
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--small", action="store_true", help="use a model of negligible cost")
    parser.add_argument("--queue", type=int, default=128, help="queries that may wait (default: 128)")
    parser.add_argument("--batch", type=int, help="measure only this batch limit instead of 16 and 1")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.serve:
        _serve(args.batch, args.queue, args.small)
        return 0
    print("| batch | answers/s | p50 ms | p95 ms | healthz p50 ms | p95 ms | statuses |")
    print("|---:|---:|---:|---:|---:|---:|---|")
    for batch in (args.batch,) if args.batch else BATCHES:
        with service(batch=batch, queue=args.queue, small=args.small) as address:
            print(report(batch, measure(address, clients=args.clients, seconds=args.seconds)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
