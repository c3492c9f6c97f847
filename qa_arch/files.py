"""Files that readers see complete or not at all, safe reading of JSON and YAML, and locks on folders.

A lock is released by the kernel when the last process that holds it ends.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import io
import json
import math
import os
import re
import secrets
import shutil
import socket
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from qa_arch.errors import ConfigError, DataError, QaArchError, RunError, one_line

DATA_FOLDER = "QA_ARCH_DATA"
"""Environment variable that names the folder of data sets and word vectors; default ``data``."""
UNFINISHED = ".unfinished"
"""Suffix of temporary files and folders; one without a lock was left by a killed process."""
REPLACED = f".replaced{UNFINISHED}"
"""Suffix of an old folder, which is removed as soon as the new one is in its place."""
REPEAT = "free space or correct the permissions, then repeat or resume"
MAX_JSON_BYTES = 2**28
"""Largest file that ``read_json`` reads."""
MAX_YAML_BYTES = 2**20
"""Largest file that ``read_yaml`` reads."""
REPEATED = "its aliases repeat too many values"
LONG_NUMBER = "a number with more than 4300 digits"
MAX_RATIO = 100
"""Largest ratio of content to gzip file that ``read_unpacked`` reads beyond ``MAX_JSON_BYTES``."""
MAX_JSON_DEPTH = 64
"""Deepest nesting that ``parse_json`` accepts, so that recursion over its values is bounded."""


def file_stem(name: str) -> str:
    """Make the name of a data set a file name."""
    return re.sub(r"[^\w.+-]", "_", name).strip(".") or "set"


def data_folder() -> str:
    return os.environ.get(DATA_FOLDER) or "data"  # an empty one would be the root of the file system


def user_path(path: str | os.PathLike[str]) -> Path:
    """Path with ``~`` expanded; unchanged if it names an unknown user."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 (Path's method raises RuntimeError)


def write_atomic(path: str | os.PathLike[str], content: str | bytes) -> Path:
    """Write ``content`` to a temporary file, then rename it to ``path``; creates the folder.

    Raises QaArchError that names the file if the disk is full or the folder is not writable.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    with replacing(path) as temporary:
        temporary.write_bytes(data)
    return Path(path)


def write_json(path: str | os.PathLike[str], value: Any, indent: int | None = 2) -> Path:
    """Write ``value`` as UTF-8 JSON, atomically."""
    return write_atomic(path, json_text(value, indent))


def json_text(value: Any, indent: int | None = 2) -> str:
    """Content of the file that ``write_json`` writes."""
    return json.dumps(value, ensure_ascii=False, indent=indent) + "\n"


def finite(value: Any) -> Any:
    """Value for JSON, which has neither NaN nor infinity: both become None."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def plain_json(value: Any, indent: int | None = 2) -> str:
    """``finite(value)`` as JSON, which any program reads."""
    return json.dumps(finite(value), ensure_ascii=False, indent=indent, allow_nan=False)


def read_json(path: str | os.PathLike[str], remedy: str) -> Any:
    """Read a JSON file from an untrusted source; used for all JSON files except data sets.

    Raises RunError, ending with ``remedy``, if the file cannot be read or parsed (see ``parse_json``).
    """
    try:
        return parse_json(_read_limited(Path(path), MAX_JSON_BYTES))
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: cannot be read ({error}); {remedy}") from error


def read_yaml(path: Path) -> Any:
    """Read a YAML file of plain values, limited like those of ``parse_json``, and without repeated keys.

    Raises DataError if the file cannot be read, ConfigError if it is not YAML.
    """
    import yaml  # type: ignore[import-untyped]  # slow to import

    try:
        text = _read_limited(path, MAX_YAML_BYTES)
        most = left = max(len(text), 10_000)  # a short file may repeat its values by aliases

        class Loader(yaml.SafeLoader):
            """Refuses a key that a mapping has twice, of which the first would be lost; and limits what merge
            keys (``<<``) copy, before all of it is read."""

            def compose_mapping_node(self, anchor: Any) -> Any:
                node, seen = super().compose_mapping_node(anchor), set()
                for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
                    if (key.tag, key.value) in seen and not key.tag.endswith(":merge"):
                        problem = f"{key.value[:60]!r} is given twice"
                        raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
                    seen.add((key.tag, key.value))
                return node

            def flatten_mapping(self, node: Any) -> None:
                nonlocal left
                super().flatten_mapping(node)
                left -= len(node.value)
                if left < 0:
                    raise ValueError(REPEATED)

        value = yaml.load(text, Loader)
        _require_plain(value, most)
        return value
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    except Exception as error:  # the constructors of tagged values raise anything
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        reason = f"{place}{getattr(error, 'problem', None) or _reason(error)}"
        raise ConfigError(f"{path}: is not valid YAML: {reason}; correct it") from error


def _read_limited(path: Path, most: int) -> str:
    """Text of a file; raises ValueError if it is larger than ``most`` bytes or not a file."""
    info = path.stat()
    if not stat.S_ISREG(info.st_mode):  # reading a pipe could wait for ever
        raise ValueError("not a regular file")
    if info.st_size > most:
        raise ValueError(f"{info.st_size >> 20} MiB, more than {most >> 20}")
    return path.read_text(encoding="utf-8")


def _reason(error: Exception) -> str:
    """One line; for a long integer without the advice to change Python's settings."""
    return LONG_NUMBER if "set_int_max_str_digits" in str(error) else one_line(error)


def loads(text: str | bytes, **options: Any) -> Any:
    """``json.loads`` with an error for a long integer that does not advise to change Python's settings."""
    try:
        return json.loads(text, **options)
    except ValueError as error:
        if _reason(error) == LONG_NUMBER:
            raise ValueError(LONG_NUMBER) from None
        raise


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """``object_pairs_hook``: raises ValueError for a key that occurs twice, as only the last would count."""
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"{next(key for key in values if keys.count(key) > 1)!r} occurs twice")
    return values


def parse_json(text: str | bytes, **options: Any) -> Any:
    """Parse JSON; raises ValueError if it is invalid, nested deeper than ``MAX_JSON_DEPTH``, or has a lone
    surrogate or an integer too large for a float."""
    try:
        value = loads(text, **options)
    except RecursionError as error:
        raise ValueError(str(error)) from None
    _require_plain(value, len(text))
    return value


def _require_plain(value: Any, most: int) -> None:
    """Raise ValueError for values that ``parse_json`` refuses, and for more than ``most`` at one depth, which
    only repeated aliases make of a text of that length."""
    try:
        level = [value]
        for _ in range(MAX_JSON_DEPTH):
            for item in level:
                if isinstance(item, str):
                    item.encode()  # raises for a lone surrogate
                elif isinstance(item, int):
                    float(item)  # raises for an integer beyond all floats
            mappings = [item for item in level if isinstance(item, dict)]
            lists = [item for item in level if isinstance(item, list)]
            if sum(map(len, lists)) + 2 * sum(map(len, mappings)) > most:
                raise ValueError(REPEATED)
            level = [*chain(*mappings, *(item.values() for item in mappings), *lists)]
            if not level:
                return
    except OverflowError as error:
        raise ValueError(str(error)) from None
    raise ValueError(f"nested more than {MAX_JSON_DEPTH} deep")


@contextmanager
def json_items(path: str | os.PathLike[str]) -> Iterator[Callable[[str, Any], None]]:
    """Write a JSON object item by item with the yielded ``add(key, value)``, one item per line.

    Each key may be added only once. The file appears when the block ends without an error.
    """
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        separators = chain(["{\n"], repeat(",\n"))
        encode = json.JSONEncoder(ensure_ascii=False).encode

        def add(key: str, value: Any) -> None:
            file.write(f"{next(separators)}{encode(key)}: {encode(value)}")

        yield add
        file.write("{}\n" if next(separators) == "{\n" else "\n}\n")


def read_unpacked(path: str | os.PathLike[str]) -> bytes:
    """Content of a file, plain or gzip. Raises OSError, EOFError or zlib.error."""
    data = Path(path).read_bytes()
    if not data.startswith(b"\x1f\x8b"):
        return data
    room, parts = max(MAX_JSON_BYTES, MAX_RATIO * len(data)), []
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
        while part := file.read(2**20):  # in parts: a tiny file may unpack to any size
            parts.append(part)
            if (room := room - len(part)) < 0:
                raise OSError(f"it unpacks to over {MAX_JSON_BYTES >> 20} MiB and {MAX_RATIO} times its size")
    return b"".join(parts)


def file_hash(path: Path) -> str:
    """Hex SHA-256 of the content of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_hash(folder: Path, files: Iterable[Path]) -> str:
    """Hex SHA-256 of the contents of ``files`` and their paths relative to ``folder``."""
    total = hashlib.sha256()
    for path in sorted(files):
        total.update(f"{path.relative_to(folder).as_posix()} {file_hash(path)}\n".encode())
    return total.hexdigest()


@contextmanager
def replacing(path: str | os.PathLike[str], *, parents: bool = True) -> Iterator[Path]:
    """Yield a temporary file that is renamed to ``path`` at the end of the block, or removed on an error.

    A symbolic link stays, and the file it names is replaced. A device or pipe is yielded itself. Without
    ``parents`` the folder must exist.
    """
    target = Path(path)
    with _named_errors(target):
        if target.exists() and not (target.is_file() or target.is_dir()):
            yield target
            return
        if target.is_symlink():
            target = Path(os.path.realpath(target))
        with _temporary(target, parents=parents) as (temporary, descriptor):
            yield temporary
            # Reopened, because safetensors replaces it with a file that only its owner can read.
            with temporary.open("rb") as file:
                os.fchmod(file.fileno(), stat.S_IMODE(os.fstat(descriptor).st_mode))
                os.fsync(file.fileno())  # else the rename may survive a power cut without the content
            temporary.replace(target)


@contextmanager
def replacing_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary folder that replaces ``path`` at the end of the block, or is removed on an error.

    Raises QaArchError as ``write_atomic`` does, and then leaves ``path`` unchanged.
    """
    target = Path(path)
    with _named_errors(target), _temporary(target, folder=True) as (temporary, _):
        yield temporary
        for weights in temporary.rglob("*.safetensors"):  # which ignores the umask
            weights.chmod(temporary.stat().st_mode & 0o666)
        _exchange(temporary, target)


def is_unfinished(path: Path) -> bool:
    """Whether ``path`` is a temporary: being written, or left by a killed process."""
    return path.name.endswith(UNFINISHED)


def remove(path: Path) -> None:
    """Remove a file or a folder tree; of a symbolic link, only the link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


@contextmanager
def _temporary(target: Path, *, folder: bool = False, parents: bool = True) -> Iterator[tuple[Path, int]]:
    """Yield path and descriptor of a new, locked file or folder beside ``target``, which is removed at the
    end of the block unless it was renamed."""
    if not target.name:  # "." or "/"
        raise QaArchError(f"{target}: cannot be replaced; give a name in it")
    if parents:
        target.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(target.parent)
    path, descriptor = _create_locked(target, folder=folder)
    try:
        yield path, descriptor
    finally:
        with suppress(FileNotFoundError):
            remove(path)
        os.close(descriptor)


@contextmanager
def _named_errors(target: Path) -> Iterator[None]:
    """Raise QaArchError that names ``target`` for an error of the operating system."""
    try:
        yield
    except Exception as error:
        # torch.save raises a RuntimeError over the OSError, tokenizers and safetensors their own exceptions.
        is_from_torch = type(error) is RuntimeError and isinstance(error.__context__, OSError)
        cause = error.__context__ if is_from_torch else error
        if isinstance(error, QaArchError) or not (isinstance(cause, OSError) or "(os error " in str(error)):
            raise
        reason = getattr(cause, "strerror", None) or cause
        raise QaArchError(f"{target}: cannot be written ({reason}) and was not changed; {REPEAT}") from error


def _create_locked(target: Path, *, folder: bool) -> tuple[Path, int]:
    while True:
        path = target.with_name(f".{target.name}.{secrets.token_hex(4)}{UNFINISHED}")
        # Not with ``tempfile``, which ignores the umask.
        if folder:
            path.mkdir()
        try:
            descriptor = os.open(path, os.O_RDONLY if folder else os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        except FileNotFoundError:
            if not folder:
                raise  # the parent folder is gone
            continue  # removed by another writer, as below
        with suppress(OSError):  # without file locks nothing is removed as abandoned
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if path.exists():
            return path, descriptor
        os.close(descriptor)  # another writer removed it as abandoned before it was locked


def _exchange(temporary: Path, target: Path) -> None:
    """Rename ``temporary`` to ``target``, replacing an existing folder, which is restored if that fails.

    Between the two renames ``target`` does not exist. After a kill at that moment, the next write in the
    parent folder restores the old folder.
    """
    if not target.exists():
        temporary.rename(target)
        return
    old = temporary.with_name(f"{temporary.name.removesuffix(UNFINISHED)}{REPLACED}")
    # Locked here, and so under its next name: another writer would restore it as abandoned.
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
        shutil.rmtree(old, ignore_errors=True)  # the next write removes what stays
    finally:
        os.close(descriptor)


def _remove_abandoned(folder: Path) -> None:
    """Remove temporaries of killed writers; those being written are locked."""
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


LOCK = ".lock"
PATIENCE = 1.0
"""Seconds to retry, because ``holder`` briefly takes the lock itself."""
_descriptors: set[int] = set()


@contextmanager
def hold(folder: Path, what: str, *, file: str = "", patience: float = PATIENCE) -> Iterator[None]:
    """Hold the lock of the folder; raises RunError, naming the holder, if another process has it for
    ``patience`` seconds.

    ``what`` describes the folder in the message ("run", "sweep"). With ``file`` the lock is not on the folder
    but on this name in it. After an error in the block, a new folder that is still empty is removed.
    """
    name = f".{file}.lock" if file else LOCK
    path, existed = folder / name, folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = _acquire(path, patience)
    except OSError as error:
        raise RunError(f"{folder}: cannot be written ({error.strerror or error})") from error
    if descriptor is None:
        owner = holder(folder, name) or "another process"
        raise RunError(f"{folder / file}: this {what} is in use by {owner}")
    _descriptors.add(descriptor)
    abandoned, failed = not file and os.fstat(descriptor).st_size > 0, True
    try:
        with suppress(OSError):  # a full disk: the lock is held without a description of its holder
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield
        failed = False
    finally:
        # A killed process's file tells that it was killed, until the work is done. After the folder was
        # renamed, another run's file may be in the place of ours.
        if not (failed and abandoned) and _is_at(path, descriptor):
            path.unlink()
        _descriptors.discard(descriptor)
        os.close(descriptor)
        if failed and not existed:
            with suppress(OSError):
                folder.rmdir()


def holder(folder: Path, name: str = LOCK) -> str | None:
    """Description of the process that holds the lock of the folder; None if it is free."""
    try:
        descriptor = os.open(folder / name, os.O_RDONLY | os.O_NONBLOCK)  # a pipe has no holder
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.read(descriptor, 200).decode(errors="replace") or "another process"
    finally:
        os.close(descriptor)
    return None


def descriptors() -> tuple[int, ...]:
    """File descriptors of the locks that this process holds, for ``pass_fds`` of its children."""
    return tuple(_descriptors)


def _acquire(path: Path, patience: float) -> int | None:
    deadline = time.monotonic() + patience
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            if time.monotonic() > deadline:
                return None
            time.sleep(0.02)
            continue
        if _is_at(path, descriptor):
            return descriptor
        os.close(descriptor)  # its holder removed the file between our open and our lock


def _is_at(path: Path, descriptor: int) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False
