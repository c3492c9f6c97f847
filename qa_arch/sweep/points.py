"""The points of a sweep: checked, each with its key, its folder's name and what it needs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qa_arch.config.identity import ENCODER, NEUTRAL, config_hash
from qa_arch.config.schema import CORPUS_TASKS, Config, Source, require_vectors, validate
from qa_arch.data.input_files import content_hash
from qa_arch.data.sources import identity
from qa_arch.errors import ConfigError, QaArchError
from qa_arch.features.packaged_vectors import packaged_files
from qa_arch.pretraining.corpus_splits import corpus_identity
from qa_arch.results.pretrained_runs import encoder_folder, encoder_run

LONGEST = 80
"""Characters of a folder's name before the hash."""
ALL_DEVICES = -1


@dataclass(frozen=True)
class Point:
    """A point that can run. Two points are the same where their ``key`` is."""

    overrides: tuple[str, ...]
    raw: dict[str, Any]
    config: Config
    key: str
    """Hash of the config and of the files that it reads, less what changes no result."""

    @property
    def name(self) -> str:
        return f"{_label(self.overrides) or self.config.model.get('name', 'model')}-{self.key[:8]}"

    @property
    def devices(self) -> int:
        """How many devices of a pool it takes: 0 on a CPU, ``ALL_DEVICES`` where it takes what it finds."""
        trainer = self.config.trainer
        if trainer.accelerator == "cpu":
            return 0
        return ALL_DEVICES if trainer.devices == "auto" else trainer.devices


def make_points(composed: Iterable[tuple[tuple[str, ...], dict[str, Any]]]) -> list[Point]:
    """All points, or an error that names the first that cannot run or that stands there twice.

    ``composed``: the overrides that are a point's own, and its resolved config.
    """
    points: dict[str, Point] = {}
    for overrides, raw in composed:
        point = _point(overrides, raw)
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
    """A point in words."""
    return " ".join(overrides) or "the one point"


def _point(overrides: tuple[str, ...], raw: dict[str, Any]) -> Point:
    try:
        config = validate(raw)
        require_vectors(config)
        key = config_hash(asdict(config), sources(config))
    except QaArchError as error:
        raise type(error)(f"{title(overrides)}: {error}") from error
    return Point(overrides, raw, config, key)


def sources(config: Config) -> dict[str, str]:
    """The identity of what the run reads, by setting: hashes of files, names of what comes from elsewhere."""
    data = config.data
    named: dict[str, Source | None] = {"train": data.train, "calibration": data.calibration}
    if data.open_dev:
        named["dev"] = data.dev
    if config.glove.use and config.glove.path:
        files = packaged_files(config.glove.path)
        named["glove"] = list(map(str, files)) if files else config.glove.path
    identify = corpus_identity if config.model["task"] in CORPUS_TASKS else identity
    hashes = {split: identify(source) for split, source in named.items() if source is not None}
    if config.encoder.init == "random" and (tokenizer := config.encoder.tokenizer):
        path = (encoder_folder(tokenizer) or Path(tokenizer)) / "tokenizer.json"
        if path.is_file():
            hashes["tokenizer"] = content_hash(path)
    if encoder := encoder_run(config.encoder.name):
        hashes[ENCODER] = encoder.config_hash
    return hashes


def _label(overrides: Sequence[str]) -> str:
    """``model=bert trainer.batch_size=4`` as ``bert-batch_size4``, safe in paths and on command lines."""
    parts = []
    for override in overrides:
        key, _, value = override.lstrip("+~").partition("=")
        key = key.partition("@")[0].replace("/", ".")
        short = key.rpartition(".")[2]
        word = value if re.match(r"[A-Za-z_]", value) and "." not in key else f"{short}{value}"
        parts.append(re.sub(r"[^\w.+-]+", "_", word).strip("_"))
    return "-".join(part for part in parts if part)[:LONGEST].rstrip("-_")
