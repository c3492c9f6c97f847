"""Points of a sweep: their keys, folder names and devices, and the checks before any of them starts.

Checks that need torch (model settings, devices) run in a separate process, with this module as its program: a
process that has used a GPU keeps some of its memory until it ends, and the sweep's process must not.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from qa_arch.config.extras import require_extras
from qa_arch.config.schema import Config, Source, require_trainable, require_vectors, task_entry, validate
from qa_arch.config.target import TRUSTED
from qa_arch.data.input_files import content_hash, packaged_files
from qa_arch.errors import ConfigError, QaArchError, RunError
from qa_arch.models.teacher_files import joint_hash, require_teacher, teacher_identity
from qa_arch.provenance import ENCODER, NEUTRAL, identify
from qa_arch.results.pretrained_runs import encoder_folder, encoder_run
from qa_arch.sweep.state import ALL_DEVICES, VISIBLE
from qa_arch.system import lifeline
from qa_arch.system.garbage import gc_disabled

LABEL_LENGTH = 80
"""Maximum length of a folder's name before the hash."""


@dataclass(frozen=True)
class Point:
    """A point that can run. Points with equal ``key`` are the same."""

    overrides: tuple[str, ...]
    raw: dict[str, Any]
    config: Config
    key: str
    """Hash of the config and of the files it reads, without settings that do not change results."""

    @property
    def name(self) -> str:
        """``bert-batch_size4-0e0f6f99`` for ``model=bert trainer.batch_size=4``, safe in paths."""
        parts = []
        for override in self.overrides:
            key, _, value = override.lstrip("+~").partition("=")
            key = key.partition("@")[0].replace("/", ".")
            is_clear = re.match(r"[A-Za-z_]", value) and "." not in key
            word = value if is_clear else f"{key.rpartition('.')[2]}{value}"
            parts.append(re.sub(r"[^\w.+-]+", "_", word).strip("_"))
        label = "-".join(filter(None, parts))[:LABEL_LENGTH].rstrip("-_")
        return f"{label or self.config.model.get('name', 'model')}-{self.key[:8]}"

    @property
    def devices(self) -> int:
        """Devices of a pool that the point takes: 0 on a CPU, ``ALL_DEVICES`` with ``devices=auto``."""
        trainer = self.config.trainer
        if trainer.accelerator == "cpu":
            return 0
        return ALL_DEVICES if trainer.devices == "auto" else trainer.devices


def make_points(composed: Iterable[tuple[tuple[str, ...], dict[str, Any]]]) -> list[Point]:
    """Validate all points; raises an error naming the first that cannot run or is duplicated.

    ``composed``: overrides specific to a point, and its resolved config.
    """
    points: dict[str, Point] = {}
    for overrides, raw in composed:
        try:
            config = validate(raw)
            require_trainable(config)
            require_vectors(config)
            require_teacher(config)
            require_extras(config)
            point = Point(overrides, raw, config, identify(asdict(config), sources(config)).run_hash)
        except QaArchError as error:
            raise type(error)(f"{title(overrides)}: {error}") from error
        twin = points.setdefault(point.key, point)
        if twin is not point:
            pair = f"'{title(twin.overrides)}' and '{title(point.overrides)}'"
            hint = f"; these change no result: {', '.join(NEUTRAL)}"
            same = twin.overrides == point.overrides
            raise ConfigError(f"{pair} are the same point" + (", given twice" if same else hint))
    if not points:
        raise ConfigError("the grid is empty: one of the swept settings has no value")
    return list(points.values())


def title(overrides: Sequence[str]) -> str:
    """Label of a point."""
    return " ".join(overrides) or "the only point"


def sources(config: Config) -> dict[str, str]:
    """Setting -> identity of what the run reads: hashes of files, names of remote sources."""
    data = config.data
    inputs: dict[str, Source | None] = {"train": data.train, "calibration": data.calibration}
    if data.open_dev:
        inputs["dev"] = data.dev
    if config.glove.use and config.glove.path:
        files = packaged_files(config.glove.path)
        inputs["glove"] = list(map(str, files)) if files else config.glove.path
    identify = import_module(task_entry(config.model["task"]).sources).identity
    hashes = {name: identify(source) for name, source in inputs.items() if source is not None}
    if config.encoder.init == "random" and (tokenizer := config.encoder.tokenizer):
        path = (encoder_folder(tokenizer) or Path(tokenizer)) / "tokenizer.json"
        if path.is_file():
            hashes["tokenizer"] = content_hash(path)
    if encoder := encoder_run(config.encoder.name):
        hashes[ENCODER] = encoder.run_hash
    if teachers := config.distillation.teachers:
        hashes["teacher"] = joint_hash([teacher_identity(teacher) for teacher in teachers])
    return hashes


def preflight(
    points: Sequence[Point], trusted: Sequence[str], pool: Sequence[str] | None, local: bool
) -> None:
    """Raise ConfigError for the first point that would fail at its start, or for a missing device.

    ``trusted``: additional packages whose classes a config may name. ``pool``: the GPUs assigned to points.
    ``local``: whether points run on this machine; if not, its devices are not checked.
    """
    if not points and not pool:
        return
    described = [{"title": title(point.overrides), "config": asdict(point.config)} for point in points]
    process = lifeline.start(
        lifeline.module_command(__name__, *TRUSTED, *trusted),
        env=os.environ if pool is None else {**os.environ, VISIBLE: ",".join(pool)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    output, _ = process.communicate(json.dumps({"points": described, "pool": pool, "local": local}))
    if process.returncode:
        raise RunError(
            f"the points could not be checked (exit code {process.returncode}, see the output above)"
        )
    if problem := json.loads(output.splitlines()[-1]):
        raise ConfigError(problem)


def _first_problem(request: Mapping[str, Any], trusted: Sequence[str]) -> str | None:
    with gc_disabled():
        import torch

        from qa_arch.training import devices
        from qa_arch.training.run import check_components

    pool = request["pool"] or ()
    count = torch.cuda.device_count() if pool else 0  # counts up to the first missing device
    if count < len(pool):  # a point would silently train on the CPU instead
        return (
            f"sweep.devices: torch sees no device {pool[count]}; qa-arch doctor lists the available ones,"
            " and trainer=cpu needs none"
        )
    seen: list[Any] = []
    for point in request["points"]:
        config = validate(point["config"])
        checked: list[Any] = [config.model, config.loss, config.glove.use, config.trainer]
        checked += [config.logger, config.references, config.encoder, config.features.max_length]
        if checked in seen:
            continue
        seen.append(checked)
        try:
            if request["local"]:
                devices.require(config.trainer)
                if config.encoder.init == "pretrained":
                    from qa_arch.models.build import check_encoder  # imports transformers

                    check_encoder(config)
            check_components(config, trusted)
        except QaArchError as error:
            return f"{point['title']}: {error}"
    return None


if __name__ == "__main__":
    print(json.dumps(_first_problem(json.load(sys.stdin), sys.argv[1:])))
