"""Program of one of several ranks: ``python ranks.py TASK RANK WORLD FOLDER``.

Tests start it once per rank; ``FOLDER`` contains the inputs of the task and receives the results.
"""

import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from qa_arch.qa import files as formats
from qa_arch.training.module import gather

IDLE = 1
"""Index of the reading in which the last rank reads nothing and rank 0 takes over its share."""


def run_ranks(task: str, world: int, folder: Path) -> None:
    """Run this program once per rank."""
    command = [sys.executable, __file__, task]
    ranks = [
        subprocess.Popen([*command, str(rank), str(world), folder], stderr=subprocess.PIPE, text=True)
        for rank in range(world)
    ]
    output = [rank.communicate(timeout=240)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * world, output


def step(rank: int, world: int, folder: Path) -> dict[str, float]:
    """Checksum of every model after two steps (DDP checks for unused parameters at the second)."""
    checksums = {}
    for name, model, loss, batches in torch.load(folder / "models.pt", weights_only=False):
        wrapped = DistributedDataParallel(model.train(), find_unused_parameters=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            batch, labels = batches[rank % len(batches)]
            optimizer.zero_grad()
            try:
                loss(wrapped(batch), labels).mean().backward()
            except RuntimeError as error:
                raise RuntimeError(f"{name}: {error}") from error
            optimizer.step()
        checksums[name] = sum(float(p.detach().double().sum()) for p in model.parameters())
    return checksums


def join(rank: int, world: int, folder: Path) -> list[dict[str, list]]:
    """This rank's rankings of each reading after ``gather``; also writes its prediction files."""
    rankings = []
    for number, (collector, windows) in enumerate(torch.load(folder / "readings.pt", weights_only=False)):
        rows = {0, *range(rank, len(windows), world)}  # every rank reads window 0, as it does padding rows
        if number == IDLE and rank == world - 1:
            rows = set()
        elif number == IDLE and rank == 0:
            rows |= set(range(world - 1, len(windows), world))
        for row in sorted(rows):
            collector.add(SimpleNamespace(index=torch.tensor([row])), windows[row])
        ranking = gather(collector)
        formats.write_parts(folder / f"said-{world}-{rank}-{number}", [ranking], 0.0)
        columns = ("offsets", "start", "end", "probability")
        rankings.append({name: getattr(ranking, name).tolist() for name in columns})
    return rankings


def main() -> None:
    task, rank, world, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting-{task}-{world}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=120),
    )
    result = {"step": step, "join": join}[task](rank, world, folder)
    (folder / f"{task}-{world}-{rank}.json").write_text(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
