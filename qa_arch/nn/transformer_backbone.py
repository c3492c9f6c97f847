"""Our Transformer as an encoder of transformers: the family ``qa_transformer``.

Importing this module registers it, so that ``AutoConfig`` and ``AutoModel`` know it.
"""

from __future__ import annotations

from typing import Literal

from jaxtyping import Bool, Int
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils.output_capturing import capture_outputs

from qa_arch.nn.transformer import (
    EncoderBlock,
    MultiHeadAttention,
    TransformerDecoder,
    TransformerEncoder,
    TransformerSettings,
)

FAMILY = "qa_transformer"


class QaTransformerConfig(PretrainedConfig):
    """``TransformerSettings`` under the library's names; ``causal`` for the stack of a language model."""

    model_type = FAMILY

    vocab_size: int = 30522
    hidden_size: int = 512
    num_hidden_layers: int = 6
    num_attention_heads: int = 8
    intermediate_size: int = 2048
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    positions: Literal["learned", "sinusoidal"] = "learned"
    pre_norm: bool = False
    causal: bool = False
    hidden_dropout_prob: float | int = 0.1
    attention_probs_dropout_prob: float | int = 0.1
    layer_norm_eps: float = 1e-12
    initializer_range: float = 0.02
    pad_token_id: int | None = 0

    def settings(self) -> TransformerSettings:
        """Raises ValueError where sizes do not fit together."""
        return TransformerSettings(
            vocabulary=self.vocab_size,
            layers=self.num_hidden_layers,
            width=self.hidden_size,
            heads=self.num_attention_heads,
            hidden=self.intermediate_size,
            max_positions=self.max_position_embeddings,
            segments=self.type_vocab_size,
            positions=self.positions,
            pre_norm=self.pre_norm,
            dropout=self.hidden_dropout_prob,
            attention_dropout=self.attention_probs_dropout_prob,
            norm_eps=self.layer_norm_eps,
            initializer_range=self.initializer_range,
            padding=self.pad_token_id,
        )


class QaTransformerModel(PreTrainedModel):
    """An encoder or, with ``causal``, a decoder without cross-attention."""

    config_class = QaTransformerConfig
    base_model_prefix = "transformer"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _can_record_outputs = {"hidden_states": EncoderBlock, "attentions": MultiHeadAttention}  # noqa: RUF012
    _no_split_modules = ["EncoderBlock", "DecoderBlock"]  # noqa: RUF012

    def __init__(self, config: QaTransformerConfig) -> None:
        super().__init__(config)
        stack = TransformerDecoder if config.causal else TransformerEncoder
        self.transformer = stack(config.settings())
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.transformer.embeddings.tokens

    @capture_outputs
    def forward(
        self,
        input_ids: Int[Tensor, "B T"],
        attention_mask: Bool[Tensor, "B T"] | Bool[Tensor, "B 1 T T"] | None = None,
        token_type_ids: Int[Tensor, "B T"] | None = None,
        **recorded: bool,
    ) -> BaseModelOutput:
        """``output_hidden_states`` and ``output_attentions`` as for every model of the library."""
        wants_weights = recorded.get("output_attentions", self.config.output_attentions)
        fused = self.config._attn_implementation != "eager" and not wants_weights
        mask = None if attention_mask is None else attention_mask.bool()
        states = self.transformer(input_ids, mask, segments=token_type_ids, fused=fused)
        return BaseModelOutput(last_hidden_state=states)


AutoConfig.register(FAMILY, QaTransformerConfig)
AutoModel.register(QaTransformerConfig, QaTransformerModel)
