"""The Transformer of Vaswani et al. 2017, encoder and decoder, in one file of plain torch.

``docs/extras/pretraining.md`` maps the equations to the names used here. Importing this module registers the
model type ``qa_transformer`` with transformers, so ``AutoConfig`` and ``AutoModel`` load its folders from
safetensors like any other.

Axes: ``B`` rows, ``T`` query tokens, ``S`` key tokens, ``N`` heads, ``D`` width of a head, ``H`` = N D width.
Masks are True on real tokens, or on tokens that may be attended to.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import dropout, embedding, gelu, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModel, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils.output_capturing import capture_outputs

from qa_arch.extras.pretraining.transformer_config import FAMILY, QaTransformerConfig
from qa_arch.nn.masking import fast_attention, masked_softmax

Ids = Int[Tensor, "B T"]
States = Float[Tensor, "B T H"]
Memory = Float[Tensor, "B S H"]
"""States of the encoder, which the decoder attends to."""
Table = Float[Tensor, "V H"]
"""The encoder's token embeddings."""
AttentionMask = Bool[Tensor, "*M S"] | None
"""Broadcasts to (B, N, T, S); None: every token attends to every token."""
Past = dict[nn.Module, tuple[Tensor, Tensor]]
"""Keys and values (B, N, S, D) of each attention of a decoder, kept from one step of writing to the next."""
SelfAttentionMask = Bool[Tensor, "*L T"] | None
"""Broadcasts to (B, N, T, T)."""


def padding_mask(real: Bool[Tensor, "B S"]) -> Bool[Tensor, "B 1 1 S"]:
    """Every token, in every head, attends to the real tokens of its row."""
    return real[:, None, None, :]


def look_ahead_mask(length: int, device: torch.device | None = None) -> Bool[Tensor, "T T"]:
    """Token t attends to tokens 0 ... t."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


def attention(
    q: Float[Tensor, "B N T D"],
    k: Float[Tensor, "B N S D"],
    v: Float[Tensor, "B N S D"],
    mask: AttentionMask = None,
    *,
    dropout_p: float = 0.0,
    fused: bool = True,
) -> tuple[Float[Tensor, "B N T D"], Float[Tensor, "B N T S"] | None]:
    """softmax(Q Kᵀ / √D) V (eq. 1); zeros for a token whose mask is all False.

    ``fused`` uses torch's kernels, which never materialise the probabilities. Otherwise these are returned as
    well, before dropout.
    """
    if fused:
        kernel = partial(scaled_dot_product_attention, dropout_p=dropout_p)
        return fast_attention(kernel, q, k, v, mask, dropout=dropout_p), None
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    weights = scores.softmax(-1) if mask is None else masked_softmax(scores, mask.expand_as(scores))
    return dropout(weights, dropout_p) @ v, weights


class MultiHeadAttention(nn.Module):
    """Attention in parallel heads, each in its own subspace (section 3.2.2)."""

    def __init__(self, config: QaTransformerConfig) -> None:
        super().__init__()
        H, self.heads = config.hidden_size, config.num_attention_heads
        self.dropout = config.attention_probs_dropout_prob
        self.query, self.key, self.value, self.output = (nn.Linear(H, H) for _ in range(4))

    def forward(
        self,
        x: States,
        mask: AttentionMask = None,
        fused: bool = True,
        memory: Memory | None = None,
        past: Past | None = None,
    ) -> tuple[States, Float[Tensor, "B N T S"] | None]:
        """Attend to ``memory``, or to ``x`` itself: (states, probabilities, or None if ``fused``).

        With ``past``, ``x`` also attends to what was read before, and is added to it.
        """
        q = self._heads(self.query, x)
        if memory is not None and past and self in past:  # the memory stays the same
            k, v = past[self]
        else:
            source = x if memory is None else memory
            k, v = self._heads(self.key, source), self._heads(self.value, source)
            if past and self in past:
                k, v = (torch.cat(pair, 2) for pair in zip(past[self], (k, v), strict=True))
        if past is not None:  # also while it is empty
            past[self] = k, v
        dropout_p = self.dropout if self.training else 0.0
        heads, weights = attention(q, k, v, mask, dropout_p=dropout_p, fused=fused)
        return self.output(heads.transpose(1, 2).flatten(2)), weights

    def _heads(self, projection: nn.Linear, x: Tensor) -> Float[Tensor, "B N S D"]:
        return projection(x).unflatten(2, (self.heads, -1)).transpose(1, 2)


class FeedForward(nn.Module):
    """W₂ GELU(W₁ x + b₁) + b₂ at each position (eq. 2, with BERT's GELU instead of ReLU)."""

    def __init__(self, config: QaTransformerConfig) -> None:
        super().__init__()
        self.expand = nn.Linear(config.hidden_size, config.intermediate_size)
        self.contract = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: States) -> States:
        return self.contract(gelu(self.expand(x)))


class Residual(nn.Module):
    """Residual connection around a sublayer f: LN(x + f(x)) (section 3.1); with ``pre_norm`` x + f(LN(x))."""

    def __init__(self, config: QaTransformerConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.pre_norm = config.pre_norm

    def forward(self, x: States, sublayer: Callable[[Tensor], Tensor]) -> States:
        if self.pre_norm:
            return x + self.dropout(sublayer(self.norm(x)))
        return self.norm(x + self.dropout(sublayer(x)))


class EncoderBlock(nn.Module):
    """Self-attention, then the feed-forward network."""

    def __init__(self, config: QaTransformerConfig) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(config)
        self.around_attention = Residual(config)
        self.feed_forward = FeedForward(config)
        self.around_feed_forward = Residual(config)

    def forward(self, x: States, mask: SelfAttentionMask = None, fused: bool = True) -> States:
        x = self.around_attention(x, lambda x: self.attention(x, mask, fused)[0])
        return self.around_feed_forward(x, self.feed_forward)


class DecoderBlock(nn.Module):
    """Self-attention to the tokens so far, attention to the encoder, then the feed-forward network (3.1)."""

    def __init__(self, config: QaTransformerConfig) -> None:
        super().__init__()
        self.attention, self.cross_attention = MultiHeadAttention(config), MultiHeadAttention(config)
        self.around_attention, self.around_cross_attention = Residual(config), Residual(config)
        self.feed_forward = FeedForward(config)
        self.around_feed_forward = Residual(config)

    def forward(
        self,
        x: States,
        mask: Bool[Tensor, "T P"],
        memory: Memory,
        memory_mask: AttentionMask,
        fused: bool = True,
        past: Past | None = None,
    ) -> States:
        """``mask`` gives the tokens, with those of ``past``, that each may attend to."""
        x = self.around_attention(x, lambda x: self.attention(x, mask, fused, past=past)[0])
        x = self.around_cross_attention(
            x, lambda x: self.cross_attention(x, memory_mask, fused, memory, past)[0]
        )
        return self.around_feed_forward(x, self.feed_forward)


def sinusoidal_positions(length: int, width: int, device: torch.device | None = None) -> Float[Tensor, "T H"]:
    """PE(t, 2i) = sin(t / 10000^(2i / H)), PE(t, 2i + 1) = cos(t / 10000^(2i / H)) (section 3.5)."""
    rates = torch.exp(torch.arange(0, width, 2, device=device) * (-math.log(10_000.0) / width))
    angles = torch.arange(length, device=device)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :width]  # H may be odd


class Embeddings(nn.Module):
    """Sum of token, position and segment embeddings (section 3.4; Devlin et al. 2019).

    Without its ``own`` token embeddings it is given others at each call.
    """

    tokens: nn.Embedding

    def __init__(self, config: QaTransformerConfig, own: bool = True) -> None:
        super().__init__()
        H = config.hidden_size
        tokens = nn.Embedding(config.vocab_size, H, padding_idx=config.pad_token_id) if own else None
        self.register_module("tokens", tokens)
        learned = config.positions == "learned"
        self.positions = nn.Embedding(config.max_position_embeddings, H) if learned else None
        self.segments = nn.Embedding(config.type_vocab_size, H) if config.type_vocab_size else None
        # Pre-norm blocks normalise their own input.
        self.norm = nn.Identity() if config.pre_norm else nn.LayerNorm(H, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self, ids: Ids, segments: Ids | None = None, *, tokens: Table | None = None, first: int = 0
    ) -> States:
        """Without ``segments`` all tokens belong to segment 0; ``first`` is the position of the first."""
        x = self.tokens(ids) if tokens is None else embedding(ids, tokens)
        T, H = x.shape[1:]
        if self.positions is None:
            # "In the embedding layers, we multiply those weights by √d_model" (section 3.4).
            x = math.sqrt(H) * x + sinusoidal_positions(first + T, H, ids.device)[first:].to(x.dtype)
        else:
            x = x + self.positions(torch.arange(first, first + T, device=ids.device))
        if self.segments is not None:
            x = x + self.segments(torch.zeros_like(ids) if segments is None else segments)
        return self.dropout(self.norm(x))


class TransformerEncoder(nn.Module):
    """Embeddings, blocks, and a final norm if the blocks are pre-norm."""

    gradient_checkpointing = False
    """Recompute blocks in the backward pass instead of storing their activations."""

    def __init__(self, config: QaTransformerConfig) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        self.blocks = nn.ModuleList(EncoderBlock(config) for _ in range(config.num_hidden_layers))
        self.norm = _last_norm(config)
        self.apply(lambda module: _initialise(module, config.initializer_range))

    def forward(
        self, ids: Ids, mask: SelfAttentionMask = None, segments: Ids | None = None, *, fused: bool = True
    ) -> States:
        """``mask`` (B, T) is True on real tokens; a mask of more axes gives the tokens each may attend to."""
        attention_mask = padding_mask(mask) if mask is not None and mask.dim() == 2 else mask
        x = self.embeddings(ids, segments)
        for block in self.blocks:
            if self.gradient_checkpointing and self.training:
                x = checkpoint(block, x, attention_mask, fused, use_reentrant=False)
            else:
                x = block(x, attention_mask, fused)
        return self.norm(x)


class TransformerDecoder(nn.Module):
    """Embeddings, blocks, and a final norm if the blocks are pre-norm; tokens are embedded as by the encoder.

    "We share the same weight matrix between the two embedding layers and the pre-softmax linear
    transformation" (section 3.4): it is passed at each call, so that the decoder holds no copy.
    """

    def __init__(self, config: QaTransformerConfig) -> None:
        super().__init__()
        self.embeddings = Embeddings(config, own=False)
        self.blocks = nn.ModuleList(DecoderBlock(config) for _ in range(config.num_hidden_layers))
        self.norm = _last_norm(config)
        self.apply(lambda module: _initialise(module, config.initializer_range))

    def forward(
        self,
        ids: Ids,
        memory: Memory,
        memory_mask: Bool[Tensor, "B S"],
        tokens: Table,
        *,
        fused: bool = True,
        past: Past | None = None,
    ) -> States:
        """States of ``ids``, whose padding is only at the end, where no real token looks.

        With ``past``, which begins empty, ``ids`` continue those of the calls before.
        """
        # The first entry is of a self-attention, which keeps all tokens so far.
        first = next(iter(past.values()))[0].shape[2] if past else 0
        x, last = self.embeddings(ids, tokens=tokens, first=first), first + ids.shape[1]
        mask = look_ahead_mask(last, ids.device)[first:]
        for block in self.blocks:
            x = block(x, mask, memory, padding_mask(memory_mask), fused, past)
        return self.norm(x)


def _last_norm(config: QaTransformerConfig) -> nn.Module:
    """Pre-norm blocks leave their output as it is."""
    norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
    return norm if config.pre_norm else nn.Identity()


def _initialise(module: nn.Module, std: float) -> None:
    """Normal weights, zero biases, zero padding embedding (Devlin et al. 2019)."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=std)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
    if isinstance(module, nn.Embedding) and module.padding_idx is not None:
        nn.init.zeros_(module.weight[module.padding_idx])


class QaTransformerModel(PreTrainedModel):
    """``TransformerEncoder`` as a transformers model."""

    config_class = QaTransformerConfig
    base_model_prefix = "transformer"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _can_record_outputs = {"hidden_states": EncoderBlock, "attentions": MultiHeadAttention}  # noqa: RUF012

    def __init__(self, config: QaTransformerConfig) -> None:
        super().__init__(config)
        self.transformer = TransformerEncoder(config)
        self.post_init()

    @classmethod
    def _can_set_attn_implementation(cls) -> bool:
        """transformers, which looks for its own functions in this file, would warn; ``forward`` reads it."""
        return True

    def get_input_embeddings(self) -> nn.Embedding:
        return self.transformer.embeddings.tokens

    @capture_outputs
    def forward(
        self,
        input_ids: Int[Tensor, "B T"],
        attention_mask: Bool[Tensor, "B T"] | Int[Tensor, "B T"] | Bool[Tensor, "B 1 T T"] | None = None,
        token_type_ids: Int[Tensor, "B T"] | None = None,
        **options: bool | None,
    ) -> BaseModelOutput:
        """transformers handles ``output_attentions`` and ``output_hidden_states``, which it captures itself.

        Attention is not fused if its probabilities are requested or the implementation is ``eager``.
        """
        fused = not options.get("output_attentions") and self.config._attn_implementation != "eager"
        mask = None if attention_mask is None else attention_mask.bool()
        states = self.transformer(input_ids, mask, segments=token_type_ids, fused=fused)
        return BaseModelOutput(last_hidden_state=states)


AutoConfig.register(FAMILY, QaTransformerConfig)
AutoModel.register(QaTransformerConfig, QaTransformerModel)
