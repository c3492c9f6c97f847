"""The other processes of a run on several devices, each started from the record in the run folder.

Lightning would start them by repeating the command line, which would prepare, refuse or replace the run
folder a second time, and does not work for callers without a command line.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from pytorch_lightning.loggers.logger import DummyLogger

from qa_arch.config.machine import has_logger
from qa_arch.config.schema import Config, validate
from qa_arch.errors import QaArchError, out_of_memory
from qa_arch.files import descriptors
from qa_arch.process import launched, module_command, start
from qa_arch.records import Status, read_record, write_record
from qa_arch.training.fit import fit, fitting_of, start_process

INTERRUPTED = 130
"""Exit code of a rank that stopped with its run after Ctrl-C."""
OUT_OF_MEMORY = 99
"""Exit code of a rank that ran out of memory: rank 0 only sees a closed connection."""
RENDEZVOUS = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "LOCAL_RANK")
"""Environment variables by which ranks find each other."""
PATIENCE = 300.0
"""Seconds that the other ranks may take to end after rank 0; a busy machine may need them."""
NOTICE = 20.0
"""Seconds that rank 0 has to notice a lost rank by itself."""
ENDING = 5.0
"""Seconds between a rank closing its connections and exiting."""


@contextmanager
def other_ranks(world: int, folder: Path, *, resume: bool, trusted: Sequence[str]) -> Iterator[None]:
    """Run ranks 1 to ``world - 1`` during the body, which is rank 0; none of them outlives it.

    Each is a separate program. If torchrun or srun has started the ranks already, the body is rank 0 of
    those.
    """
    starts_ranks = launched() is None and world > 1
    environment = dict(os.environ)
    others: list[subprocess.Popen] = []
    try:
        if not starts_ranks:
            yield
            return
        with socket.socket() as probe:
            # The system chooses a free port, so runs side by side do not meet.
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(world))
        for rank in range(1, world):
            os.environ.update(LOCAL_RANK=str(rank))
            others.append(start_rank(folder, "resume" if resume else "anew", *trusted))
        os.environ.update(LOCAL_RANK="0")
        with exit_when_lost(others, folder):
            yield
        for process in others:
            process.wait(PATIENCE)
    except RuntimeError as error:
        # Rank 0 sees only that a connection closed; the exit code of the rank says why.
        if not out_of_memory(error) and (lost := _rank_out_of_memory(others)):
            raise torch.OutOfMemoryError(f"rank {lost} ran out of memory") from error  # which is a result
        raise
    finally:
        for process in others:
            process.kill()
            process.wait()
        if starts_ranks:  # else a later run in this process would take itself for a rank
            for name in RENDEZVOUS:
                os.environ.pop(name, None)
            os.environ.update(environment)
        leave_group()


def start_rank(folder: Path, *arguments: str) -> subprocess.Popen:
    """Start a rank as a separate program; the run stays locked until its last rank ends."""
    command = module_command("qa_arch.training.ranks", str(folder), *arguments)
    return start(command, pass_fds=descriptors())


def leave_group() -> None:
    """Leave the process group, if this process is in one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def main(folder: str, how: str, *trusted: str) -> None:
    """Train as a rank other than 0, which writes nothing: the program started by ``other_ranks``."""
    # The record of rank 0 is the one place that has the settings of the run.
    config = validate(read_record(Path(folder)).config)
    try:
        train_rank(config, Path(folder), resume=how == "resume", trusted=trusted)
    except KeyboardInterrupt:  # at rank 0, which records it
        sys.exit(INTERRUPTED)
    except QaArchError as error:
        sys.exit(f"rank {os.environ['LOCAL_RANK']}: {error}")
    except Exception as error:
        if not out_of_memory(error):
            raise
        traceback.print_exc()
        sys.exit(OUT_OF_MEMORY)


def train_rank(config: Config, folder: Path, *, resume: bool, trusted: Sequence[str]) -> None:
    """Train as a rank other than 0, in the process group described by the environment."""
    config = start_process(config)
    fitting = fitting_of(config, trusted)
    try:
        # Some callbacks need a logger on every rank.
        fit(
            config,
            fitting,
            folder,
            resume=resume,
            trusted=trusted,
            loggers=[DummyLogger()] if has_logger({"logger": config.logger}) else [],
        )
    finally:
        leave_group()


def _rank_out_of_memory(others: Sequence[subprocess.Popen]) -> int | None:
    """First rank of ``others`` (1, 2, ...) that ran out of memory; waits while some are still exiting."""
    deadline = time.monotonic() + ENDING
    while True:
        codes = [process.poll() for process in others]
        if OUT_OF_MEMORY in codes:
            return codes.index(OUT_OF_MEMORY) + 1
        if None not in codes or time.monotonic() > deadline:
            return None
        time.sleep(0.05)


@contextmanager
def exit_when_lost(
    others: Sequence[subprocess.Popen], folder: Path, notice: float = NOTICE
) -> Iterator[None]:
    """Record the status and exit if a process of ``others`` fails and the body hangs."""
    finished = threading.Event()

    def watch() -> None:
        while not finished.wait(0.5):
            codes = {rank: process.poll() for rank, process in enumerate(others, 1)}
            lost = {rank: code for rank, code in codes.items() if code}
            if not lost or finished.wait(notice):
                continue
            # Ranks may fail because another ended: out of memory is the root cause.
            rank, code = min(lost.items(), key=lambda item: item[1] != OUT_OF_MEMORY)
            status: Status = "oom" if code == OUT_OF_MEMORY else "killed" if code < 0 else "failed"
            reasons = {"oom": "ran out of memory", "killed": f"was killed by signal {-code}"}
            reason = reasons.get(status, f"failed (exit code {code})")
            error = f"rank {rank} {reason} while rank 0 waited for it"
            write_record(folder, replace(read_record(folder), status=status, error=error))
            for process in others:
                process.kill()
            os._exit(1)  # the main thread hangs in a collective operation, where no exception reaches it

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        finished.set()
        watcher.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
