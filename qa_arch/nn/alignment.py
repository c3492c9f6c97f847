"""Multiplicative alignment of the context with the question, before the match-LSTM reads it.

Axes: ``B`` windows, ``C`` context units, ``Q`` question units, ``D`` input width, ``l`` hidden width.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import pad

from qa_arch.nn.masking import at_least_float32, masked_softmax, scored

GAIN = 10.0
"""Of the cosine at the beginning: a unit that the question repeats has e^10 times the weight of "nothing"."""
MOST = 100.0
"""The largest gain (Radford et al. 2021, section 2.5)."""
SMALL = 1e-4
"""Added to a squared length, so that a row of zeros (an unknown word) has cosine 0 and a bounded gradient."""


class Alignment(nn.Module):
    """Each context unit p_i reads what it has in common with the question, beside what it was::

        s_ij = g cos(W p_i, W q_j),   s_i0 = 0          0: the question word "nothing", a row of zeros
        a_i  = Σ_j softmax(s_i)_j q_j
        p_i' = p_i + V relu(U [a_i; p_i ∘ a_i; |p_i - a_i|] + u)

    The comparison is that of Tai et al. 2015 (eq. 15) and Wang & Jiang 2017 ("SubMult+NN") with the residual
    of He et al. 2016. W begins orthonormal: a random projection leaves cosines nearly as they are, so that
    equal words find each other from the first step, which additive attention has to learn
    (``benchmarks/first_attention.py``; MiniLM with GloVe: 49% of the variance of the scores is interaction
    of the two texts, against 6% in the match attention, 23% at ``attention_gain=3``). The gain g is
    learned (by its logarithm, as in Radford et al. 2021, at most 100): how far apart the cosines of two texts
    lie depends on the encoder, and the right sharpness with it. V begins near zero, as the shortcut's
    pointer does: the model begins as the one without alignment, and every parameter has a gradient.
    """

    def __init__(self, in_dim: int, hidden: int) -> None:
        super().__init__()
        self.project = nn.Linear(in_dim, hidden, bias=False)  # W
        self.log_gain = nn.Parameter(torch.tensor([math.log(GAIN)]))  # log g
        self.compare = nn.Linear(3 * in_dim, hidden)  # U, u
        self.change = nn.Linear(hidden, in_dim, bias=False)  # V
        nn.init.orthogonal_(self.project.weight)
        nn.init.xavier_uniform_(self.compare.weight)
        nn.init.zeros_(self.compare.bias)
        nn.init.xavier_uniform_(self.change.weight, gain=0.01)

    def forward(
        self,
        context: Float[Tensor, "B C D"],
        question: Float[Tensor, "B Q D"],
        context_mask: Bool[Tensor, "B C"],
        question_mask: Bool[Tensor, "B Q"],
    ) -> Float[Tensor, "B C D"]:
        """The context changed; its padding stays as it is."""
        weights = self.attention(context, question, question_mask)[..., :-1].to(context.dtype)
        aligned = weights @ question
        seen = torch.cat([aligned, context * aligned, (context - aligned).abs()], dim=-1)
        change = self.change(torch.relu(self.compare(seen)))
        return context + change.masked_fill(~context_mask[..., None], 0.0)

    def attention(
        self,
        context: Float[Tensor, "B C D"],
        question: Float[Tensor, "B Q D"],
        question_mask: Bool[Tensor, "B Q"],
    ) -> Float[Tensor, "B C N"]:
        """softmax(s_i) over the N = Q + 1 question units, "nothing" last; in fp32 at least."""
        gain = self.log_gain.exp().clamp(max=MOST)
        with torch.autocast(context.device.type, enabled=False):
            cosines = self._directions(context) @ self._directions(question).mT
        return masked_softmax(pad(gain * cosines, (0, 1)), pad(question_mask, (0, 1), value=True)[:, None])

    def _directions(self, x: Float[Tensor, "B K D"]) -> Float[Tensor, "B K l"]:
        """W x, each row of length 1."""
        projected = scored(self.project, at_least_float32(x))
        return projected * (projected.square().sum(-1, keepdim=True) + SMALL).rsqrt()
