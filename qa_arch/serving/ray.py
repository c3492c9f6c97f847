"""Answer JSON lines on a Ray cluster: the parts of ``serving.lines``, each by one of several actors."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from typing import Any

from qa_arch.errors import RunError, UnavailableError, install, one_line
from qa_arch.serving.lines import AnsweredPart, Answering, AnswerPart, Part

WINDOW = 4
"""Read-ahead: parts per actor in progress or waiting for an earlier part."""
RESTARTS, RETRIES = 10, 3
"""Restarts of an actor, and retries of a part lost with its actor."""
OBJECT_STORE = 256 << 20
"""Bytes of the object store of a local Ray; most parts are below 1 MiB."""


class _Actor:
    """Loads the model with its first part, so that the caller sees errors, and again after a restart."""

    def __init__(self, load: Callable[[], AnswerPart]) -> None:
        self._load = load
        self._answer_part: AnswerPart | None = None

    def answer(self, part: Part) -> AnsweredPart:
        self._answer_part = self._answer_part or self._load()
        return self._answer_part(part)


@contextmanager
def actors(load: Callable[[], AnswerPart], count: int | None = None) -> Iterator[Answering]:
    """Start ``count`` Ray actors, each with its own ``load()``, and yield a function that answers parts.

    Not Ray Data: parts must stay whole for answers to be byte-identical to a single process. Each actor gets
    a GPU if the cluster has any, else a CPU; by default all of them are used. The cluster is ``RAY_ADDRESS``,
    or a local one. Raises UnavailableError if Ray is missing or there are more actors than devices, RunError
    if actors die too often, and whatever ``load`` raises.
    """
    local = {"address": "local", "include_dashboard": False, "object_store_memory": OBJECT_STORE}
    try:
        import ray

        cluster = {} if os.environ.get("RAY_ADDRESS") else local
        ray.init(logging_level="ERROR", log_to_driver=False, **cluster)
    except Exception as error:  # Ray raises a plain Exception if a node takes too long
        reason = one_line(error, 200)
        raise UnavailableError(
            f"--on ray: Ray failed to start ({reason}); {install('ray')}, and check RAY_ADDRESS"
        ) from error
    try:
        cpus, gpus = (int(ray.cluster_resources().get(kind, 0)) for kind in ("CPU", "GPU"))
        devices = min(gpus, cpus) or cpus  # an actor with a GPU needs a CPU, too
        count = devices if count is None else count
        if not 1 <= count <= devices:
            raise UnavailableError(
                f"--actors {count}: the cluster has {gpus} GPUs and {cpus} CPUs; give at most {devices}"
            )
        actor = ray.remote(_Actor).options(
            num_cpus=1, num_gpus=min(gpus, 1), max_restarts=RESTARTS, max_task_retries=RETRIES
        )
        pool = [actor.remote(load) for _ in range(count)]
        yield lambda parts: _in_order(ray, pool, parts)
    finally:
        ray.shutdown()


def _in_order(ray: Any, pool: list[Any], parts: Iterator[Part]) -> Iterator[AnsweredPart]:
    """Answer ``parts`` in order, the actors taking turns."""
    queue: deque[Any] = deque()
    try:
        for actor, part in zip(cycle(pool), parts, strict=False):  # parts are of about one size
            if len(queue) == WINDOW * len(pool):
                yield ray.get(queue.popleft())
            queue.append(actor.answer.remote(part))
        while queue:
            yield ray.get(queue.popleft())
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error
    except ray.exceptions.RayError as error:
        reason = one_line(error, 200)
        raise RunError(
            f"--on ray: actors keep dying ({reason}); see Ray's logs (often out of memory: use fewer"
            " --actors), then repeat the command to continue"
        ) from error
