"""Load on ``qa-arch serve``: many clients that ask without a pause, and a service in another process.

    python -m benchmarks.serving [--clients 64] [--seconds 60] [--small]

prints answers a second, latencies and statuses for batches of up to 16 queries, and beside them for a query
at a time. The model is MiniLM with a random head; with ``--small`` a layer of width 16, so that what is left
is the service. Questions are those of the generated set.
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
"""Between two looks at ``/healthz``."""


@dataclass
class Load:
    """What the clients saw."""

    seconds: float
    statuses: Counter[int] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)
    """Seconds of each answer."""
    health: list[float] = field(default_factory=list)
    """Seconds of each look at ``/healthz``: how long the event loop was busy."""

    @property
    def rate(self) -> float:
        """Answers a second."""
        return self.statuses[200] / self.seconds

    def percentiles(self, values: Sequence[float]) -> tuple[float, float]:
        """The 50th and the 95th."""
        steps = quantiles(values, n=20)
        return steps[9], steps[18]


def measure(address: str, *, clients: int, seconds: float) -> Load:
    """The load of ``clients`` that ask without a pause for ``seconds``."""
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
            while (began := time.perf_counter()) < end:
                response = await client.post("/v1/answer", json=next(bodies))
                load.statuses[response.status_code] += 1
                if response.status_code == 200:
                    load.latencies.append(time.perf_counter() - began)
                else:
                    await asyncio.sleep(0.1)

        async def look() -> None:
            while (began := time.perf_counter()) < end:
                await client.get("/healthz")
                load.health.append(time.perf_counter() - began)
                await asyncio.sleep(HEALTH_SECONDS)

        began = time.perf_counter()
        await asyncio.gather(look(), *(ask() for _ in range(clients)))
        load.seconds = time.perf_counter() - began
    return load


@contextmanager
def service(*, batch: int, queue: int, small: bool) -> Iterator[str]:
    """The address of a service in a process of its own."""
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
    from qa_arch.serving.app import create_app
    from qa_arch.serving.guard import ServiceOptions, address, bind, serve
    from qa_arch.serving.reader import Reader

    predictor = small_predictor() if small else build_predictor("fp32")
    options = ServiceOptions(max_queue=queue, max_batch=batch)
    bound = bind("127.0.0.1", 0)
    app = create_app({"model": Reader(predictor)}, options)
    serve(app, bound, options, ready=lambda: print(address(bound), flush=True))


def report(batch: int, load: Load) -> str:
    """A row of the table."""
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
    parser.add_argument("--small", action="store_true", help="a model that costs next to nothing")
    parser.add_argument("--queue", type=int, default=128, help="queries that may wait (default: 128)")
    parser.add_argument("--batch", type=int, help="a single limit of a batch, in place of 16 and 1")
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
