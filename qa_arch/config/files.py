"""Writing files so that a reader never sees half of one."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
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


def write_with(path: str | os.PathLike[str], writer: Callable[[Path], Any]) -> Path:
    """Let ``writer`` fill a temporary file in the folder of ``path``, then rename it into place."""
    target = Path(path)
    temporary: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        os.close(handle)
        temporary = Path(name)
        writer(temporary)
        temporary.chmod(0o644)
        temporary.replace(target)
    except OSError as error:
        raise QaArchError(
            f"{target}: cannot be written ({error.strerror or error}); nothing was changed"
        ) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
    return target
