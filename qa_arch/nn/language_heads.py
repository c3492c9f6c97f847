"""Heads of language models: the vocabulary's scores of each token, and "does the second part follow".

Axes: ``B`` blocks, ``P`` predicted tokens, ``H`` width, ``E`` width of the embeddings, ``V`` vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from qa_arch.nn.masking import scored

if TYPE_CHECKING:
    from transformers import PretrainedConfig


class TokenHead(nn.Module):
    """BERT's head of masked language modelling (Devlin et al. 2019): transform, norm, tied decoder.

        y = LayerNorm(GELU(W x + c)),   scores = E y + b

    ``E`` (V, E) are the encoder's own input embeddings, given at each call: the head has no copy of them,
    so that no loading or saving can part the two.
    """

    def __init__(self, width: int, embedding: nn.Embedding, config: PretrainedConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(width, embedding.embedding_dim)
        self.norm = nn.LayerNorm(
            embedding.embedding_dim, eps=getattr(config, "layer_norm_eps", None) or 1e-12
        )
        self.bias = nn.Parameter(torch.zeros(embedding.num_embeddings))
        initialize(self.dense, config)

    def forward(
        self, states: Float[Tensor, "B P H"], embeddings: Float[Tensor, "V E"]
    ) -> Float[Tensor, "B P V"]:
        y = self.norm(functional.gelu(self.dense(states)))
        return functional.linear(y, embeddings.to(y.dtype), self.bias)  # those of a cast encoder are halves


class SentenceHead(nn.Module):
    """Log-odds that the second part of a block follows the first, from its first token.

        follows = w · tanh(W x + c) + b

    BERT's pooler and next-sentence head (Devlin et al. 2019), whose two logits are one difference here.
    """

    def __init__(self, width: int, config: PretrainedConfig) -> None:
        super().__init__()
        self.dense, self.score = nn.Linear(width, width), nn.Linear(width, 1)
        initialize(self.dense, config)
        initialize(self.score, config)

    def forward(self, first: Float[Tensor, "B H"]) -> Float[Tensor, "B"]:
        return scored(self.score, torch.tanh(self.dense(first))).squeeze(-1)


def initialize(linear: nn.Linear, config: Any) -> None:
    """Weights as the encoder's own (normal, ``initializer_range``), biases zero."""
    nn.init.normal_(linear.weight, std=getattr(config, "initializer_range", None) or 0.02)
    nn.init.zeros_(linear.bias)
