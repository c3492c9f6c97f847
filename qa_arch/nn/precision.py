"""The precision in which a finished model reads: its weights are cast once, before the first batch."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from jaxtyping import Float, Int8
from torch import Tensor, nn

from qa_arch.errors import UnavailableError
from qa_arch.nn.encoder import encoders_of

Precision = Literal["fp32", "bf16", "fp16", "int8"]
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
MOST = 127
"""Largest magnitude in int8: the range is symmetric, so that zero is exact."""
UNSIGNED = 128
"""Added to inputs: oneDNN has its fast kernel for unsigned ones everywhere, for signed ones not on every CPU
(on a Zen 5 these took 700 times as long as fp32), and takes it off again inside the exact sums."""


def mixed(precision: str, device: str) -> AbstractContextManager[object]:
    """The autocast of ``precision`` on ``device``; for fp32 and int8 none."""
    return torch.autocast(device, HALVES[precision]) if precision in HALVES else nullcontext()


def cast_weights(model: nn.Module, precision: Precision) -> nn.Module:
    """``model`` with its encoder's weights in ``precision``, in place and for good; heads keep theirs.

    ``bf16`` casts the weights, which autocast would do again in every pass. ``int8`` quantises the
    linear maps (``Int8Linear``); attention and norms stay fp32. ``fp16`` is left to autocast, whose
    residual sums are fp32: beyond 65,504 fp16 overflows.

    Raises UnavailableError for ``int8`` on a GPU, of a model without encoder, or where torch cannot quantise.
    """
    encoders = encoders_of(model)
    if precision == "int8" and not encoders:
        raise UnavailableError("precision int8: this model has no encoder to quantise; use fp32")
    for encoder in encoders:
        if precision == "bf16":
            encoder.cast(torch.bfloat16)
        elif precision == "int8":
            if (device := next(encoder.parameters()).device).type != "cpu":
                raise UnavailableError(
                    f"precision int8: runs on a CPU, not on {device}; use --device cpu or bf16"
                )
            quantise(encoder.backbone)
    return model


def to_int8(weight: Float[Tensor, "N D"]) -> tuple[Int8[Tensor, "N D"], Float[Tensor, "N"]]:
    """Whole numbers and the scale of each row; their product is ``weight``, rounded. Zeros stay zeros."""
    weight = weight.detach().float()
    scale = weight.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny) / MOST
    return (weight / scale[:, None]).round().to(torch.int8), scale


class Int8Linear(nn.Module):
    """A linear map for reading on a CPU: x W^T + b = (s_x q_x) (s_w q_w)^T + b, products summed in int32.

    ``whole`` q_w and ``scale`` s_w are those of ``to_int8``. With a scale s_x for each token (Yao et al.
    2022, ZeroQuant, section 4.1) an answer does not depend on the windows it shares a batch with, as it does
    under torch's dynamic quantisation, whose one scale for all moved a MiniLM's span scores six times as far.

    Raises UnavailableError where torch has no such kernel.
    """

    def __init__(
        self, whole: Int8[Tensor, "N D"], scale: Float[Tensor, "N"], bias: nn.Parameter | None
    ) -> None:
        super().__init__()
        self.out_features, self.bias = len(whole), bias
        self.scale = scale
        self.zero = torch.zeros(len(whole), dtype=torch.int64)
        try:
            self.packed = torch.ops.onednn.qlinear_prepack(whole, None)
        except (AttributeError, NotImplementedError, RuntimeError) as error:
            raise UnavailableError(
                f"precision int8: torch {torch.__version__} has no int8 kernel here"
                f" ({str(error).splitlines()[0]}); use bf16 or fp32"
            ) from error

    @classmethod
    def of(cls, linear: nn.Linear) -> Int8Linear:
        """The map of ``linear``, rounded."""
        return cls(*to_int8(linear.weight), linear.bias)

    def forward(self, x: Float[Tensor, "*R D"]) -> Float[Tensor, "*R E"]:
        rows = x.reshape(-1, x.shape[-1])
        largest = rows.abs().amax(1, keepdim=True).clamp_(min=1e-12)
        whole = (rows * (MOST / largest)).round_().add_(UNSIGNED).to(torch.uint8)
        sums = torch.ops.onednn.qlinear_pointwise(
            whole,
            1.0,
            UNSIGNED,
            self.packed,
            self.scale,
            self.zero,
            None,
            1.0,
            0,
            torch.float32,
            "none",
            [],
            "none",
        )
        sums = (
            sums.mul_(largest / MOST) if self.bias is None else torch.addcmul(self.bias, sums, largest / MOST)
        )
        return sums.view(*x.shape[:-1], self.out_features)


def quantise(module: nn.Module) -> None:
    """Replace every linear map inside ``module``, in place."""
    for name, child in module.named_children():
        if type(child) is nn.Linear:
            setattr(module, name, Int8Linear.of(child))
        else:
            quantise(child)
