"""Copying the committed part of a run into ``experiments/``: record and question rows, no machine paths."""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from qa_arch.config.files import write_with
from qa_arch.data import sources
from qa_arch.errors import DataError, RunError
from qa_arch.results.attention import ATTENTION
from qa_arch.results.question_rows import questions_folder
from qa_arch.results.record import QUESTIONS, read_record, write_record
from qa_arch.types.records import DEV, TRAIN

log = logging.getLogger(__name__)
MOST_ATTENTION = 2**20
"""Bytes of kept attention that are copied; one question takes some tens of thousands."""


def publish(run: Path, folder: Path) -> Path:
    """Copy ``run`` into ``folder/<name of the run>`` and return that.

    Absolute paths of the config keep what stands below the data folder (``$QA_ARCH_DATA/...``) or the
    working folder; the config hash does not depend on them. Rows of the run's own training questions stay
    behind: their scores are in the record. Attention that was kept for a few questions
    goes along; where it is large it is left out, and the log says so. Raises RunError for a run that is still
    running or whose record holds any other absolute path.
    """
    record = read_record(run)
    if record.status == "running":
        raise RunError(
            f"{run}: still running, or stopped without notice; finish it first (--if-exists resume)"
        )
    target = folder / run.resolve().name
    write_record(target, replace(record, config=_portable(record.config, f"{run}: config")))
    for split in dict.fromkeys([DEV, *(split for split in record.scores if split != TRAIN)]):
        rows = questions_folder(run, split) / QUESTIONS
        if rows.is_file():
            copy = questions_folder(target, split) / QUESTIONS
            write_with(copy, partial(shutil.copyfile, rows))
    _copy_attention(run, target)
    return target


def local(value: Any) -> Any:
    """Settings of a published record as this machine has them: the reverse of what ``publish`` makes of
    paths in the data folder."""
    if isinstance(value, dict):
        return {key: local(item) for key, item in value.items()}
    if isinstance(value, list):
        return [local(item) for item in value]
    if not isinstance(value, str):
        return value
    return sources.local(value)


def _copy_attention(run: Path, target: Path) -> None:
    file = run / ATTENTION
    if not file.is_file():
        return
    size = file.stat().st_size
    if size > MOST_ATTENTION:
        log.warning(
            "%s: %.1f MiB, left out (at most %d MiB are copied)", file, size / 2**20, MOST_ATTENTION // 2**20
        )
        return
    write_with(target / ATTENTION, partial(shutil.copyfile, file))


def _portable(value: Any, where: str) -> Any:
    if isinstance(value, dict):
        return {key: _portable(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list):
        return [_portable(item, where) for item in value]
    if not isinstance(value, str):
        return value
    try:
        return sources.portable(value)
    except DataError as error:
        raise RunError(f"{where}: {error}") from None
