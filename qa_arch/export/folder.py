"""The folder of an export: written whole under another name, or not at all."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qa_arch.errors import QaArchError, RunError


@contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes ``path`` at the end of the block, or is removed on an error.

    RunError where ``path`` holds anything, QaArchError where it cannot be written.
    """
    target = Path(path)
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise RunError(f"{target}: is in the way; name a new folder, or remove it first")
    temporary: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        yield temporary
        temporary.chmod(0o755)
        temporary.replace(target)
    except OSError as error:
        raise QaArchError(
            f"{target}: cannot be written ({error.strerror or error}); nothing was changed"
        ) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def sizes(folder: Path) -> dict[str, int]:
    """Bytes of each file of ``folder``, and of each folder in it, the largest first."""
    items = {
        item.name: sum(file.stat().st_size for file in item.rglob("*") if file.is_file())
        if item.is_dir()
        else item.stat().st_size
        for item in folder.iterdir()
    }
    return dict(sorted(items.items(), key=lambda item: -item[1]))
