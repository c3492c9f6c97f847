"""Which set a run is to be scored on, and whether it may be: closed dev sets and shared articles.

A config with ``data.open_dev: false`` keeps its dev set closed: only ``--final`` scores on it, and each
time a line in ``experiments/<name>/dev_openings.jsonl`` says so.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qa_arch.config.schema import Config
from qa_arch.errors import ConfigError, DataError
from qa_arch.results import provenance
from qa_arch.results.dev_access_log import EXPERIMENTS, DevAccess
from qa_arch.results.dev_access_log import log_dev_access as append_dev_access
from qa_arch.tasks import task_of
from qa_arch.types.records import DEV, RunRecord

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Target:
    """The set to be scored and what is known of it."""

    questions: Any
    split: str
    """``dev`` for the config's own dev set, else the set's name: where the record keeps the scores."""
    closed: bool
    """Whether it is the dev set that the config keeps closed, or shares articles with it."""
    overlap: tuple[str, ...]
    """Titles that it shares with the run's training and calibration articles."""


def open_target(record: RunRecord, config: Config, data: Sequence[str] | None) -> Target:
    """The set that ``data`` names, or the config's dev set; ConfigError where there is neither."""
    if not data and config.data.dev is None:
        raise ConfigError("data.dev: the run's config names no dev set; give one with --data")
    task, on_error = task_of(config.model), config.data.on_error
    dev: Any = None
    if config.data.dev is not None and (not data or not config.data.open_dev):
        dev = task.open(config.data.dev, name=DEV, on_error=on_error)
    questions: Any = task.open(list(data), on_error=on_error) if data else dev
    recorded = record.fingerprint(DEV)
    is_dev = questions.fingerprint == (dev.fingerprint if dev else recorded)
    trained = {title for facts in record.data.values() for title in facts.titles}
    return Target(
        questions,
        DEV if is_dev else _folder_name(questions.name),
        closed=not config.data.open_dev
        and dev is not None
        and (is_dev or bool(dev.titles & questions.titles)),
        overlap=tuple(sorted(trained & questions.titles)),
    )


def check_target(target: Target, *, margin: float | None, final: bool, allow_overlap: bool) -> None:
    """Raise where the set may not be scored as it was asked for; the message names the option that helps."""
    name, protocol = target.questions.name, target.questions.protocol
    if target.overlap and not allow_overlap:
        titles = ", ".join(map(repr, target.overlap[:5])) + (", ..." if len(target.overlap) > 5 else "")
        raise DataError(
            f"{name}: shares {len(target.overlap)} articles with the run's training and calibration data"
            f" ({titles}); score another set, or --allow-overlap, which the scores then say"
        )
    if target.closed and not final:
        raise ConfigError(
            f"{name}: the run's config keeps its dev set closed (data.open_dev: false);"
            " --final scores it once everything is decided, and logs that"
        )
    if margin is not None and protocol == "1.1":
        raise ConfigError(f"--margin: {name} is a SQuAD 1.1 set, where every question is answered")
    if margin is not None and protocol != "2.0":
        raise ConfigError("--margin: this run ranks candidates, it has no null margin; leave it out")
    if final and not target.closed:
        raise ConfigError(f"--final: nothing keeps {name} closed for this run; leave it out")


def log_dev_access(folder: Path, record: RunRecord, config: Config, questions: Any) -> None:
    """Add a line to the log of the experiment: its dev set is about to be scored."""
    path = append_dev_access(
        EXPERIMENTS / config.name,
        DevAccess(
            date=provenance.now(),
            commit=provenance.commit()[0],
            config_hash=record.config_hash,
            run=folder.resolve().name,
            data=questions.name,
            fingerprint=questions.fingerprint,
        ),
    )
    log.info("%s: one more opening", path)


def _folder_name(name: str) -> str:
    """The name of another set as a key of the record and a folder; never that of one of the run's own."""
    plain = re.sub(r"[^\w.+-]", "_", name).strip(".") or "set"
    return f"{plain}-set" if plain in ("train", "calibration", DEV) else plain
