"""A span head with random weights and the batch that its equations are checked on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

LENGTHS = [6, 2, 4]
"""Real positions of each window of the batch."""


def random_head(kind: type, **options: Any) -> tuple[Any, Tensor, Tensor]:
    """The head, context ``(3, 6, 8)`` and mask ``(3, 6)``, all in double precision."""
    torch.manual_seed(1)
    head = kind(8, 5, **options).double()
    for parameter in head.parameters():
        parameter.data.normal_(0.0, 0.5)
    context = torch.randn(3, 6, 8, dtype=torch.float64)
    mask = torch.arange(6) < torch.tensor(LENGTHS)[:, None]
    return head, context, mask
