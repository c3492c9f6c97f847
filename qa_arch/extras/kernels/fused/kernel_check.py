"""Checks the fused kernels against the plain loop.

``python -m qa_arch.extras.kernels.fused.kernel_check DEVICE HIDDEN PRECISION``; the last line of its output
is ``{"passed": true, "reason": ""}``, or false with what differs. See ``qa_arch.extras.kernels.proof``.
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
"""More than one group of rows and block of question units; and the least there is."""
EXACT, TF32, BF16 = 1e-5, 1e-2, 2**-7
"""Largest differences, by the largest entry: in fp32, with TF32 products, of gradients given in bf16."""
UNIT = 2.0**-24
"""Half the distance from 1 to the next fp32 number: a sum of ``width`` products may lose ``width`` times as
much to rounding (Higham 2002, section 3.1), which from a width of 168 on is more than ``EXACT``."""


def example(
    dtype: torch.dtype = torch.float64,
    steps: int = 4,
    B: int = 3,
    Q: int = 3,
    width: int = 5,
    scale: float = 1.0,
    device: str | torch.device = "cpu",
) -> tuple[Tensor, ...]:
    """Arguments of the recurrence; windows of all lengths, questions with holes in their mask."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int, by: float = 1.0) -> Tensor:
        x = by * torch.randn(*shape, dtype=torch.float64, generator=generator)
        return x.to(device, dtype).requires_grad_()

    lengths = 1 + torch.arange(B) * steps // B
    mask = torch.rand(B, Q, generator=generator) < 0.7
    mask[:, -1] = True
    return (
        draw(steps, B, 5 * width, by=scale),
        reversal(torch.arange(steps) < lengths[:, None]).T.to(device),
        draw(B, Q, width, by=scale),
        draw(B, Q, 4 * width),
        mask.to(device),
        draw(width),
        draw(1),
        draw(5 * width, width, by=width**-0.5),
    )


def converted(arguments: Sequence[Tensor]) -> list[Tensor]:
    """The same numbers in float64, leaves of their own."""
    return [x.detach().double().requires_grad_() if x.is_floating_point() else x.detach() for x in arguments]


def states_and_gradients(recurrence: Callable[..., Tensor], arguments: Sequence[Tensor]) -> list[Tensor]:
    """States, then gradients of all arguments that have one, for a fixed weighting of the states."""
    states = recurrence(*arguments)
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(states.shape, dtype=torch.float64, generator=generator).to(states)
    wanted = [x for x in arguments if x.requires_grad]
    return [states, *torch.autograd.grad((states * weights).sum(), wanted)]


def difference(arguments: Sequence[Tensor], tolerance: float, gradient_tolerance: float) -> str:
    """What differs first, of states and gradients, from the plain loop in float64; empty if nothing does."""
    fused = states_and_gradients(recur_fused, arguments)
    exact = states_and_gradients(recur_plain, converted(arguments))
    for number, (name, ours, right) in enumerate(zip(NAMES, fused, exact, strict=True)):
        off = _distance(ours, right)
        limit = gradient_tolerance if number else tolerance
        if not off <= limit:  # a NaN is not
            return f"{'gradient of ' if number else ''}{name} differs by {off:.1e}, more than {limit:.0e}"
    return ""


def _distance(numbers: Tensor, exact: Tensor) -> float:
    """The largest difference, by the largest entry of ``exact`` where that is above 1."""
    exact = exact.detach()
    return float((numbers.detach().double() - exact).abs().max() / exact.abs().max().clamp(min=1))


def verdict(device: str, hidden: int, precision: str) -> dict[str, Any]:
    """Whether the kernels pass at this width, in fp32 and with inputs in bf16, and if not, what differs."""
    torch.set_float32_matmul_precision(precision)
    tolerance = max(EXACT, hidden * UNIT) if precision == "highest" else TF32
    for sizes in SIZES:
        for half in (False, True):
            arguments = list(example(torch.float32, **sizes, width=hidden, device=device))
            if half:
                for place in (0, 2, 3):  # inputs, keys, values come out of autocast
                    arguments[place] = arguments[place].detach().bfloat16().requires_grad_()
            if reason := difference(arguments, tolerance, max(tolerance, BF16) if half else tolerance):
                shape = ", ".join(f"{key}={value}" for key, value in sizes.items())
                return {"passed": False, "reason": f"{reason} ({'bf16' if half else 'fp32'}, {shape})"}
    return {"passed": True, "reason": ""}


if __name__ == "__main__":
    print(json.dumps(verdict(sys.argv[1], int(sys.argv[2]), sys.argv[3])))
