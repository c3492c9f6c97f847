"""What needs torch to be checked, for all points in one process: models' settings and devices.

A process of its own, as the sweep's must stay free of torch: forked or not, a process that has touched a
GPU holds some of it for as long as it lives.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from qa_arch.config.schema import validate
from qa_arch.config.target import TRUSTED
from qa_arch.errors import ConfigError, QaArchError, RunError
from qa_arch.sweep.points import Point, title
from qa_arch.system import lifeline


def check(points: Sequence[Point], trusted: Sequence[str]) -> None:
    """Raise ConfigError for the first point that would fail as soon as it starts.

    ``trusted``: packages beside our own whose classes a config may name.
    """
    if not points:
        return
    asked = [{"title": title(point.overrides), "config": asdict(point.config)} for point in points]
    process = lifeline.start(
        lifeline.module_command(__name__, *TRUSTED, *trusted),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    said, _ = process.communicate(json.dumps(asked))
    if process.returncode:
        raise RunError(f"the points could not be checked (exit code {process.returncode}, said above)")
    if problem := json.loads(said.splitlines()[-1]):
        raise ConfigError(problem)


def _first_problem(asked: Sequence[dict[str, Any]], trusted: Sequence[str]) -> str | None:
    from qa_arch.models.assemble import check_model
    from qa_arch.training.machine import uses_gpu

    seen: list[Any] = []
    for point in asked:
        config = validate(point["config"])
        facts = (config.model, config.glove.use, config.trainer)
        if facts in seen:
            continue
        seen.append(facts)
        try:
            uses_gpu(config.trainer)
            check_model(config.model, trusted, with_vectors=config.glove.use)
        except QaArchError as error:
            return f"{point['title']}: {error}"
    return None


if __name__ == "__main__":
    print(json.dumps(_first_problem(json.load(sys.stdin), sys.argv[1:])))
