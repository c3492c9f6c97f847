"""Program of one of several ranks: ``python ranks.py RANK WORLD FOLDER`` steps the models in the folder."""

import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def run_ranks(world: int, folder: Path) -> None:
    """Run this program once per rank."""
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, str(rank), str(world), folder], stderr=subprocess.PIPE, text=True
        )
        for rank in range(world)
    ]
    output = [rank.communicate(timeout=240)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * world, output


def step(rank: int, folder: Path) -> dict[str, float]:
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


def main() -> None:
    rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=120),
    )
    (folder / f"step-{rank}.json").write_text(json.dumps(step(rank, folder)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
