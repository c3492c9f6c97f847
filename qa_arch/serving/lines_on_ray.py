"""Parts of a file answered by actors on a Ray cluster, in order.

Actors and not Ray Data: a part has to stay whole for its answers to be, to the byte, those of a single
process, and answers are appended in the order of the file.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from qa_arch.errors import RunError, UnavailableError
from qa_arch.serving.lines import AnsweredPart, Answering, Part

AnswerPart = Callable[[Part], AnsweredPart]
WINDOW = 4
"""Parts per actor that are under way or wait for an earlier part: how far the file is read ahead."""
RESTARTS, RETRIES = 10, 3
"""How often an actor is started anew, and how often a part that was lost with an actor is tried again."""
OBJECT_STORE = 256 << 20
"""Bytes of the object store where Ray is started here; most parts have less than 1 MiB."""


class _Actor:
    """Loads with its first part, whose caller sees what goes wrong, and again where it is started anew."""

    def __init__(self, load: Callable[[], AnswerPart]) -> None:
        self._load = load
        self._answer_part: AnswerPart | None = None

    def answer(self, part: Part) -> AnsweredPart:
        self._answer_part = self._answer_part or self._load()
        return self._answer_part(part)


@contextmanager
def actors(load: Callable[[], AnswerPart], count: int | None = None) -> Iterator[Answering]:
    """Start ``count`` actors that hold what ``load`` returns, and yield what answers parts with them.

    An actor has a GPU where the cluster has any, else a CPU; by default all of these are used. The cluster
    is that of ``RAY_ADDRESS``, else Ray is started on this machine. Raises UnavailableError without Ray or
    for more actors than devices, RunError where actors die too often, and what ``load`` raises.
    """
    ray = _connect()
    try:
        has = ray.cluster_resources()
        cpus, gpus = int(has.get("CPU", 0)), int(has.get("GPU", 0))
        devices = min(gpus, cpus) or cpus
        count = devices if count is None else count
        if not 1 <= count <= devices:
            raise UnavailableError(
                f"--actors {count}: the cluster has {gpus} GPUs and {cpus} CPUs, and an actor takes"
                f" {'a GPU and a CPU' if gpus else 'a CPU'}; give at most {devices}"
            )
        actor = ray.remote(_Actor).options(
            num_cpus=1, num_gpus=min(gpus, 1), max_restarts=RESTARTS, max_task_retries=RETRIES
        )
        pool = [actor.remote(load) for _ in range(count)]
        yield lambda parts: _in_order(ray, pool, parts)
    finally:
        ray.shutdown()


def _connect() -> Any:
    """Ray, connected to the cluster of ``RAY_ADDRESS`` or started here: no dashboard, no usage report."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise UnavailableError("--on ray needs Ray: pip install 'qa-arch[ray]'") from error
    options: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    if not os.environ.get("RAY_ADDRESS"):
        options |= {"address": "local", "include_dashboard": False, "object_store_memory": OBJECT_STORE}
    try:
        ray.init(**options)
    except Exception as error:  # which Ray raises itself, where a node takes too long
        reason = " ".join(str(error).split())[:200]
        raise UnavailableError(f"--on ray: Ray does not start ({reason}); check RAY_ADDRESS") from error
    return ray


def _in_order(ray: Any, pool: list[Any], parts: Iterator[Part]) -> Iterator[AnsweredPart]:
    """The answers to ``parts``, in order; a part goes to the actor that has the fewest under way."""
    queue: deque[tuple[Any, int]] = deque()
    try:
        while True:
            part = next(parts, None) if len(queue) < WINDOW * len(pool) else None
            if part is not None:
                calls = [call for call, _ in queue]
                done = ray.wait(calls, num_returns=len(calls), timeout=0)[0] if calls else []
                busy = [number for call, number in queue if call not in done]
                number = min(range(len(pool)), key=busy.count)
                queue.append((pool[number].answer.remote(part), number))
            elif queue:
                yield ray.get(queue.popleft()[0])
            else:
                return
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error
    except ray.exceptions.RayError as error:
        reason = " ".join(str(error).split())[:200]
        raise RunError(
            f"--on ray: the actors do not stay alive ({reason}); Ray's logs say why (often memory:"
            " fewer --actors); then give the same command again, which continues"
        ) from error
