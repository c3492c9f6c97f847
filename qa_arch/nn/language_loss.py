"""The loss of language models: ``(logits, labels) -> (B,)``, chosen like those of ``nn.losses``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from qa_arch.config.check import Range
from qa_arch.types.tensors import LanguageBatch, LanguageLogits


@dataclass(frozen=True)
class TokenLoss:
    """Mean cross-entropy of the tokens that a block predicts, in nats, plus that of its sentence task::

        loss_i = Σ_p -log p(target_p) / P_i  +  ω (-log p(follows_i))

    with ω = ``sentence_weight``; 0 for a block without a target. As every block predicts the same share of
    its tokens, the mean over blocks weighs tokens alike but for blocks that are shorter than others.
    """

    label_smoothing: Annotated[float, Range(0, 1)] = 0.0
    sentence_weight: Annotated[float, Range(0)] = 1.0
    tasks: ClassVar = ("masked_lm", "causal_lm", "denoising")

    def __call__(self, logits: LanguageLogits, labels: LanguageBatch) -> Float[Tensor, "B"]:
        losses = functional.cross_entropy(
            logits.tokens.float().flatten(0, 1),
            labels.targets.flatten(),
            reduction="none",
            label_smoothing=self.label_smoothing,
        ).view_as(labels.targets)
        total = torch.where(labels.counted, losses, 0.0).sum(1) / labels.counted.sum(1).clamp(min=1)
        if logits.follows is None or labels.follows is None:
            return total
        sentence = functional.binary_cross_entropy_with_logits(
            logits.follows.float(), labels.follows.float(), reduction="none"
        )
        return total + self.sentence_weight * sentence
