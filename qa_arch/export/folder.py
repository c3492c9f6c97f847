"""The folder of an export: written whole under another name, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qa_arch.config.files import replacing_folder
from qa_arch.errors import RunError


@contextmanager
def new_folder(path: str | Path, *, replaces: str | None = None) -> Iterator[Path]:
    """Yield a temporary folder that becomes ``path`` at the end of the block, or is removed on an error.

    RunError where ``path`` holds anything, unless the file ``replaces`` is in it; QaArchError where it cannot
    be written.
    """
    target = Path(path)
    replaced = replaces is not None and (target / replaces).is_file()
    if target.is_file() or (target.is_dir() and any(target.iterdir()) and not replaced):
        raise RunError(f"{target}: is in the way; name a new folder, or remove it first")
    with replacing_folder(target) as temporary:
        yield temporary


def sizes(folder: Path) -> dict[str, int]:
    """Bytes of each file of ``folder``, and of each folder in it, the largest first."""
    items = {
        item.name: sum(file.stat().st_size for file in item.rglob("*") if file.is_file())
        if item.is_dir()
        else item.stat().st_size
        for item in folder.iterdir()
    }
    return dict(sorted(items.items(), key=lambda item: -item[1]))
