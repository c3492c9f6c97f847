"""Language models on any encoder: masked (BERT, ALBERT) and causal (GPT), and the loss of all.

Later runs start from the trained encoder (``encoder.name=RUN``); the heads are discarded.
Axes: ``B`` blocks, ``T`` tokens, ``P`` predicted tokens, ``H`` width, ``E`` width of the embeddings,
``V`` vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional
from transformers import PretrainedConfig

from qa_arch.extras.pretraining.transformer import look_ahead_mask, padding_mask
from qa_arch.nn.encoder import Encoder
from qa_arch.nn.masking import linear_fp32
from qa_arch.tensors import Movable

SentenceTask = Literal["none", "nsp", "sop"]


@dataclass(frozen=True, slots=True, eq=False)
class LanguageBatch(Movable):
    """Blocks of text and the tokens to predict in them, each axis padded to its longest row."""

    index: Int[Tensor, "B"]
    """Row of each block in its table."""
    ids: Int[Tensor, "B T"]
    """What the encoder reads: the text, with noise for masked language modelling and denoising."""
    mask: Bool[Tensor, "B T"]
    """True on every token that is not padding."""
    segments: Int[Tensor, "B T"] | None
    """Segment ids; None for encoders without."""
    targets: Int[Tensor, "B P"]
    """The tokens to predict."""
    counted: Bool[Tensor, "B P"]
    """True on every target that is not padding."""
    weight: Float[Tensor, "B"]
    """1 for a real block, 0 for one that only keeps an idle rank in step."""
    positions: Int[Tensor, "B P"] | None = None
    """Masked language modelling: position of each target on the token axis."""
    follows: Bool[Tensor, "B"] | None = None
    """Sentence tasks: True if the second part follows the first in the text."""
    prefix: Int[Tensor, "B P"] | None = None
    """Denoising: what the decoder reads, the token before each target."""
    noised: Bool[Tensor, "B P"] | None = None
    """Denoising: True on every target that the encoder does not see."""

    def __len__(self) -> int:
        return self.ids.shape[0]

    @property
    def labels(self) -> LanguageBatch:
        """The batch itself, whose fields hold the targets."""
        return self


@dataclass(frozen=True, slots=True, eq=False)
class LanguageLogits(Movable):
    """Vocabulary scores of each target and, for sentence tasks, the log-odds of "follows"."""

    tokens: Float[Tensor, "B P V"]
    follows: Float[Tensor, "B"] | None = None


class TiedHead(nn.Module):
    """The decoder's output layer (Vaswani et al. 2017, section 3.4): ``scores = E y + b``.

    ``E`` (V, E) are the encoder's input embeddings, passed at each call: the head holds no copy, so loading
    or saving cannot untie the two.
    """

    def __init__(self, width: int, embedding: nn.Embedding, config: PretrainedConfig) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(embedding.num_embeddings))

    def forward(
        self, states: Float[Tensor, "B P H"], embeddings: Float[Tensor, "V E"]
    ) -> Float[Tensor, "B P V"]:
        # The embeddings of a cast encoder are in half precision.
        return functional.linear(states, embeddings.to(states.dtype), self.bias)


class TokenHead(TiedHead):
    """BERT's masked language modelling head (Devlin et al. 2019): transform, norm, tied decoder.

    y = LayerNorm(GELU(W x + c)),   scores = E y + b
    """

    def __init__(self, width: int, embedding: nn.Embedding, config: PretrainedConfig) -> None:
        super().__init__(width, embedding, config)
        self.dense = nn.Linear(width, embedding.embedding_dim)
        eps = getattr(config, "layer_norm_eps", None) or 1e-12  # BERT's
        self.norm = nn.LayerNorm(embedding.embedding_dim, eps=eps)
        initialize(self.dense, config)

    def forward(
        self, states: Float[Tensor, "B P H"], embeddings: Float[Tensor, "V E"]
    ) -> Float[Tensor, "B P V"]:
        return super().forward(self.norm(functional.gelu(self.dense(states))), embeddings)


class SentenceHead(nn.Module):
    """Log-odds that the second part of a block follows the first, from its first token.

        follows = w · tanh(W x + c) + b

    BERT's pooler and next-sentence head (Devlin et al. 2019), with one log-odds instead of two logits.
    """

    def __init__(self, width: int, config: PretrainedConfig) -> None:
        super().__init__()
        self.dense, self.score = nn.Linear(width, width), nn.Linear(width, 1)
        initialize(self.dense, config)
        initialize(self.score, config)

    def forward(self, first: Float[Tensor, "B H"]) -> Float[Tensor, "B"]:
        return linear_fp32(self.score, torch.tanh(self.dense(first))).squeeze(-1)


def initialize(linear: nn.Linear, config: Any) -> None:
    """Initialise as the encoder does: normal weights (``initializer_range``), zero biases."""
    nn.init.normal_(linear.weight, std=getattr(config, "initializer_range", None) or 0.02)  # BERT's
    nn.init.zeros_(linear.bias)


class LanguageModel(nn.Module):
    """An encoder with a token head tied to its input embeddings."""

    head: ClassVar[type[TiedHead]] = TokenHead

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.tokens = self.head(encoder.out_dim, self.embedding, encoder.config)

    @property
    def embedding(self) -> nn.Embedding:
        """The encoder's input embeddings; a property, not a second registration, so they are saved once."""
        embedding = self.encoder.backbone.get_input_embeddings()
        assert isinstance(embedding, nn.Embedding)
        return embedding

    def scores(self, states: Float[Tensor, "B P H"]) -> Float[Tensor, "B P V"]:
        return self.tokens(states, self.embedding.weight)


class MaskedLM(LanguageModel):
    """Predicts hidden tokens from the context on both sides (Devlin et al. 2019).

    ``sentence_task`` adds a head on the first token: next-sentence prediction (``nsp``, BERT: does the second
    part follow, or is it from another document) or sentence order (``sop``, ALBERT: are the two in order).
    """

    def __init__(self, encoder: Encoder, *, sentence_task: SentenceTask = "none") -> None:
        super().__init__(encoder)
        self.sentence = None if sentence_task == "none" else SentenceHead(encoder.out_dim, encoder.config)

    def forward(self, batch: LanguageBatch) -> LanguageLogits:
        assert batch.positions is not None
        states = self.encoder(batch.ids, batch.mask, batch.segments)
        hidden = states.gather(1, batch.positions[..., None].expand(-1, -1, states.shape[-1]))
        follows = None if self.sentence is None else self.sentence(states[:, 0])
        return LanguageLogits(self.scores(hidden), follows)


class CausalLM(LanguageModel):
    """Predicts each token from the preceding ones: an encoder under a look-ahead mask is a decoder (GPT)."""

    def forward(self, batch: LanguageBatch) -> LanguageLogits:
        readable = padding_mask(batch.mask) & look_ahead_mask(batch.mask.shape[1], batch.mask.device)
        return LanguageLogits(self.scores(self.encoder(batch.ids, readable, batch.segments)))


@dataclass(frozen=True)
class TokenLoss:
    """Mean cross-entropy of a block's targets, in nats, plus that of its sentence task::

        loss_i = Σ_p -log p(target_p) / P_i - log p(follows_i)

    The first term is 0 for a block without targets. Every block predicts the same share of its tokens, so the
    mean over blocks weighs all tokens equally, except in shorter blocks.
    """

    tasks: ClassVar = ("masked_lm", "causal_lm", "denoising")

    def __call__(self, logits: LanguageLogits, labels: LanguageBatch) -> Float[Tensor, "B"]:
        losses = functional.cross_entropy(
            logits.tokens.float().flatten(0, 1), labels.targets.flatten(), reduction="none"
        ).view_as(labels.targets)
        total = torch.where(labels.counted, losses, 0.0).sum(1) / labels.counted.sum(1).clamp(min=1)
        if logits.follows is None or labels.follows is None:
            return total
        sentence = functional.binary_cross_entropy_with_logits(
            logits.follows.float(), labels.follows.float(), reduction="none"
        )
        return total + sentence
