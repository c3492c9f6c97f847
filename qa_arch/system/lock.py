"""A lock on a folder that the kernel releases when the last process that holds it ends.

It is an flock on ``.lock`` in the folder. The file is there while the lock is held; where a process was
killed it stays behind and means nothing. Processes that are handed ``descriptors`` hold the lock too.
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
"""Seconds: a reader that looks who holds the lock has it for a moment itself."""
_held: set[int] = set()


@contextmanager
def hold(folder: Path, what: str) -> Iterator[None]:
    """Hold the folder's lock; RunError, naming the holder, where another process does.

    ``what`` names the folder's use in the message ("run", "sweep").
    """
    path = folder / LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = _acquire(path)
    except OSError as error:
        raise RunError(f"{folder}: cannot be written ({error.strerror or error})") from error
    if descriptor is None:
        raise RunError(f"{folder}: this {what} is in use by {holder(folder) or 'another process'}")
    _held.add(descriptor)
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield
    finally:
        path.unlink(missing_ok=True)
        _held.discard(descriptor)
        os.close(descriptor)


def holder(folder: Path) -> str | None:
    """Who holds the folder's lock, in words; None where nobody does."""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDONLY)
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
    """The locks that this process holds, for ``pass_fds`` of processes that belong to it."""
    return tuple(_held)


def _acquire(path: Path) -> int | None:
    until = time.monotonic() + PATIENCE
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            if time.monotonic() > until:
                return None
            time.sleep(0.02)
            continue
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        os.close(descriptor)  # its holder removed the file between our open and our lock
