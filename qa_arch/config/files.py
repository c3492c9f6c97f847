"""Writing files so that a reader never sees half of one."""

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
    """Write ``content`` beside ``path``, then rename it into place; creates the folder.

    Raises QaArchError, naming the file, where the disk is full or the folder cannot be written.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    return write_with(path, lambda temporary: temporary.write_bytes(data))


def write_json(path: str | os.PathLike[str], value: Any, indent: int | None = 2) -> Path:
    """``value`` as UTF-8 JSON, written atomically."""
    return write_atomic(path, json.dumps(value, ensure_ascii=False, indent=indent) + "\n")


@contextmanager
def json_items(path: str | os.PathLike[str]) -> Iterator[Callable[[str, Any], None]]:
    """Yields ``add(key, value)``, which writes an item of the JSON object at once, one a line.

    Each key may be added once. The file is there when the block has ended without an error.
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
    """Let ``writer`` fill a temporary file in the folder of ``path``, then rename it into place."""
    with replacing(path) as temporary:
        writer(temporary)
    return Path(path)


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a temporary file in the folder of ``path``, which takes its place at the end, or is removed."""
    target = Path(path)
    temporary: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        os.close(handle)
        temporary = Path(name)
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())  # else the new name may survive a power cut without it
        temporary.chmod(0o644)
        temporary.replace(target)
    except OSError as error:
        raise QaArchError(
            f"{target}: cannot be written ({error.strerror or error}); nothing was changed"
        ) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
