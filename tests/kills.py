"""Kills a process at each of its steps on the disk, or where a file has grown to some size."""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

STEPS = ("open", "os.mkdir", "os.rename", "os.remove", "os.chmod", "os.truncate", "os.link", "tests.fsync")
"""Audit events of changes to the disk: all but what is written into an open file."""

Contents = dict[str, bytes]


def killed_at_each_step(work: Callable[[], Any], folder: Path) -> Iterator[int]:
    """Yield after each death: the n-th child process dies right before its n-th change below ``folder``.

    Ends with the first child that lives through all of them.
    """
    for step in count(1):
        if _survives(work, lambda step=step: _die_before(step, folder)):
            return
        yield step


def killed_at_sizes(work: Callable[[], Any], sizes: Sequence[int]) -> Iterator[int]:
    """Yield after each death: a child process dies in the write with which a file outgrows one of ``sizes``.

    The kernel kills it, so that writes of libraries in C count too.
    """
    for size in sizes:
        assert not _survives(work, lambda size=size: _die_beyond(size)), f"no file outgrew {size} bytes"
        yield size


def contents(folder: Path) -> Contents:
    """What is in each file below ``folder``, by its path from there."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def check_recovery(
    deaths: Iterator[object],
    folder: Path,
    work: Callable[[], Any],
    old: Contents | None = None,
    read: Callable[[Path], Contents] = contents,
) -> int:
    """``work`` is killed over ``old`` files in ``folder``, or in an empty one, and called again.

    After each of ``deaths`` a file must be the old or the new one, and after the second call all are new
    and nothing else is left. ``read`` may leave out what differs from call to call, such as the time.
    Returns the number of deaths.
    """
    old = old or {}
    _restore(folder, old)
    work()
    new = read(folder)
    assert new
    assert not any(map(_is_temporary, new))
    _restore(folder, old)
    total = 0
    for total, moment in enumerate(deaths, 1):  # noqa: B007 (returned)
        left = {name: data for name, data in read(folder).items() if not _is_temporary(name)}
        halves = [name for name, data in left.items() if data not in (old.get(name), new.get(name))]
        assert not halves, f"neither old nor new after death {moment}"
        assert old.keys() <= left.keys(), f"a file is missing after death {moment}"
        work()
        assert read(folder) == new, f"after death {moment} and a second call"
        _restore(folder, old)
    return total


def _is_temporary(name: str) -> bool:
    return any(part.startswith(".") for part in Path(name).parts)


def _restore(folder: Path, files: Contents) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def _survives(work: Callable[[], Any], prepare: Callable[[], None]) -> bool:
    """Whether ``work`` ends in a child process, begun with ``prepare``: it must succeed or be killed."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            silence = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silence, 1)
            os.dup2(silence, 2)
            prepare()
            work()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "it failed where it should have been killed"
    return not os.WIFSIGNALED(status)


def _die_before(step: int, folder: Path) -> None:
    steps = count(1)
    sync = os.fsync

    def die(event: str, arguments: tuple[Any, ...]) -> None:
        if event in STEPS and _changes(event, arguments, str(folder)) and next(steps) == step:
            os.kill(os.getpid(), signal.SIGKILL)

    def fsync(descriptor: int) -> None:
        sys.audit("tests.fsync", str(folder))
        sync(descriptor)

    os.fsync = fsync
    sys.addaudithook(die)


def _changes(event: str, arguments: tuple[Any, ...], folder: str) -> bool:
    if isinstance(arguments[0], int) or not os.fsdecode(arguments[0]).startswith(folder):
        return False
    if event != "open":
        return True
    return bool((arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def _die_beyond(size: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
