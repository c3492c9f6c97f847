"""The verifier: a head of its own for whether a window holds an answer at all."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from qa_arch.nn.masking import masked_softmax, scored


class Verifier(nn.Module):
    """Log-odds of "no answer" from the context, pooled by attention, and the encoder's [CLS]."""

    def __init__(self, context_dim: int, cls_dim: int, hidden: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = nn.Linear(context_dim, 1, bias=False)
        self.hidden = nn.Linear(context_dim + cls_dim, hidden)
        self.dropout = nn.Dropout(dropout)
        self.odds = nn.Linear(hidden, 1)
        for linear in (self.attention, self.hidden, self.odds):
            nn.init.xavier_uniform_(linear.weight)
        for linear in (self.hidden, self.odds):
            nn.init.zeros_(linear.bias)

    def forward(
        self, context: Float[Tensor, "B C D"], mask: Bool[Tensor, "B C"], cls: Float[Tensor, "B H"]
    ) -> Float[Tensor, "B"]:
        weights = masked_softmax(self.attention(context)[..., 0], mask).to(context.dtype)
        pooled = (weights[:, None] @ context)[:, 0]
        hidden = torch.tanh(self.hidden(torch.cat([pooled, cls], dim=-1)))
        return scored(self.odds, self.dropout(hidden))[:, 0]
