"""The other processes of a run on several devices, each started from the record in the run folder.

Lightning would start them by repeating the command line, which prepares, refuses or replaces the
run folder a second time and does nothing for a caller without a command line.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist

from qa_arch.config.launched import launched
from qa_arch.config.schema import Config, Trainer, validate
from qa_arch.records import Status, read_record, write_record
from qa_arch.system import lifeline, lock
from qa_arch.tasks import task_of
from qa_arch.training import devices
from qa_arch.training.loop import fit

INTERRUPTED = 130
"""Exit code of a rank that stopped with the run, after Ctrl-C."""
PATIENCE = 300.0
"""Seconds that the other ranks have to end once rank 0 has; a busy machine may need them."""


def world_size(settings: Trainer, *, gpu: bool) -> int:
    """How many processes train together."""
    if settings.devices == "auto":
        return torch.cuda.device_count() if gpu else 1
    return settings.devices


@contextmanager
def other_ranks(
    world: int, folder: Path, *, resume: bool, trusted: Sequence[str], spawn: bool = False
) -> Iterator[None]:
    """Run ranks 1 to ``world - 1`` during the body, which is rank 0; none of them outlives it.

    Each is a program of its own, or with ``spawn`` a process of ``multiprocessing``. Where torchrun or
    srun has started the ranks already, the body is rank 0 of those.
    """
    if launched() is not None or world == 1:
        try:
            yield
        finally:
            _leave_group()
        return
    rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(world)}
    before = dict(os.environ)
    arguments = (str(folder), "resume" if resume else "anew", *trusted)
    others: list[subprocess.Popen | _Spawned] = []
    try:
        for rank in range(1, world):
            os.environ.update(rendezvous, LOCAL_RANK=str(rank))
            others.append(_Spawned(*arguments) if spawn else _program(*arguments))
        os.environ.update(LOCAL_RANK="0")
        with ended_when_lost(others, folder):
            yield
        for process in others:
            process.wait(PATIENCE)
    except RuntimeError as error:
        if not devices.out_of_memory(error) and (lost := rank_out_of_memory(others)):
            raise torch.OutOfMemoryError(f"rank {lost} ran out of memory") from error
        raise
    finally:
        for process in others:
            process.kill()
            process.wait()
        for name in (*rendezvous, "LOCAL_RANK"):  # else a later run in this process takes itself for a rank
            os.environ.pop(name, None)
        os.environ.update(before)
        _leave_group()


def _program(*arguments: str) -> subprocess.Popen:
    """A rank as a program of its own."""
    command = lifeline.module_command("qa_arch.training.ranks", *arguments)
    return lifeline.start(command, pass_fds=lock.descriptors())  # the run is in use until its last rank ends


class _Spawned:
    """A rank as a process that ``multiprocessing`` spawns, as a notebook can."""

    def __init__(self, *arguments: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.process = context.Process(target=_tied, args=(os.getpid(), *arguments))
        self.process.start()

    def wait(self, timeout: float | None = None) -> None:
        self.process.join(timeout)
        if self.process.is_alive():
            raise TimeoutError(f"a rank is still at work {timeout:.0f} seconds after rank 0 ended")

    def poll(self) -> int | None:
        return self.process.exitcode

    def kill(self) -> None:
        self.process.kill()


def _tied(parent: int, *arguments: str) -> None:
    lifeline.die_with(parent)
    main(*arguments)


def _leave_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main(folder: str, how: str, *trusted: str) -> None:
    """Train as a rank other than 0, which alone writes: the program behind ``other_ranks``."""
    config = validate(read_record(folder).config)
    try:
        follow(config, Path(folder), resume=how == "resume", trusted=trusted)
    except KeyboardInterrupt:  # of rank 0, which records it
        sys.exit(INTERRUPTED)
    except Exception as error:
        if not devices.out_of_memory(error):
            raise
        traceback.print_exc()
        sys.exit(OUT_OF_MEMORY)


def follow(config: Config, folder: Path, *, resume: bool, trusted: Sequence[str]) -> None:
    """Train as a rank other than 0, with the process group that the environment describes."""
    gpu = devices.uses_gpu(config.trainer)
    config = replace(config, trainer=devices.resolve(config.trainer, gpu=gpu))
    devices.require_strategy(config.trainer, gpu=gpu)
    devices.seed_everything(config.seed)
    parts = task_of(config.model).assemble(config, trusted)
    try:
        fit(config, parts, folder, gpu=gpu, resume=resume, publish=lambda epochs: None)
    finally:
        _leave_group()


if __name__ == "__main__":
    main(*sys.argv[1:])


NOTICE = 20.0
"""Seconds that rank 0 has to notice by itself."""
OUT_OF_MEMORY = 99
"""Exit code of a rank that had no memory left: rank 0 sees no more of it than a closed connection."""
ENDING = 5.0
"""Seconds between the closing of a rank's connections and its end."""


class Process(Protocol):
    def poll(self) -> int | None: ...
    def kill(self) -> None: ...


@contextmanager
def ended_when_lost(others: Sequence[Process], folder: Path, notice: float = NOTICE) -> Iterator[None]:
    """End this process, its status recorded, where a process of ``others`` fails and the body hangs."""
    over = threading.Event()
    watch = threading.Thread(target=_watch, args=(others, folder, notice, over), daemon=True)
    watch.start()
    try:
        yield
    finally:
        over.set()
        watch.join()


def rank_out_of_memory(others: Sequence[Process], patience: float = ENDING) -> int | None:
    """The rank, of ``others`` (1 and on), that ran out of memory; waits while some of them are ending."""
    until = time.monotonic() + patience
    while True:
        codes = [process.poll() for process in others]
        if OUT_OF_MEMORY in codes:
            return codes.index(OUT_OF_MEMORY) + 1
        if None not in codes or time.monotonic() > until:
            return None
        time.sleep(0.05)


def _watch(others: Sequence[Process], folder: Path, notice: float, over: threading.Event) -> None:
    while not over.wait(0.5):
        codes = {rank: process.poll() for rank, process in enumerate(others, 1)}
        lost = {rank: code for rank, code in codes.items() if code}
        if not lost or over.wait(notice):
            continue
        status, reason = _explain(lost)
        error = f"{reason} and rank 0 waited for it"
        write_record(folder, replace(read_record(folder), status=status, error=error))
        for process in others:
            process.kill()
        os._exit(1)


def _explain(lost: Mapping[int, int]) -> tuple[Status, str]:
    """The run's status and error; ``lost``: exit codes by rank. A rank may be lost by another's end."""
    for rank, code in lost.items():
        if code == OUT_OF_MEMORY:
            return "oom", f"rank {rank} ran out of memory"
    rank, code = next(iter(lost.items()))
    if code < 0:
        return "killed", f"rank {rank} was killed by signal {-code}"
    return "failed", f"rank {rank} failed (exit code {code})"
