"""Checks of all points that need torch: model settings and devices.

They run in a separate process, because a process that has used a GPU keeps some of its memory until it
ends; the process of the sweep must not.
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
from qa_arch.system.garbage import gc_disabled


def check(points: Sequence[Point], trusted: Sequence[str], pool: Sequence[str] | None, local: bool) -> None:
    """Raise ConfigError for the first point that would fail at its start.

    ``trusted``: further packages whose classes a config may name. ``pool``: the GPUs assigned to points.
    ``local``: the points run on this machine; else its devices are not checked.
    """
    if points:
        described = [{"title": title(point.overrides), "config": asdict(point.config)} for point in points]
        _run_checks({"points": described, "pool": pool, "local": local}, trusted)


def check_pool(pool: Sequence[str]) -> None:
    """Raise ConfigError if a device of the pool does not exist."""
    _run_checks({"points": [], "pool": pool, "local": True}, ())


def _run_checks(request: Mapping[str, Any], trusted: Sequence[str]) -> None:
    pool = request["pool"]
    process = lifeline.start(
        lifeline.module_command(__name__, *TRUSTED, *trusted),
        env=os.environ if pool is None else {**os.environ, VISIBLE: ",".join(pool)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    output, _ = process.communicate(json.dumps(request))
    if process.returncode:
        raise RunError(
            f"the points could not be checked (exit code {process.returncode}, see the output above)"
        )
    if problem := json.loads(output.splitlines()[-1]):
        raise ConfigError(problem)


def _first_problem(request: Mapping[str, Any], trusted: Sequence[str]) -> str | None:
    with gc_disabled():
        from qa_arch.models.build import check_model
        from qa_arch.nn.losses import build_loss
        from qa_arch.training.loggers import check_logger
        from qa_arch.training.machine import uses_gpu

    if problem := _missing_devices(request["pool"] or ()):
        return problem
    seen: list[Any] = []
    for point in request["points"]:
        config = validate(point["config"])
        facts = (config.model, config.loss, config.glove.use, config.trainer, config.logger)
        if facts in seen:
            continue
        seen.append(facts)
        try:
            if request["local"]:
                uses_gpu(config.trainer)
            check_model(config.model, trusted, with_vectors=config.glove.use)
            build_loss(config, trusted)
            check_logger(config.logger, trusted)
        except QaArchError as error:
            return f"{point['title']}: {error}"
    return None


def _missing_devices(pool: Sequence[str]) -> str | None:
    """Message about devices that do not exist; a point would silently train on the CPU instead."""
    import torch

    count = torch.cuda.device_count() if pool else 0  # counts up to the first missing device
    if count == len(pool):
        return None
    return (
        f"sweep.devices: torch sees no device {pool[count]}; qa-arch doctor lists the available ones,"
        " and trainer=cpu needs none"
    )


if __name__ == "__main__":
    print(json.dumps(_first_problem(json.load(sys.stdin), sys.argv[1:])))
