"""What needs torch to be checked, for all points in one process: models' settings and devices.

A process of its own, as the sweep's must stay free of torch: forked or not, a process that has touched a
GPU holds some of it for as long as it lives.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from qa_arch.config.schema import validate
from qa_arch.config.target import TRUSTED
from qa_arch.errors import ConfigError, QaArchError, RunError
from qa_arch.sweep.points import Point, title
from qa_arch.sweep.settings import VISIBLE
from qa_arch.system import lifeline
from qa_arch.system.collector import uncollected


def check(points: Sequence[Point], trusted: Sequence[str], pool: Sequence[str] | None, here: bool) -> None:
    """Raise ConfigError for the first point that would fail as soon as it starts.

    ``trusted``: packages beside our own whose classes a config may name. ``pool``: the GPUs that are handed
    out. ``here``: the points run on this machine; else nothing is said of devices, which another has.
    """
    if points:
        asked = [{"title": title(point.overrides), "config": asdict(point.config)} for point in points]
        _ask({"points": asked, "pool": pool, "here": here}, trusted)


def check_pool(pool: Sequence[str]) -> None:
    """Raise ConfigError where a device that is to be handed out is not there."""
    _ask({"points": [], "pool": pool, "here": True}, ())


def _ask(asked: Mapping[str, Any], trusted: Sequence[str]) -> None:
    pool = asked["pool"]
    process = lifeline.start(
        lifeline.module_command(__name__, *TRUSTED, *trusted),
        env=os.environ if pool is None else {**os.environ, VISIBLE: ",".join(pool)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    said, _ = process.communicate(json.dumps(asked))
    if process.returncode:
        raise RunError(f"the points could not be checked (exit code {process.returncode}, said above)")
    if problem := json.loads(said.splitlines()[-1]):
        raise ConfigError(problem)


def _first_problem(asked: Mapping[str, Any], trusted: Sequence[str]) -> str | None:
    with uncollected():
        from qa_arch.models.build import check_model
        from qa_arch.nn.losses import build_loss
        from qa_arch.training.loggers import check_logger
        from qa_arch.training.machine import uses_gpu

    if problem := _missing_devices(asked["pool"] or ()):
        return problem
    seen: list[Any] = []
    for point in asked["points"]:
        config = validate(point["config"])
        facts = (config.model, config.loss, config.glove.use, config.trainer, config.logger)
        if facts in seen:
            continue
        seen.append(facts)
        try:
            if asked["here"]:
                uses_gpu(config.trainer)
            check_model(config.model, trusted, with_vectors=config.glove.use)
            build_loss(config, trusted)
            check_logger(config.logger, trusted)
        except QaArchError as error:
            return f"{point['title']}: {error}"
    return None


def _missing_devices(pool: Sequence[str]) -> str | None:
    """A point would see nothing of a device that is not there, and train on the CPU without a word."""
    import torch

    found = torch.cuda.device_count() if pool else 0  # up to the first that is not there
    if found == len(pool):
        return None
    return (
        f"sweep.devices: torch sees no device {pool[found]}; qa-arch doctor lists those that there are,"
        " and trainer=cpu needs none"
    )


if __name__ == "__main__":
    print(json.dumps(_first_problem(json.load(sys.stdin), sys.argv[1:])))
