"""Check the fused kernels against the plain loop.

``python -m qa_arch.extras.kernels.fused.kernel_check DEVICE HIDDEN PRECISION`` prints as its last line
``{"passed": true, "reason": ""}``, or false with the first difference. See ``qa_arch.extras.kernels.proof``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from qa_arch.extras.kernels.fused.autograd import recur_fused
from qa_arch.nn.match_lstm import recur_plain
from qa_arch.nn.segments import reversal

NAMES = ("states", "inputs", "keys", "values", "score", "bias", "state")
SIZES = ({"steps": 9, "B": 18, "Q": 35}, {"steps": 2, "B": 1, "Q": 1})
"""Several groups of rows and blocks of question units; and the smallest possible batch."""
EXACT, TF32, BF16 = 1e-5, 1e-2, 2**-7
"""Tolerances relative to the largest entry: fp32, TF32 products, gradients in bf16."""
UNIT = 2.0**-24
"""Unit roundoff of fp32: a sum of ``width`` products may lose ``width`` times as much (Higham 2002, section
3.1), which exceeds ``EXACT`` for widths of 168 and above."""


def example(
    dtype: torch.dtype = torch.float64,
    steps: int = 4,
    B: int = 3,
    Q: int = 3,
    width: int = 5,
    scale: float = 1.0,
    device: str | torch.device = "cpu",
) -> tuple[Tensor, ...]:
    """Random arguments of the recurrence: windows of all lengths, question masks with gaps."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int, std: float = 1.0) -> Tensor:
        x = std * torch.randn(*shape, dtype=torch.float64, generator=generator)
        return x.to(device, dtype).requires_grad_()

    lengths = 1 + torch.arange(B) * steps // B
    mask = torch.rand(B, Q, generator=generator) < 0.7
    mask[:, -1] = True
    return (
        draw(steps, B, 5 * width, std=scale),
        reversal(torch.arange(steps) < lengths[:, None]).T.to(device),
        draw(B, Q, width, std=scale),
        draw(B, Q, 4 * width),
        mask.to(device),
        draw(width),
        draw(1),
        draw(5 * width, width, std=width**-0.5),
    )


def to_float64(arguments: Sequence[Tensor]) -> list[Tensor]:
    """Copies in float64, as new leaf tensors."""
    return [x.detach().double().requires_grad_() if x.is_floating_point() else x.detach() for x in arguments]


def states_and_gradients(recurrence: Callable[..., Tensor], arguments: Sequence[Tensor]) -> list[Tensor]:
    """States, then gradients of all differentiable arguments for fixed random weights on the states."""
    states = recurrence(*arguments)
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(states.shape, dtype=torch.float64, generator=generator).to(states)
    differentiable = [x for x in arguments if x.requires_grad]
    return [states, *torch.autograd.grad((states * weights).sum(), differentiable)]


def difference(arguments: Sequence[Tensor], tolerance: float, gradient_tolerance: float) -> str:
    """First state or gradient that differs from the plain loop in float64; empty if none does."""
    fused = states_and_gradients(recur_fused, arguments)
    exact = states_and_gradients(recur_plain, to_float64(arguments))
    for number, (name, actual, expected) in enumerate(zip(NAMES, fused, exact, strict=True)):
        error = _relative_error(actual, expected)
        limit = gradient_tolerance if number else tolerance
        if not error <= limit:  # also catches NaN
            return f"{'gradient of ' if number else ''}{name} differs by {error:.1e}, more than {limit:.0e}"
    return ""


def _relative_error(actual: Tensor, exact: Tensor) -> float:
    """Largest difference, relative to the largest entry of ``exact`` if that is above 1."""
    exact = exact.detach()
    return float((actual.detach().double() - exact).abs().max() / exact.abs().max().clamp(min=1))


def verdict(device: str, hidden: int, precision: str) -> dict[str, Any]:
    """Whether the kernels pass at this width, in fp32 and with bf16 inputs, or the first difference."""
    torch.set_float32_matmul_precision(precision)
    tolerance = max(EXACT, hidden * UNIT) if precision == "highest" else TF32
    for sizes in SIZES:
        for half in (False, True):
            arguments = list(example(torch.float32, **sizes, width=hidden, device=device))
            if half:
                for i in (0, 2, 3):  # inputs, keys, values come from autocast
                    arguments[i] = arguments[i].detach().bfloat16().requires_grad_()
            if reason := difference(arguments, tolerance, max(tolerance, BF16) if half else tolerance):
                shape = ", ".join(f"{key}={value}" for key, value in sizes.items())
                return {"passed": False, "reason": f"{reason} ({'bf16' if half else 'fp32'}, {shape})"}
    return {"passed": True, "reason": ""}


if __name__ == "__main__":
    print(json.dumps(verdict(sys.argv[1], int(sys.argv[2]), sys.argv[3])))
