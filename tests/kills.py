"""Kill a process before each change it makes on disk, or when a file grows beyond a size."""

import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

STEPS = ("open", "os.mkdir", "os.rename", "os.remove", "os.chmod", "os.truncate", "os.link", "tests.fsync")
"""Audit events of changes on disk, except writes to an open file."""

Contents = dict[str, bytes]


def killed_at_each_step(work: Callable[[], Any], folder: Path) -> Iterator[int]:
    """Yield after each kill: the n-th child process dies right before its n-th change below ``folder``.

    Ends with the first child that survives.
    """
    for step in count(1):
        if _survives(work, lambda step=step: _kill_before(step, folder)):
            return
        yield step


def killed_at_sizes(work: Callable[[], Any], sizes: Sequence[int]) -> Iterator[int]:
    """Yield after each kill: a child process dies in the write that takes a file beyond one of ``sizes``.

    The kernel kills it, so writes of C libraries count too.
    """
    for size in sizes:
        assert not _survives(work, lambda size=size: _kill_beyond(size)), f"no file grew beyond {size} bytes"
        yield size


def contents(folder: Path) -> Contents:
    """Relative path -> content of every file below ``folder``."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def survivors(pids: Sequence[int], within: float = 10) -> list[int]:
    """Processes still alive after ``within`` seconds."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline and any(map(alive, pids)):
        time.sleep(0.02)
    return [pid for pid in pids if alive(pid)]


def check_recovery(
    kills: Iterator[object],
    folder: Path,
    work: Callable[[], Any],
    old: Contents | None = None,
    read: Callable[[Path], Contents] = contents,
) -> int:
    """Kill ``work`` over ``old`` files in ``folder`` (default none) and call it again; return the kill count.

    After each of ``kills`` every file must be old or new; after the second call all are new and nothing else
    is left. ``read`` may leave out what differs between calls, such as the time.
    """
    old = old or {}
    _restore(folder, old)
    work()
    new = read(folder)
    assert new
    assert not any(map(_is_temporary, new))
    _restore(folder, old)
    total = 0
    for total, kill in enumerate(kills, 1):  # noqa: B007 (returned)
        files = {name: data for name, data in read(folder).items() if not _is_temporary(name)}
        partial = [name for name, data in files.items() if data not in (old.get(name), new.get(name))]
        assert not partial, f"neither old nor new after kill {kill}"
        assert old.keys() <= files.keys(), f"a file is missing after kill {kill}"
        work()
        assert read(folder) == new, f"after kill {kill} and a second call"
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
    """Whether ``work`` survives in a child process after ``prepare``; it must succeed or be killed."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, 1)
            os.dup2(devnull, 2)
            prepare()
            work()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "it failed instead of being killed"
    return not os.WIFSIGNALED(status)


def _kill_before(step: int, folder: Path) -> None:
    steps = count(1)
    sync = os.fsync

    def kill(event: str, arguments: tuple[Any, ...]) -> None:
        if event in STEPS and _changes(event, arguments, str(folder)) and next(steps) == step:
            os.kill(os.getpid(), signal.SIGKILL)

    def fsync(descriptor: int) -> None:
        sys.audit("tests.fsync", str(folder))
        sync(descriptor)

    os.fsync = fsync
    sys.addaudithook(kill)


def _changes(event: str, arguments: tuple[Any, ...], folder: str) -> bool:
    if isinstance(arguments[0], int) or not os.fsdecode(arguments[0]).startswith(folder):
        return False
    if event != "open":
        return True
    return bool((arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def _kill_beyond(size: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
