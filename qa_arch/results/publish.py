"""Publish the committed part of a run, record and question rows, with machine paths shortened."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from qa_arch import records
from qa_arch.data import sources
from qa_arch.errors import DataError, RunError
from qa_arch.files import replacing_folder, write_atomic
from qa_arch.records import DEV, QUESTIONS, RECORD, TRAIN, RunRecord, questions_folder

log = logging.getLogger(__name__)
# Not after what precedes the slash of a relative path, a URL, a variable, ~ or an ellipsis.
_BEFORE = r"(?<![\w./}~$…])"
PATH = re.compile(rf"""(?:{_BEFORE}|(?<=file://))/(?:[^\s/:;,'"()]+/)*([^\s/:;,'"()]+/[^\s/:;,'"()]+)""")
"""An absolute path of two parts or more; the group is its last two."""


def publish(run: Path, folder: Path) -> Path:
    """Copy ``run`` to ``folder/<name of the run>`` and return that path; an earlier copy is replaced.

    Absolute paths in the config become relative to the data folder (``$QA_ARCH_DATA/...``) or the working
    folder; the config hash does not depend on them. Rows of the run's training questions are not copied:
    their scores are in the record. Raises RunError if the run is still running, its config has any other
    absolute path, or a copy of another run is in the way.
    """
    record = records.read_record(run)
    if record.status == "running":
        raise RunError(
            f"{run}: still running, or stopped without a trace; finish it first (--if-exists resume)"
        )
    target = folder / run.resolve().name
    config = map_texts(record.config, _portable, f"{run}: config")
    published = replace(record, config=config, error=shareable(record.error))
    rows = {split: questions_folder(run, split) / QUESTIONS for split in {DEV, *record.scores} - {TRAIN}}
    contents = {split: path.read_bytes() for split, path in rows.items() if path.is_file()}
    for split in contents:  # after they were read: the run may be scored again meanwhile
        records.require_rows(run, record, split)
    with records.changing(target, "published copy", replaced=True) as other:
        _require_same_run(target, run, record, other)
        with replacing_folder(target) as copy:
            records.write_record(copy, published)
            for split, content in contents.items():
                write_atomic(questions_folder(copy, split) / QUESTIONS, content)
    return target


def _require_same_run(target: Path, run: Path, record: RunRecord, other: RunRecord | None) -> None:
    """Raise RunError if ``target``, with the record ``other``, holds anything but a copy of ``run``, whose
    record is ``record``."""
    for path in sorted(target.rglob("*")):
        if path.is_file() and path.name not in (RECORD, QUESTIONS):
            raise RunError(
                f"{target}: holds {path.name}, which is not part of a published copy; publish elsewhere"
            )
    if other is not None and (other.run_hash, other.created) != (record.run_hash, record.created):
        theirs, ours = (f"config {r.run_hash[:8]}, created {r.created}" for r in (other, record))
        raise RunError(
            f"{target}: holds another run ({theirs}) than {run} ({ours}); publish into another folder, or"
            f" remove {target} first if {run} is to replace it"
        )


def local(value: Any) -> Any:
    """Settings of a published record with this machine's data folder: the inverse of ``publish``."""
    return map_texts(value, lambda text, _: sources.local(text))


def _portable(text: str, where: str) -> str:
    try:
        return sources.portable(text)
    except DataError as error:
        raise RunError(f"{where}: {error}") from None


def map_texts(value: Any, change: Callable[[str, str], str], where: str = "") -> Any:
    """Replace every string of ``value`` (JSON) by ``change(text, where)``; keys are appended to ``where``."""
    if isinstance(value, dict):
        return {key: map_texts(item, change, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list):
        return [map_texts(item, change, where) for item in value]
    return change(value, where) if isinstance(value, str) else value


def shareable(value: Any) -> Any:
    """Shorten every absolute path in the strings of ``value`` (JSON).

    Paths below the working folder become relative to it and can still be copied into a command; others keep
    their last two parts, after an ellipsis.
    """
    here = re.compile(f"{_BEFORE}{re.escape(str(Path.cwd()))}/")
    return map_texts(value, lambda text, _: PATH.sub(r"…/\1", here.sub("", text)))
