"""Publishing the committed part of a run, record and question rows, and shortening paths of the machine."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from qa_arch.config.files import replacing_folder
from qa_arch.data import sources
from qa_arch.errors import DataError, RunError
from qa_arch.records import (
    DEV,
    QUESTIONS,
    RECORD,
    TRAIN,
    RunRecord,
    questions_folder,
    read_record,
    write_record,
)

log = logging.getLogger(__name__)
PATH = re.compile(r"""(?<![\w./}~$…])/(?:[^\s/:;,'"()]+/)*([^\s/:;,'"()]+/[^\s/:;,'"()]+)""")
"""An absolute path of two parts or more; its last two are the group."""


def publish(run: Path, folder: Path) -> Path:
    """Copy ``run`` into ``folder/<name of the run>`` and return that; a former copy of it is replaced.

    Absolute paths of the config keep what stands below the data folder (``$QA_ARCH_DATA/...``) or the
    working folder; the config hash does not depend on them. Rows of the run's own training questions stay
    behind: their scores are in the record. Raises RunError for a run that is still running or whose config
    holds any other absolute path, and where the copy of another run is in the way.
    """
    record = read_record(run)
    if record.status == "running":
        raise RunError(
            f"{run}: still running, or stopped without notice; finish it first (--if-exists resume)"
        )
    target = folder / run.resolve().name
    _require_same_run(target, run, record)
    config = map_texts(record.config, _portable, f"{run}: config")
    published = replace(record, config=config, error=shareable(record.error))
    with replacing_folder(target) as copy:
        write_record(copy, published)
        for split in dict.fromkeys([DEV, *(split for split in record.scores if split != TRAIN)]):
            rows = questions_folder(run, split) / QUESTIONS
            if rows.is_file():
                place = questions_folder(copy, split)
                place.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(rows, place / QUESTIONS)
    return target


def _require_same_run(target: Path, run: Path, record: RunRecord) -> None:
    """Raise RunError where ``target`` holds anything but a copy of ``run``, whose ``record`` is given."""
    for path in sorted(target.rglob("*")):
        if path.is_file() and path.name not in (RECORD, QUESTIONS):
            raise RunError(f"{target}: holds {path.name}, which no published copy has; publish elsewhere")
    if not (target / RECORD).is_file():
        return
    other = read_record(target)
    if (other.config_hash, other.created) != (record.config_hash, record.created):
        theirs, ours = (f"config {r.config_hash[:8]}, created {r.created}" for r in (other, record))
        raise RunError(
            f"{target}: holds another run ({theirs}) than {run} ({ours}); publish into another folder, or"
            f" remove {target} first if {run} is to replace it"
        )


def local(value: Any) -> Any:
    """Settings of a published record as this machine has them: the reverse of what ``publish`` makes of
    paths in the data folder."""
    return map_texts(value, lambda text, _: sources.local(text))


def _portable(text: str, where: str) -> str:
    try:
        return sources.portable(text)
    except DataError as error:
        raise RunError(f"{where}: {error}") from None


def map_texts(value: Any, change: Callable[[str, str], str], where: str = "") -> Any:
    """``value`` (JSON) with ``change(text, where)`` for every text; ``where`` goes on with its keys."""
    if isinstance(value, dict):
        return {key: map_texts(item, change, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list):
        return [map_texts(item, change, where) for item in value]
    return change(value, where) if isinstance(value, str) else value


def shareable(value: Any) -> Any:
    """``value`` (JSON) with every absolute path in its texts shortened.

    A path below the working folder goes on from there and can still be copied into a command; of any other
    the last two parts are left, behind an ellipsis.
    """
    working_folder = f"{Path.cwd()}/"
    return map_texts(value, lambda text, _: PATH.sub(r"…/\1", text.replace(working_folder, "")))
