"""Two things timed side by side: alternating runs in one process, wall and CPU time, medians."""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds. CPU time is that of all threads and of child processes that have ended."""

    wall: float
    cpu: float


@dataclass(frozen=True, slots=True)
class Pairs:
    """Alternating runs: ``ours[i]`` and ``theirs[i]`` stood next to each other in time."""

    ours: tuple[Timed, ...]
    theirs: tuple[Timed, ...]

    def cost(self, clock: str = "wall") -> float:
        """Our time over theirs: the median over the pairs, which a drifting machine leaves alone."""
        pairs = zip(self.ours, self.theirs, strict=True)
        return median(getattr(a, clock) / getattr(b, clock) for a, b in pairs)

    def total_cost(self, clock: str = "wall") -> float:
        """Our time over theirs, both summed: for pairs that are different pieces of one work."""
        ours, theirs = (sum(getattr(t, clock) for t in side) for side in (self.ours, self.theirs))
        return ours / theirs


def once(run: Callable[[], Any]) -> Timed:
    """One run, after the garbage of earlier ones was collected; what it made is freed off the clock."""
    gc.collect()
    wall, cpu = time.perf_counter(), _cpu()
    result = run()
    elapsed = Timed(time.perf_counter() - wall, _cpu() - cpu)
    del result
    return elapsed


def repeat(run: Callable[[], Any], repeats: int) -> tuple[Timed, ...]:
    """``repeats`` runs, after one that is not counted."""
    run()
    return tuple(once(run) for _ in range(repeats))


def alternate(ours: Callable[[], Any], theirs: Callable[[], Any], repeats: int, warm: bool = True) -> Pairs:
    """``repeats`` runs of each, in turn, each first every other time; ``warm``: one of each uncounted."""
    if warm:
        ours()
        theirs()
    first, second = [], []
    for i in range(repeats):
        if i % 2:
            second.append(once(theirs))
            first.append(once(ours))
        else:
            first.append(once(ours))
            second.append(once(theirs))
    return Pairs(tuple(first), tuple(second))


def middle(times: Sequence[Timed]) -> Timed:
    """The medians of wall and of CPU time."""
    return Timed(median(t.wall for t in times), median(t.cpu for t in times))


def _cpu() -> float:
    use = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in use)
