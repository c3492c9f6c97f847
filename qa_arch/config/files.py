"""Atomic writing of files: a reader sees a whole file or none."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from qa_arch.errors import QaArchError


def write_atomic(path: str | os.PathLike[str], content: str | bytes) -> Path:
    """Write ``content`` to a temporary file, then rename it to ``path``; creates the folder.

    Raises QaArchError that names the file if the disk is full or the folder is not writable.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    return write_with(path, lambda temporary: temporary.write_bytes(data))


def write_json(path: str | os.PathLike[str], value: Any, indent: int | None = 2) -> Path:
    """``value`` as UTF-8 JSON, written atomically."""
    return write_atomic(path, json.dumps(value, ensure_ascii=False, indent=indent) + "\n")


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
    temporary: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        os.close(handle)
        temporary = Path(name)
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())  # else the rename may survive a power cut without the content
        temporary.chmod(0o644)
        temporary.replace(target)
    except OSError as error:
        raise QaArchError(
            f"{target}: cannot be written ({error.strerror or error}); nothing was changed"
        ) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
