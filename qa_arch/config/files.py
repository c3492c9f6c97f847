"""Atomic writing of files and folders, where a reader sees a whole one or none, and the reading of JSON.

A killed process cannot remove its temporary file or folder. The next write in the same folder does: the
writer of a temporary holds an flock on it, which the kernel releases when the process ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from qa_arch.errors import ConfigError, DataError, QaArchError, RunError

UNFINISHED = ".unfinished"
"""Ending of temporary files and folders: what no process holds a lock on was left by one that was killed."""
REPLACED = f".replaced{UNFINISHED}"
"""Ending of a folder that is about to be removed, once another one is in its place."""
LARGEST_JSON = 2**28
"""Bytes of a file that ``read_json`` reads."""
DEEPEST_JSON = 64
"""Levels of the values that it gives: what walks over them recursively has an end."""


def file_stem(name: str) -> str:
    """The name of a data set as that of a file or folder."""
    return re.sub(r"[^\w.+-]", "_", name).strip(".") or "set"


def write_atomic(path: str | os.PathLike[str], content: str | bytes) -> Path:
    """Write ``content`` to a temporary file, then rename it to ``path``; creates the folder.

    Raises QaArchError that names the file if the disk is full or the folder is not writable.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    with replacing(path) as temporary:
        temporary.write_bytes(data)
    return Path(path)


def write_json(path: str | os.PathLike[str], value: Any, indent: int | None = 2) -> Path:
    """``value`` as UTF-8 JSON, written atomically."""
    return write_atomic(path, json_text(value, indent))


def json_text(value: Any, indent: int | None = 2) -> str:
    """The content of the file that ``write_json`` writes."""
    return json.dumps(value, ensure_ascii=False, indent=indent) + "\n"


def read_json(path: str | os.PathLike[str], remedy: str) -> Any:
    """The value in a JSON file that anybody may have written; all files but data sets are read by it.

    Raises RunError, which ends with ``remedy``, for what is not readable: see ``parse_json``.
    """
    try:
        if (size := Path(path).stat().st_size) > LARGEST_JSON:
            raise ValueError(f"{size >> 20} MiB, more than {LARGEST_JSON >> 20}")
        return parse_json(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: cannot be read ({error}); {remedy}") from error


def read_yaml(path: Path) -> Any:
    """The value in a YAML file of a user's: plain values, no objects.

    Raises DataError for a file that cannot be read, ConfigError for one that is no YAML.
    """
    import yaml  # type: ignore[import-untyped]  # slow for what reads none

    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read, as it is no YAML: {error}") from error


def parse_json(text: str | bytes) -> Any:
    """The value of ``text``; ValueError where that is no JSON, is nested more than ``DEEPEST_JSON`` deep, or
    holds half a surrogate pair or a whole number that no float can hold."""
    try:
        value = json.loads(text)
        level = [value]
        for _ in range(DEEPEST_JSON):
            for item in level:
                if isinstance(item, str):
                    item.encode()
                elif isinstance(item, int):
                    float(item)
            mappings = [item for item in level if isinstance(item, dict)]
            lists = [item for item in level if isinstance(item, list)]
            level = [*chain(*mappings, *(item.values() for item in mappings), *lists)]
            if not level:
                return value
    except (RecursionError, OverflowError) as error:
        raise ValueError(str(error)) from None
    raise ValueError(f"nested more than {DEEPEST_JSON} deep")


@contextmanager
def json_items(path: str | os.PathLike[str]) -> Iterator[Callable[[str, Any], None]]:
    """Write a JSON object item by item with the yielded ``add(key, value)``, one item per line.

    Each key may be added once. The file appears when the block ends without an error.
    """
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        separators = chain(["{\n"], repeat(",\n"))
        encode = json.JSONEncoder(ensure_ascii=False).encode

        def add(key: str, value: Any) -> None:
            file.write(f"{next(separators)}{encode(key)}: {encode(value)}")

        yield add
        file.write("{}\n" if next(separators) == "{\n" else "\n}\n")


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary file that is renamed to ``path`` at the end of the block, or removed on an error."""
    target = Path(path)
    with _temporary(target) as (temporary, descriptor):
        yield temporary
        os.fsync(descriptor)  # else the rename may survive a power cut without the content
        temporary.replace(target)


@contextmanager
def replacing_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary folder that takes the place of ``path`` at the end of the block, or is removed on an
    error.

    Raises QaArchError as ``write_atomic`` does; then ``path`` is what it was before.
    """
    target = Path(path)
    with _temporary(target, folder=True) as (temporary, _):
        yield temporary
        _exchange(temporary, target)


def is_unfinished(path: Path) -> bool:
    """Whether ``path`` is temporary: it is being written, or was left by a killed process."""
    return path.name.endswith(UNFINISHED)


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that is in it; of a symbolic link the link alone."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def empty_folder(folder: Path, keep: Collection[str]) -> None:
    """Remove all that is in ``folder`` except for what has a name of ``keep``."""
    for path in folder.iterdir():
        if path.name not in keep:
            remove(path)


@contextmanager
def _temporary(target: Path, *, folder: bool = False) -> Iterator[tuple[Path, int]]:
    """Path and descriptor of a new file or folder beside ``target``, locked; removed at the end of the block,
    unless it was renamed there."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(target.parent)
        path, descriptor = _create_locked(target, folder=folder)
        try:
            yield path, descriptor
        finally:
            with suppress(FileNotFoundError):
                remove(path)
            os.close(descriptor)
    except OSError as error:
        raise QaArchError(
            f"{target}: cannot be written ({error.strerror or error}); nothing was changed"
        ) from error
    except Exception as error:
        # So Rust's libraries say it (tokenizers, safetensors), in an error of their own class.
        if isinstance(error, QaArchError) or "(os error " not in str(error):
            raise
        raise QaArchError(f"{target}: cannot be written ({error}); nothing was changed") from error


def _create_locked(target: Path, *, folder: bool) -> tuple[Path, int]:
    while True:
        path = target.with_name(f".{target.name}.{secrets.token_hex(4)}{UNFINISHED}")
        # Not by ``tempfile``, whose files and folders have a mode of their own in place of the umask's.
        if folder:
            path.mkdir()
        try:
            descriptor = os.open(path, os.O_RDONLY if folder else os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        except FileNotFoundError:  # as below
            continue
        with suppress(OSError):  # on a file system without locks nothing is taken for abandoned
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if path.exists():
            return path, descriptor
        os.close(descriptor)  # another writer took it for abandoned before it was locked


def _exchange(temporary: Path, target: Path) -> None:
    """Rename ``temporary`` to ``target``, a folder or nothing; what was there comes back where that fails.

    Between the two renames nothing is there. After a kill at that moment the next write beside it puts the
    old folder back.
    """
    if not target.exists():
        temporary.rename(target)
        return
    old = temporary.with_name(f"{temporary.name.removesuffix(UNFINISHED)}{REPLACED}")
    descriptor = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        target.rename(old)
        try:
            temporary.rename(target)
        except BaseException:
            old.rename(target)
            raise
        shutil.rmtree(old, ignore_errors=True)
    finally:
        os.close(descriptor)


def _remove_abandoned(folder: Path) -> None:
    """Clear away temporaries of writers that were killed; those that are being written are locked."""
    for path in folder.glob(f".*{UNFINISHED}"):
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                target = path.with_name(path.name[1:].removesuffix(REPLACED).rpartition(".")[0])
                if path.name.endswith(REPLACED) and not target.exists():
                    path.rename(target)
                else:
                    remove(path)
            finally:
                os.close(descriptor)
