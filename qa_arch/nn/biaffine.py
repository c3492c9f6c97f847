"""A span head that scores start and end together, by biaffine attention (Dozat & Manning 2017).

Axes: ``B`` windows, ``C`` context units, ``N`` = C + 1 with the sentinel, ``D`` input width, ``l`` hidden.
"""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from qa_arch.config.check import Range
from qa_arch.nn.heads import SpanScores, neutral_null, with_sentinel
from qa_arch.nn.masking import at_least_float32, fill

SLOPE = 0.1
"""Of the rectifier below zero."""


class BiaffineHead(nn.Module):
    """The score of a span from unit s to unit e (Dozat & Manning 2017, eqs. 4-7, over start × end)::

        p_s = f(W^p h_s + b^p),   q_e = f(W^q h_e + b^q)        f: leaky rectifier
        score(s, e) = u^p · p_s + u^q · q_e + p_s^T U q_e

    The first term is the start's score, the second the end's, the third ``pair``. U begins at zero, so
    that start and end begin as independent. A bias would shift all spans and "nothing" alike: there is
    none. The null's score is that of the sentinel, the row of "nothing" behind the context, as start and
    end at once; without the sentinel it is ``neutral_null`` over all spans.
    """

    def __init__(self, in_dim: int, hidden: Annotated[int, Range(1)] = 150, *, sentinel: bool = True) -> None:
        super().__init__()
        self.sentinel = sentinel
        self.as_start = nn.Linear(in_dim, hidden)  # W^p
        self.as_end = nn.Linear(in_dim, hidden)  # W^q
        self.start = nn.Linear(hidden, 1, bias=False)  # u^p
        self.end = nn.Linear(hidden, 1, bias=False)  # u^q
        self.pair = nn.Parameter(torch.zeros(hidden, hidden))  # U
        for linear in (self.as_start, self.as_end, self.start, self.end):
            nn.init.xavier_uniform_(linear.weight)
        for linear in (self.as_start, self.as_end):
            nn.init.zeros_(linear.bias)

    def forward(
        self,
        context: Float[Tensor, "B C D"],
        mask: Bool[Tensor, "B C"],
        nothing: Float[Tensor, "B D"] | None = None,
    ) -> SpanScores:
        """``nothing`` is the sentinel's row; zeros where it is not given."""
        C = context.shape[1]
        rows = with_sentinel(context, mask, nothing)[0] if self.sentinel else context
        with torch.autocast(rows.device.type, enabled=False):  # scores need fp32
            start, end, pair = self._scores(at_least_float32(rows))
        if self.sentinel:
            null_start, null_end = start[:, C], end[:, C] + pair[:, C, C]
        else:
            spans = start[:, :, None] + end[:, None, :] + pair
            possible = (mask[:, :, None] & mask[:, None, :]).triu()
            null_end = neutral_null(spans.flatten(1), possible.flatten(1))
            null_start = torch.zeros_like(null_end)
        return SpanScores(
            fill(start[:, :C], mask), fill(end[:, :C], mask), null_start, null_end, pair[:, :C, :C]
        )

    def _scores(
        self, rows: Float[Tensor, "B N D"]
    ) -> tuple[Float[Tensor, "B N"], Float[Tensor, "B N"], Float[Tensor, "B N N"]]:
        first, last = leaky_relu(self.as_start(rows), SLOPE), leaky_relu(self.as_end(rows), SLOPE)
        return self.start(first)[..., 0], self.end(last)[..., 0], first @ self.pair @ last.mT
