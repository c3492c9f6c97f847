"""A global batch takes the same step on one process, two ranks and FSDP; two ranks resume exactly."""

import csv
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from qa_arch.qa import task
from qa_arch.training.fit import fit, span_fitting
from qa_arch.training.module import TrainingModule

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parents[1] / "fits.py"
FROZEN = ("trainer.epochs=2", "optim.clip=0", "optim.lr=1e-9")
"""The weights hardly change, so that the gradient of a step depends on its windows alone."""
SPLIT = {
    8: ("trainer.batch_size=2", "trainer.accumulate=2"),  # 2 ranks: 8 + 8 + 5 windows of 21
    4: ("trainer.batch_size=1", "trainer.accumulate=2"),  # the last step has one window, and rank 1 none
}
"""Global batch size -> its split over two ranks."""
RESUMED = ("trainer.epochs=2", "trainer.batch_size=2", "trainer.accumulate=2", "encoder.hidden_dropout=0.1")


@pytest.fixture(scope="module")
def pair(configure_once, tmp_path_factory) -> Path:
    """Folder with the results of all fits below, run by a single pair of ranks."""
    folder = tmp_path_factory.mktemp("pair")
    checkpoints = "trainer.checkpoint_minutes=1e-9"
    resumed = configure_once(*RESUMED, checkpoints)
    fsdp = configure_once(*FROZEN, *SPLIT[8], checkpoints, "trainer.strategy=fsdp", "trainer.log_every=1")
    fits = [
        *(
            {"name": f"ddp-{size}", "config": configure_once(*FROZEN, *split)}
            for size, split in SPLIT.items()
        ),
        {"name": "fsdp-first", "folder": "fsdp", "stop": 4, "config": fsdp},  # 3 checkpoints per epoch
        {"name": "fsdp-second", "folder": "fsdp", "resume": True, "config": fsdp},
        {"name": "uninterrupted", "config": resumed},
        {"name": "first", "folder": "resumed", "stop": 4, "config": resumed},  # inside the second epoch
        {"name": "second", "folder": "resumed", "resume": True, "config": resumed},
    ]
    (folder / "fits.json").write_text(json.dumps([fit | {"config": asdict(fit["config"])} for fit in fits]))
    start_ranks(2, folder)
    return folder


def start_ranks(world: int, folder: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [
        subprocess.Popen(
            [sys.executable, PROGRAM, folder],
            env=os.environ | {k: str(v) for k, v in (shared | {"RANK": rank, "LOCAL_RANK": rank}).items()},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    output = [rank.communicate(timeout=240)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * world, output


def gradients_of(config, folder: Path) -> tuple[list[torch.Tensor], list[dict]]:
    """Gradients of each step of a fit in this process, and its epochs."""
    gradients: list[torch.Tensor] = []
    (folder / "model").mkdir(parents=True)

    def record(self, optimizer):
        gradients.append(torch.cat([p.grad.flatten().clone() for p in self.model.parameters()]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingModule, "on_before_optimizer_step", record)
        torch.manual_seed(config.seed)
        epochs, _ = fit(config, span_fitting(config, task.assemble(config)), folder)
    return gradients, epochs


def relative_errors(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> Iterator[float]:
    """Distance of each pair of gradients, relative to the norm of the expected one."""
    for first, second in zip(actual, expected, strict=True):
        yield float((first.double() - second.double()).norm() / second.double().norm())


@pytest.mark.parametrize("size", SPLIT)
def test_gradient_depends_on_the_global_batch_alone(pair, configure_once, tmp_path, size):
    """One process and two ranks with accumulation, the short last step included."""
    expected, epochs = gradients_of(
        configure_once(*FROZEN, f"trainer.batch_size={size}"), tmp_path / "single"
    )
    assert len(expected) == 2 * -(-21 // size)
    actual = torch.load(pair / f"ddp-{size}-gradients.pt")
    assert max(relative_errors(actual, expected)) < 1e-6
    recorded = json.loads((pair / f"ddp-{size}-epochs.json").read_text())
    for first, second in zip(recorded[-2:], epochs, strict=True):
        assert (first["step"], first["windows"]) == (second["step"], second["windows"])
        assert first["train_loss"] == pytest.approx(second["train_loss"], rel=1e-6)
    orders = [json.loads((pair / f"ddp-{size}-order-{rank}.json").read_text()) for rank in (0, 1)]
    assert any(not rows for _, _, rows in orders[1]) == (size == 4)


def test_fsdp_matches_ddp(pair):
    """FSDP on gloo, stopped and resumed: gradients and their logged norms, optimizer moments, and the full
    weights on rank 0."""
    ddp, first, second = (
        torch.load(pair / f"{name}-gradients.pt") for name in ("ddp-8", "fsdp-first", "fsdp-second")
    )
    assert (len(first), len(second)) == (4, 2)
    assert max(relative_errors(first + second, ddp)) < 1e-6
    logs = [list(csv.DictReader(path.open())) for path in sorted(pair.glob("fsdp/csv/*/metrics.csv"))]
    norms = [float(norm) for rows in logs for row in rows if (norm := row.get("step/gradient_norm"))]
    assert norms == pytest.approx([float(gradient.norm()) for gradient in first + second], rel=1e-5)
    first, second = (
        torch.load(pair / name / "last.ckpt", weights_only=True)["optimizer_states"][0]
        for name in ("ddp-8", "fsdp")
    )
    numbers = [number for group in second["param_groups"] for number in group["params"]]  # by group in both
    assert len(numbers) == len(first["state"]) == len(second["state"])
    for number, state in zip(numbers, first["state"].values(), strict=True):
        assert int(state["step"]) == int(second["state"][number]["step"]) == 6
        for moment in ("exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(second["state"][number][moment], state[moment], rtol=1e-4, atol=1e-7)
    first, second = (load_file(pair / name / "model" / "model.safetensors") for name in ("ddp-8", "fsdp"))
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(second[name], first[name], rtol=0, atol=1e-7, msg=name)


def test_two_ranks_resume_exactly(pair, same):
    """The order of windows on each rank, and every bit of state."""
    for rank in (0, 1):
        orders = {
            name: json.loads((pair / f"{name}-order-{rank}.json").read_text())
            for name in ("uninterrupted", "first", "second")
        }
        assert orders["first"] + orders["second"] == orders["uninterrupted"]
        assert [len(orders[name]) for name in ("first", "second")] == [8, 4]
    folders = pair / "resumed", pair / "uninterrupted"
    actual, expected = (torch.load(folder / "last.ckpt", weights_only=True) for folder in folders)
    assert len(expected["random"]) == 2
    # Losses are summed in another order; no weight depends on these sums.
    for state in (actual, expected):
        del state["train_sums"]
        for value in state["callbacks"].values():
            value.pop("epochs", None)
    same(actual, expected)
    first, second = ((folder / "model" / "model.safetensors").read_bytes() for folder in folders)
    assert first == second
