"""The encoder of models that read words: learned word vectors, or no vectors of its own.

With it a model of the time before pre-trained encoders takes the same windows, cache and decoding as
the others: the tokenizer gives one piece a word, and GloVe comes in by ``WordFeatures`` as anywhere.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from qa_arch.errors import ConfigError
from qa_arch.nn.encoder import Encoder, Freeze

WORDS = "words"
"""The family, and the ``model_type`` of a saved description."""


class WordEncoder(nn.Module):
    """The encoder seam for words: ``out_dim`` is ``width``, and 0 where no vectors are learned.

    ``std`` is that of the learned vectors at the start; 1/sqrt(width) where it is not given.
    """

    has_segments = False
    has_cls: Literal[False] = False
    max_tokens = None
    depth = 0

    def __init__(self, vocab_size: int, width: int = 0, *, std: float | None = None) -> None:
        super().__init__()
        self.vocab_size, self.out_dim = vocab_size, width
        self.register_buffer(
            "nothing", torch.empty(0), persistent=False
        )  # has the model's device and precision
        self.nothing: Tensor
        self.embedding = nn.Embedding(vocab_size, width, padding_idx=0) if width else None
        if self.embedding is not None:
            nn.init.normal_(self.embedding.weight[1:], std=std or width**-0.5)

    def forward(
        self,
        ids: Int[Tensor, "B T"],
        mask: Bool[Tensor, "B T"],
        segments: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T H"]:
        if segments is not None:
            raise ValueError("words has no segment ids")
        if self.embedding is None:
            return self.nothing.new_zeros((*ids.shape, 0))
        return self.embedding(ids)

    def depth_of(self, parameter: str) -> int:
        """0: there are no layers above the embeddings."""
        return 0

    def freeze(self, what: Freeze) -> WordEncoder:
        """Hold ``"all"`` or ``"none"`` of the learned vectors fixed."""
        if what not in ("none", "all"):
            raise ConfigError(f"encoder.freeze={what}: words have no layers; none or all")
        return self.requires_grad_(what == "none")

    def describe(self) -> dict[str, Any]:
        """All that ``from_description`` needs, as plain values."""
        return {"model_type": WORDS, "vocab_size": self.vocab_size, "width": self.out_dim}

    @classmethod
    def from_description(cls, description: dict[str, Any]) -> WordEncoder:
        """The same sizes with fresh vectors; weights are loaded into it."""
        return cls(description["vocab_size"], description["width"])


AnyEncoder = Encoder | WordEncoder


def encoder_from(description: dict[str, Any]) -> AnyEncoder:
    """The encoder that ``describe`` described, with fresh weights."""
    kind = WordEncoder if description.get("model_type") == WORDS else Encoder
    return kind.from_description(description)
