"""The other processes of a run on several devices, each started from the record in the run folder.

Lightning would start them by repeating the command line, which prepares, refuses or replaces the
run folder a second time and does nothing for a caller without a command line.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

from qa_arch.config.schema import Trainer, validate
from qa_arch.results.record import read_record
from qa_arch.system import lifeline, lock
from qa_arch.training import machine
from qa_arch.training.fitting import fit
from qa_arch.training.kinds import kind_of

PATIENCE = 30.0
"""Seconds that the other ranks have to end once rank 0 has."""


def world_size(settings: Trainer, *, gpu: bool) -> int:
    """How many processes train together."""
    if settings.devices == "auto":
        return torch.cuda.device_count() if gpu else 1
    return settings.devices


@contextmanager
def other_ranks(world: int, folder: Path, *, resume: bool, trusted: Sequence[str]) -> Iterator[None]:
    """Run ranks 1 to ``world - 1`` beside the body, which is rank 0; none of them outlives it."""
    if world == 1:
        yield
        return
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(world)}
    before = dict(os.environ)
    arguments = (str(folder), "resume" if resume else "anew", *trusted)
    others = [
        lifeline.start(
            lifeline.module_command("qa_arch.training.ranks", *arguments),
            env=before | meeting | {"LOCAL_RANK": str(rank)},
            pass_fds=lock.descriptors(),  # the run is in use until its last rank has ended
        )
        for rank in range(1, world)
    ]
    try:
        os.environ.update(meeting, LOCAL_RANK="0")
        yield
        for process in others:
            process.wait(PATIENCE)
    finally:
        for process in others:
            process.kill()
            process.wait()
        for name in (*meeting, "LOCAL_RANK"):  # else a later run in this process takes itself for a rank
            os.environ.pop(name, None)
        os.environ.update(before)
        if dist.is_initialized():
            dist.destroy_process_group()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main(folder: str, how: str, *trusted: str) -> None:
    """What one of the other ranks does: the same run, of which rank 0 alone writes."""
    config = validate(read_record(folder).config)
    gpu = machine.uses_gpu(config.trainer)
    machine.seed_everything(config.seed)
    parts = kind_of(config).assemble(config, trusted)
    fit(config, parts, Path(folder), gpu=gpu, resume=how == "resume", publish=lambda epochs: None)


if __name__ == "__main__":
    main(*sys.argv[1:])
