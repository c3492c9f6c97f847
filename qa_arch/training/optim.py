"""Parameter groups and learning-rate schedules."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from qa_arch.nn.word_encoder import AnyEncoder

Optimizer = Literal["adamw", "adamax"]


def parameter_groups(
    model: nn.Module,
    *,
    lr: float,
    head_lr: float | None,
    weight_decay: float,
    layer_decay: float,
) -> list[dict]:
    """A group for each (learning rate, decay) pair of the trainable parameters.

    Encoder layers get ``lr * layer_decay ** (layers above)`` (Howard & Ruder 2018), everything else
    ``head_lr``; biases and norms (one axis) are not decayed. The ``name`` of a group lists the parts that
    share its rate: ``encoder`` or, under layer decay, ``embeddings``, ``layer_1`` and on; ``head``; or
    several, such as ``encoder-head``.
    """
    encoder = getattr(model, "encoder", None)
    depths: dict[int, int] = {}
    if isinstance(encoder, AnyEncoder):  # a model's own layers may have that name too
        depths = {id(p): encoder.depth_of(name) for name, p in encoder.named_parameters()}
    top = max(depths.values(), default=0)
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    names: dict[float, list[str]] = {}
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        key = id(parameter)
        rate = lr * layer_decay ** (top - depths[key]) if key in depths else (head_lr or lr)
        decay = weight_decay if parameter.ndim > 1 else 0.0
        groups.setdefault((rate, decay), []).append(parameter)
        names.setdefault(rate, []).append(_name_of(depths.get(key), layer_decay))
    return [
        {
            "params": params,
            "lr": rate,
            "weight_decay": decay,
            "name": "-".join(dict.fromkeys(names[rate])),
        }
        for (rate, decay), params in groups.items()
    ]


def _name_of(depth: int | None, layer_decay: float) -> str:
    """Name of a parameter's part; ``depth`` in the encoder, None outside it."""
    if depth is None:
        return "head"
    if layer_decay == 1.0:
        return "encoder"
    return f"layer_{depth}" if depth else "embeddings"


def make_optimizer(
    name: Optimizer, groups: list[dict], *, fused: bool, bits: int = 32
) -> torch.optim.Optimizer:
    """The optimizer ``name`` over ``groups``; ``fused`` where it can be (AdamW).

    With ``bits`` 8 AdamW's two moments are held in 8 bits (Dettmers et al. 2022).
    """
    if name == "adamax":  # Kingma & Ba 2015, section 7.1
        return torch.optim.Adamax(groups, foreach=True)
    if bits == 8:
        from bitsandbytes.optim import AdamW8bit  # type: ignore[import-not-found]

        return AdamW8bit(groups)
    return torch.optim.AdamW(groups, fused=fused)


def schedule(
    optimizer: torch.optim.Optimizer,
    kind: Literal["linear", "cosine", "constant"],
    *,
    steps: int,
    warmup: float,
) -> LambdaLR:
    """A factor that rises over the first ``warmup`` share of ``steps``, then falls to 0 as ``kind`` says."""
    rising = round(steps * warmup)

    def factor(step: int) -> float:
        if step < rising:
            return (step + 1) / rising
        progress = min(1.0, (step - rising) / max(1, steps - rising))
        if kind == "linear":
            return 1.0 - progress
        return 0.5 * (1.0 + math.cos(math.pi * progress)) if kind == "cosine" else 1.0

    return LambdaLR(optimizer, factor)
