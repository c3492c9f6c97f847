"""Counting living bytes: exact on chains counted by hand, and lines that meet other batches exactly."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from qa_arch.training.plan.live import LiveBytes, measure_memory

KB = torch.ones(256).nbytes


def test_a_storage_counts_once_and_until_its_last_reference_is_gone():
    before = torch.ones(256)
    with LiveBytes() as counter:
        made = before * 2
        seen = made.view(16, 16)[:, :4]
        del made
        seen.add_(1)
        other = seen + 1  # (16, 4)
        del seen
        torch.zeros(())
        del other
        torch.zeros(())
    assert counter.series[0] == KB
    assert max(counter.series) == KB + KB // 4
    assert counter.series[-1] == 4
    assert counter.current == 0


def test_what_was_there_before_is_not_counted():
    before = torch.ones(256)
    with LiveBytes() as counter:
        before.mul_(2)
        before.view(2, 128)
    assert set(counter.series) == {0}


def peak(run_pass, rows: int, parameters, *, accumulated: bool) -> int:
    """The same, measured at ``rows`` rows."""
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter) if accumulated else None
    there = sum(parameter.nbytes for parameter in parameters) if accumulated else 0
    with LiveBytes() as counter:
        run_pass(rows)
    return max(counter.series) + there


MODELS = {
    "wide": (
        nn.Sequential(nn.Linear(8, 512), nn.GELU(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 1)),
        8,
    ),
    "more weights than activations": (
        nn.Sequential(nn.Linear(600, 600), nn.ReLU(), nn.Linear(600, 600)),
        600,
    ),
}


@pytest.mark.parametrize("accumulated", [False, True])
@pytest.mark.parametrize("rows", [2, 3, 7, 90])
@pytest.mark.parametrize("name", MODELS)
def test_a_line_meets_any_batch(name, rows, accumulated):
    model, width = MODELS[name]
    parameters = list(model.parameters())

    def run_pass(rows: int) -> None:
        model(torch.ones(rows, 5, width)).softmax(-1).square().sum().backward()

    result, exact = (
        measure_memory(run_pass, parameters),
        peak(run_pass, rows, parameters, accumulated=accumulated),
    )
    # Into gradients that are there each new one is added, and lives a moment longer than one that is kept.
    late = max(parameter.nbytes for parameter in parameters) if accumulated else 0
    assert exact - late <= result.peak(rows, accumulated=accumulated) <= exact + late


def test_operations_that_depend_on_the_batch_leave_the_peaks():
    def run_pass(rows: int) -> None:
        for _ in range(rows):
            torch.ones(256) * 2

    result = measure_memory(run_pass)
    assert result.small.shape == result.large.shape == (1,)
    assert result.peak(10) == 2 * KB


def test_frozen_parameters_have_no_gradient():
    model = nn.Linear(4, 4)
    model.weight.requires_grad_(False)
    result = measure_memory(lambda rows: model(torch.ones(rows, 4)).sum().backward(), model.parameters())
    assert result.gradients[-1] == model.bias.nbytes
