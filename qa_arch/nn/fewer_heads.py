"""Attention with fewer heads than the encoder's width holds, which no configuration of BERT's kin can say.

The classes of transformers derive the size of a head from the width and the number of heads, so an encoder
that lost heads and keeps their size is described by its configuration and by what is here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

HEAD_COUNTS = ("num_attention_heads", "num_heads", "n_heads", "heads")
"""Attributes in which attention modules hold how many heads they have."""


@dataclass(frozen=True)
class FewerHeads:
    """The heads that each layer has left, and the linear maps that are smaller for it."""

    heads: int
    maps: Mapping[str, Sequence[int]]
    """Name in the backbone -> rows and columns."""

    def apply(self, backbone: nn.Module) -> None:
        """Give ``backbone``, in place, maps of these sizes with random weights."""
        for name, (rows, columns) in self.maps.items():
            linear = backbone.get_submodule(name)
            assert isinstance(linear, nn.Linear)
            backbone.set_submodule(name, nn.Linear(columns, rows, bias=linear.bias is not None))
        self.count(backbone)

    def count(self, backbone: nn.Module) -> None:
        """Set the number of heads that the modules around the maps hold."""
        for name in {name.rpartition(".")[0] for name in self.maps}:
            owner = backbone.get_submodule(name)
            for attribute in HEAD_COUNTS:
                if isinstance(getattr(owner, attribute, None), int):
                    setattr(owner, attribute, self.heads)
