"""Timing of alternating runs in one process: wall and CPU time, medians."""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds. CPU time includes all threads and finished child processes."""

    wall: float
    cpu: float


@dataclass(frozen=True, slots=True)
class Pairs:
    """Alternating runs: ``ours[i]`` and ``theirs[i]`` ran next to each other."""

    ours: tuple[Timed, ...]
    theirs: tuple[Timed, ...]

    def cost(self, clock: str = "wall") -> float:
        """Our time over theirs: the median over pairs, which is robust to drift."""
        pairs = zip(self.ours, self.theirs, strict=True)
        return median(getattr(a, clock) / getattr(b, clock) for a, b in pairs)

    def total_cost(self, clock: str = "wall") -> float:
        """Our total time over theirs, for pairs that are different parts of one workload."""
        ours, theirs = (sum(getattr(t, clock) for t in side) for side in (self.ours, self.theirs))
        return ours / theirs


def once(run: Callable[[], Any]) -> Timed:
    """Time one run after a garbage collection; its result is freed off the clock."""
    gc.collect()
    wall, cpu = time.perf_counter(), _cpu()
    result = run()
    elapsed = Timed(time.perf_counter() - wall, _cpu() - cpu)
    del result
    return elapsed


def repeat(run: Callable[[], Any], repeats: int) -> tuple[Timed, ...]:
    """Time ``repeats`` runs after one warm-up."""
    run()
    return tuple(once(run) for _ in range(repeats))


def alternate(ours: Callable[[], Any], theirs: Callable[[], Any], repeats: int, warm: bool = True) -> Pairs:
    """Time ``repeats`` runs of each, swapping the order every time; ``warm`` adds a warm-up run of each."""
    if warm:
        ours()
        theirs()
    return in_turn(partial(once, ours), partial(once, theirs), repeats)


def in_turn(ours: Callable[[], Timed], theirs: Callable[[], Timed], repeats: int) -> Pairs:
    """``repeats`` times of each, measured by themselves; the order is swapped every time."""
    our_times, their_times = [], []
    for i in range(repeats):
        if i % 2:
            their_times.append(theirs())
            our_times.append(ours())
        else:
            our_times.append(ours())
            their_times.append(theirs())
    return Pairs(tuple(our_times), tuple(their_times))


def median_time(times: Sequence[Timed]) -> Timed:
    """Medians of wall and CPU time."""
    return Timed(median(t.wall for t in times), median(t.cpu for t in times))


def _cpu() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
