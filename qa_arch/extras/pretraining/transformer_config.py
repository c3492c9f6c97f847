"""The configuration of our Transformer, as transformers keeps it in ``config.json``."""

# No "from __future__ import annotations": ``strict`` would take the types for strings. In a module of its own
# because the tests' checks of shapes would take the class for a dataclass of tensors.
from typing import Literal

from huggingface_hub.dataclasses import strict
from transformers import PretrainedConfig

FAMILY = "qa_transformer"


@strict
class QaTransformerConfig(PretrainedConfig):
    """Sizes and variants of a Transformer."""

    model_type = FAMILY

    vocab_size: int = 30522
    hidden_size: int = 512
    num_hidden_layers: int = 6
    num_attention_heads: int = 8
    intermediate_size: int = 2048
    """Width between the two maps of the feed-forward network."""
    max_position_embeddings: int = 512
    """Rows of the table of learned positions; sinusoidal ones have no limit."""
    type_vocab_size: int = 2
    """Kinds of segments: 2 for question and passage, 0 for none."""
    positions: Literal["learned", "sinusoidal"] = "learned"
    pre_norm: bool = False
    """Normalise what enters a sublayer (Xiong et al. 2020), not the sum behind it (the paper)."""
    hidden_dropout_prob: float | int = 0.1
    attention_probs_dropout_prob: float | int = 0.1
    layer_norm_eps: float = 1e-12
    initializer_range: float = 0.02
    pad_token_id: int | None = 0
    """Its vector is zero and not learned."""
