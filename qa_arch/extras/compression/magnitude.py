"""Magnitude pruning: set the smallest weights to zero for good, at once or during training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import pytorch_lightning as pl
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from qa_arch.config.compression_steps import Magnitude
from qa_arch.nn.features import WordFeatures
from qa_arch.training.module import TrainingModule

MAX_UPDATES = 100
"""Maximum number of mask updates while the sparsity ramps up: selecting the smallest weights is slow."""
Masks = dict[str, Tensor]
"""Parameter name -> mask, True for pruned weights."""


def prunable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Weights to prune: matrices with more than two rows, except lookup tables.

    Embeddings, word vectors and the one or two rows that score spans are excluded: pruning them saves little
    and costs accuracy (Gordon et al. 2020 leave both whole).
    """
    tables = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, nn.Embedding | WordFeatures)
        for parameter in module.parameters(recurse=False)
    }
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.ndim > 1 and len(parameter) > 2 and id(parameter) not in tables
    }


def zeros(model: nn.Module) -> Masks:
    """Masks of the prunable weights that are zero already."""
    return {name: weight.detach() == 0 for name, weight in prunable(model).items()}


def sparsity_of(masks: Masks) -> float:
    """Share of the prunable weights that is masked."""
    return sum(int(mask.sum()) for mask in masks.values()) / sum(mask.numel() for mask in masks.values())


def smallest(
    weights: Mapping[str, Tensor], sparsity: float, scope: Literal["global", "layer"], masked: Masks
) -> Masks:
    """Masks of the share ``sparsity`` of smallest magnitude, over all weights or per matrix.

    Weights ``masked`` already come first, so that masks only grow. The number is exact: ties go to the first.
    """
    scores = [
        torch.where(masked[name], -1.0, weight.detach().abs()).flatten() for name, weight in weights.items()
    ]
    if scope == "global":
        masks = _smallest(torch.cat(scores), sparsity).split([len(values) for values in scores])
    else:
        masks = tuple(_smallest(values, sparsity) for values in scores)
    return {name: mask.view_as(weights[name]) for name, mask in zip(weights, masks, strict=True)}


def _smallest(values: Float[Tensor, "N"], sparsity: float) -> Bool[Tensor, "N"]:
    """Mask of the smallest values. Negative ones are always masked, even if they are a larger share, as in a
    matrix that an earlier step over all weights has pruned."""
    count, masked = round(sparsity * len(values)), values < 0
    if count <= masked.sum():
        return masked
    threshold = values.kthvalue(count).values
    mask = values < threshold
    ties = (values == threshold).nonzero()[:, 0]
    mask[ties[: count - int(mask.sum())]] = True
    return mask


def prune(model: nn.Module, step: Magnitude) -> None:
    """Set the smallest weights of ``model`` to zero, in place."""
    weights = prunable(model)
    apply_masks(weights, smallest(weights, step.sparsity, step.scope, zeros(model)))


@torch.no_grad()
def apply_masks(weights: Mapping[str, Tensor], masks: Masks) -> None:
    """Set masked weights to zero, in place."""
    for name, mask in masks.items():
        weights[name].masked_fill_(mask, 0.0)


def scheduled_sparsity(step: int, ramp: int, first: float, last: float) -> float:
    """Sparsity after ``step`` of ``ramp`` optimizer steps (Zhu & Gupta 2017, eq. 1)."""
    return last if step >= ramp else last + (first - last) * (1 - step / ramp) ** 3


class HoldZeros(pl.Callback):
    """Keeps ``masked`` weights at zero during training, and raises the sparsity on the schedule of ``step``.

    Without a ``step`` the masks stay fixed. Must come before callbacks that save weights. Gradients of masked
    weights are zeroed too, so that they do not count toward the clipped norm.
    """

    def __init__(self, masked: Masks, step: Magnitude | None = None) -> None:
        self.masks, self.step = masked, step
        self.first = sparsity_of(masked)
        self.reached = -1
        """Optimizer step of the last mask update."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, TrainingModule)
        self.weights = prunable(pl_module.model)
        self.masks = {name: mask.to(self.weights[name].device) for name, mask in self.masks.items()}
        self.ramp = round(pl_module.total_steps * self.step.ramp) if self.step else 0
        if trainer.global_step == 0:
            self._hold(0)

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        gradients = {name: w.grad for name, w in self.weights.items() if w.grad is not None}
        apply_masks(gradients, {name: self.masks[name] for name in gradients})

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step != self.reached:  # else the batch only accumulated gradients
            self._hold(trainer.global_step)

    def _hold(self, step: int) -> None:
        """Update the masks to the sparsity after ``step`` if an update is due, and apply them."""
        due = step % max(1, self.ramp // MAX_UPDATES) == 0 if step < self.ramp else self.reached < self.ramp
        if self.step and due:
            sparsity = scheduled_sparsity(step, self.ramp, self.first, self.step.sparsity)
            self.masks = smallest(self.weights, sparsity, self.step.scope, self.masks)
        apply_masks(self.weights, self.masks)
        self.reached = step

    def state_dict(self) -> dict[str, Any]:
        return {"masks": self.masks, "first": self.first, "reached": self.reached}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.masks, self.first, self.reached = (state_dict[key] for key in ("masks", "first", "reached"))
