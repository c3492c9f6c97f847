"""Rows given from Python instead of a file: ``memory:HASH`` names them while they are at hand.

They lie in a temporary folder, so that every process of a run reads the same.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from math import isnan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from qa_arch.data.files import Format, OnError, Use
from qa_arch.data.question_sets import build
from qa_arch.data.squad import questions_in
from qa_arch.errors import DataError
from qa_arch.process import gc_disabled
from qa_arch.types import QuestionSet

FOLDER = "QA_ARCH_MEMORY"
"""Environment variable with the folder of the rows, which the other processes of a run inherit."""
SPLITS = ("train", "calibration", "dev")


@contextmanager
def given(data: Any) -> Iterator[list[str]]:
    """Settings that name ``data`` within the block: the rows to train on, or split -> rows.

    Rows are a list of records, or a ``datasets.Dataset``. Raises DataError for anything else.
    """
    sets = data if isinstance(data, Mapping) else {"train": data}
    unknown = [split for split in sets if split not in SPLITS]
    if unknown or not sets:
        fault = f"{unknown[0]!r} is no set of a run" if unknown else "holds no set"
        raise DataError(
            f"data: {fault}; name {', '.join(SPLITS)}, such as data={{'train': rows, 'dev': rows}}"
        )
    outer = os.environ.get(FOLDER)
    with TemporaryDirectory(prefix="qa_arch-rows-") as folder:
        os.environ[FOLDER] = folder
        try:
            yield [f"data.{split}=memory:{_write(rows, split, Path(folder))}" for split, rows in sets.items()]
        finally:
            del os.environ[FOLDER]
            if outer is not None:
                os.environ[FOLDER] = outer


def _write(rows: Any, split: str, folder: Path) -> str:
    """Write the rows as JSON; returns the start of its hash, their name."""
    records = rows.to_list() if hasattr(rows, "to_list") else rows
    if not isinstance(records, list | tuple) or not records:
        kind = "is empty" if isinstance(records, list | tuple) else f"is of type {type(rows).__name__}"
        remedy = "give a list of records, or a datasets.Dataset"
        if hasattr(rows, "to_dict"):  # a data frame
            remedy += "; of a frame, to_dict('records')"
        raise DataError(f"data: {split} {kind}; {remedy}")
    content = json.dumps([_without_empty(record) for record in records], default=_plain).encode()
    name = sha256(content).hexdigest()[:16]
    (folder / name).write_bytes(content)
    return name


def _without_empty(record: Any) -> Any:
    """The record without the empty cells of a data frame, which are NaN, as in a CSV file."""
    if not isinstance(record, Mapping):
        return record
    return {k: v for k, v in record.items() if not (isinstance(v, float) and isnan(v))}


def _plain(value: Any) -> Any:
    """NumPy's numbers and arrays as JSON; other values as objects, which no field that is read may be."""
    return value.tolist() if hasattr(value, "tolist") else {type(value).__name__: str(value)}


def _files(source: str) -> tuple[Path]:
    path = Path(os.environ.get(FOLDER, os.devnull), source)
    if not path.is_file():
        raise DataError(
            f"memory:{source}: are rows that were given from Python and not kept; give them again"
            " (qa_arch.train(data=...)), or name a file of them"
        )
    return (path,)


@gc_disabled()
def _open(sources: Sequence[str], *, name: str, on_error: OnError, use: Use) -> QuestionSet:
    (path,) = _files(sources[0])
    place = f"{name or 'rows'} (memory:{sources[0]})"
    return build(name or place, [questions_in(json.loads(path.read_bytes()), place)], on_error, use)


MEMORY = Format("memory:HASH", "a set in memory", open=_open, files=_files, typed=False)
