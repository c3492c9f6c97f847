"""Atomic writing of files: a reader sees a whole file or none.

A killed process cannot remove its temporary file. The next write in the same folder does: the writer of a
temporary file holds an flock on it, which the kernel releases when the process ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from qa_arch.errors import QaArchError

UNFINISHED = ".unfinished"
"""Ending of temporary files: what no process holds a lock on was left by one that was killed."""


def write_atomic(path: str | os.PathLike[str], content: str | bytes) -> Path:
    """Write ``content`` to a temporary file, then rename it to ``path``; creates the folder.

    Raises QaArchError that names the file if the disk is full or the folder is not writable.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    return write_with(path, lambda temporary: temporary.write_bytes(data))


def write_json(path: str | os.PathLike[str], value: Any, indent: int | None = 2) -> Path:
    """``value`` as UTF-8 JSON, written atomically."""
    return write_atomic(path, json_text(value, indent))


def json_text(value: Any, indent: int | None = 2) -> str:
    """The content of the file that ``write_json`` writes."""
    return json.dumps(value, ensure_ascii=False, indent=indent) + "\n"


@contextmanager
def json_items(path: str | os.PathLike[str]) -> Iterator[Callable[[str, Any], None]]:
    """Write a JSON object item by item with the yielded ``add(key, value)``, one item per line.

    Each key may be added once. The file appears when the block ends without an error.
    """
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        separators = chain(["{\n"], repeat(",\n"))

        def add(key: str, value: Any) -> None:
            file.write(f"{next(separators)}{_json(key)}: {_json(value)}")

        yield add
        file.write("{}\n" if next(separators) == "{\n" else "\n}\n")


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def write_with(path: str | os.PathLike[str], writer: Callable[[Path], Any]) -> Path:
    """Let ``writer`` fill a temporary file, then rename it to ``path``."""
    with replacing(path) as temporary:
        writer(temporary)
    return Path(path)


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary file that is renamed to ``path`` at the end of the block, or removed on an error."""
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(target.parent)
        with _locked_temporary(target) as (temporary, descriptor):
            yield temporary
            os.fsync(descriptor)  # else the rename may survive a power cut without the content
            temporary.chmod(0o644)
            temporary.replace(target)
    except OSError as error:
        raise QaArchError(
            f"{target}: cannot be written ({error.strerror or error}); nothing was changed"
        ) from error


@contextmanager
def replacing_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary folder that takes the place of ``path`` at the end of the block, or is removed on an
    error."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield temporary
        temporary.chmod(0o755)
        if target.exists():
            shutil.rmtree(target)
        temporary.replace(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def is_unfinished(path: Path) -> bool:
    """Whether ``path`` is a temporary file: one that is being written, or was left by a killed process."""
    return path.name.endswith(UNFINISHED)


@contextmanager
def _locked_temporary(target: Path) -> Iterator[tuple[Path, int]]:
    """Path and descriptor of a new file beside ``target``, locked; removed at the end of the block."""
    path, descriptor = _create_locked(target)
    try:
        yield path, descriptor
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _create_locked(target: Path) -> tuple[Path, int]:
    while True:
        descriptor, name = tempfile.mkstemp(UNFINISHED, f".{target.name}.", target.parent)
        with suppress(OSError):  # on a file system without locks nothing is taken for abandoned
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return Path(name), descriptor
        os.close(descriptor)  # another writer took it for abandoned before it was locked


def _remove_abandoned(folder: Path) -> None:
    """Remove temporary files of writers that were killed; those that are being written are locked."""
    for path in folder.glob(f".*{UNFINISHED}"):
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(descriptor)
