"""The fast recurrence against the plain loop: values, gradients, and where its guard must step in."""

from __future__ import annotations

import pytest
import torch

from qa_arch.nn import recurrence
from qa_arch.nn.match_lstm import recur_plain
from qa_arch.nn.recurrence import recur
from qa_arch.nn.segments import reversal


def example(dtype=torch.float64, steps=5, width=4, scale=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape, by=1.0):
        return (by * torch.randn(*shape, dtype=dtype, generator=generator)).requires_grad_()

    B, Q = 3, 6
    mask = torch.tensor([[True] * 6, [True, False, True, False, False, True], [False] * 5 + [True]])
    return (
        draw(steps, B, 5 * width, by=scale),
        reversal(torch.arange(steps) < torch.tensor([[steps], [2], [1]])).T,
        draw(B, Q, width, by=scale),
        draw(B, Q, 4 * width),
        mask,
        draw(width),
        draw(1),
        draw(5 * width, width, by=width**-0.5),
    )


def values_and_gradients(function, arguments, weights):
    out = function(*arguments)
    wanted = [a for a in arguments if a.requires_grad]
    return out, torch.autograd.grad((out * weights).sum(), wanted)


@pytest.mark.parametrize("chunk", [32, 5])
@pytest.mark.parametrize("scale", [1.0, 30.0, 1e4])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_equal_to_the_plain_loop_with_gradients(dtype, tolerance, scale, chunk, monkeypatch):
    monkeypatch.setattr(recurrence, "CHUNK", chunk)
    arguments = example(dtype, steps=12, width=8, scale=scale)
    weights = torch.randn(12, 3, 2, 8, dtype=dtype, generator=torch.Generator().manual_seed(7))
    actual, gradients = values_and_gradients(recur, arguments, weights)
    expected, expected_gradients = values_and_gradients(recur_plain, arguments, weights)
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)
    for found_one, expected_one in zip(gradients, expected_gradients, strict=True):
        size = expected_one.abs().max().clamp(min=1)
        torch.testing.assert_close(found_one / size, expected_one / size, rtol=0, atol=tolerance)


@pytest.mark.parametrize("safe", [20.0, 0.0])
def test_gradcheck_of_both_forms(safe, monkeypatch):
    monkeypatch.setattr(recurrence, "SAFE", safe)
    inputs, order, keys, values, mask, score, bias, state = example(steps=3, width=2)
    assert torch.autograd.gradcheck(
        lambda *given: recur(given[0], order, *given[1:3], mask, *given[3:]),
        (inputs, keys, values, score, bias, state),
    )


def test_large_keys_and_queries_that_cancel_are_exact():
    inputs, order, keys, values, mask, score, bias, state = (x.detach() for x in example(torch.float32))
    keys, inputs = torch.full_like(keys, 60.0), inputs.clone()
    keys[:, 0] += 0.5
    inputs[..., :4] -= 60.0  # exp(120) is infinite, and the sum of the two is about zero
    arguments = (inputs, order, keys, values, mask, score, bias, state)
    torch.testing.assert_close(recur(*arguments), recur_plain(*arguments), rtol=0, atol=1e-5)


def test_queries_that_grow_within_the_loop_are_caught():
    inputs, order, keys, values, mask, score, bias, state = (x.detach() for x in example(torch.float32))
    state = state.clone()
    state[:4] *= 1e3  # queries are small at the first step only
    arguments = (inputs, order, keys, values, mask, score, bias, state)
    actual = recur(*arguments)
    assert torch.isfinite(actual).all()
    torch.testing.assert_close(actual, recur_plain(*arguments), rtol=0, atol=1e-3)
