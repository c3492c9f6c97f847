"""Configuration of our Transformer, stored by transformers in ``config.json``."""

# No "from __future__ import annotations": ``strict`` would see the types as strings. A separate module, as
# the shape checks of the tests would treat the class as a dataclass of tensors.
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
    """Inner width of the feed-forward network."""
    max_position_embeddings: int = 512
    """Number of learned position embeddings; sinusoidal positions have no limit."""
    type_vocab_size: int = 2
    """Number of segment types: 2 for question and passage, 0 for none."""
    positions: Literal["learned", "sinusoidal"] = "learned"
    pre_norm: bool = False
    """Normalise the input of a sublayer (Xiong et al. 2020), not the residual sum (Vaswani et al. 2017)."""
    hidden_dropout_prob: float | int = 0.1
    attention_probs_dropout_prob: float | int = 0.1
    layer_norm_eps: float = 1e-12
    initializer_range: float = 0.02
    pad_token_id: int | None = 0
    """Its embedding is zero and not trained."""
