"""Our Transformer as an encoder of transformers, the family ``qa_transformer``; importing this registers it.

So ``AutoConfig`` and ``AutoModel`` know it, and folders of it are read from safetensors like any other.
"""

# No "from __future__ import annotations": ``strict`` would take the types of a configuration for strings.
from collections.abc import Mapping
from typing import Literal

from huggingface_hub.dataclasses import strict
from jaxtyping import Bool, Int
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, BertConfig, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils.output_capturing import capture_outputs

from qa_arch.errors import ConfigError
from qa_arch.extras.pretraining.transformer import (
    EncoderBlock,
    MultiHeadAttention,
    TransformerEncoder,
    TransformerSettings,
)

FAMILY = "qa_transformer"
_FROM_BERT = {
    "embeddings.word_embeddings": "embeddings.tokens",
    "embeddings.position_embeddings": "embeddings.positions",
    "embeddings.token_type_embeddings": "embeddings.segments",
    "embeddings.LayerNorm": "embeddings.norm",
    "encoder.layer": "blocks",
    "attention.self": "attention",
    "attention.output.dense": "attention.output",
    "attention.output.LayerNorm": "around_attention.norm",
    "intermediate.dense": "feed_forward.expand",
    "output.dense": "feed_forward.contract",
    "output.LayerNorm": "around_feed_forward.norm",
}
"""Parts of the names of ``BertModel``'s weights -> of ours, replaced in this order."""


@strict
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
    """A ``TransformerEncoder``."""

    config_class = QaTransformerConfig
    base_model_prefix = "transformer"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _can_record_outputs = {"hidden_states": EncoderBlock, "attentions": MultiHeadAttention}  # noqa: RUF012

    def __init__(self, config: QaTransformerConfig) -> None:
        super().__init__(config)
        self.transformer = TransformerEncoder(config.settings(), causal=config.causal)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.transformer.embeddings.tokens

    @capture_outputs
    def forward(
        self,
        input_ids: Int[Tensor, "B T"],
        attention_mask: Bool[Tensor, "B T"] | Int[Tensor, "B T"] | Bool[Tensor, "B 1 T T"] | None = None,
        token_type_ids: Int[Tensor, "B T"] | None = None,
        **recorded: bool | None,
    ) -> BaseModelOutput:
        """``output_attentions`` and ``output_hidden_states`` are the library's, which records them.

        Attention is plain where its probabilities are wanted, or where the implementation is ``eager``.
        """
        fused = not recorded.get("output_attentions") and self.config._attn_implementation != "eager"
        mask = None if attention_mask is None else attention_mask.bool()
        states = self.transformer(input_ids, mask, segments=token_type_ids, fused=fused)
        return BaseModelOutput(last_hidden_state=states)


def from_bert(state: Mapping[str, Tensor], config: BertConfig) -> QaTransformerModel:
    """The same function as the ``BertModel`` of these weights and settings; its pooler is left out.

    Raises ConfigError for a variant that ours does not have, or where weights are missing.
    """
    model = QaTransformerModel(config_from_bert(config))
    prefix = "bert." if "bert.embeddings.word_embeddings.weight" in state else ""
    parts = (f"{prefix}embeddings.", f"{prefix}encoder.")
    weights = {_our_name(name.removeprefix(prefix)): v for name, v in state.items() if name.startswith(parts)}
    try:
        model.transformer.load_state_dict(weights)
    except RuntimeError as error:
        reason = str(error).splitlines()[1].strip()
        raise ConfigError(f"{FAMILY}: these are not the weights of such a BERT ({reason})") from error
    return model


def config_from_bert(config: PretrainedConfig) -> QaTransformerConfig:
    """Our configuration of a BERT; ConfigError for what is none, or a variant that ours does not have."""
    if not isinstance(config, BertConfig) or config.is_decoder or config.hidden_act != "gelu":
        raise ConfigError(
            f"{FAMILY}: takes the weights of BERT encoders with GELU, not of this {config.model_type}"
        )
    shared = [name for name in QaTransformerConfig.__annotations__ if hasattr(config, name)]
    return QaTransformerConfig(**{name: getattr(config, name) for name in shared})


def _our_name(name: str) -> str:
    for part, ours in _FROM_BERT.items():
        name = name.replace(part, ours)
    return name


AutoConfig.register(FAMILY, QaTransformerConfig)
AutoModel.register(QaTransformerConfig, QaTransformerModel)
