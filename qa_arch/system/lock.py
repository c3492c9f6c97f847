"""Lock on a folder, released by the kernel when the last process that holds it ends.

It is an flock on ``.lock`` in the folder. The file exists while the lock is held; a killed process leaves the
file behind, without effect. Child processes that inherit ``descriptors`` hold the lock too.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from qa_arch.errors import RunError

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
