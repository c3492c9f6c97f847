"""Language models on any encoder: masked (BERT, ALBERT), causal (GPT) and denoising (BART).

What is trained of the encoder is what later runs start from (``encoder.name=RUN``); the rest stays behind.
Axes: ``B`` blocks, ``T`` tokens, ``P`` predicted tokens, ``H`` width, ``V`` vocabulary.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from qa_arch.config.check import Range
from qa_arch.nn.encoder import Encoder
from qa_arch.nn.language_heads import SentenceHead, TokenHead, initialize
from qa_arch.nn.transformer import DecoderBlock, TransformerSettings, look_ahead_mask, padding_mask
from qa_arch.types.tensors import LanguageBatch, LanguageLogits

SentenceTask = Literal["none", "nsp", "sop"]


class LanguageModel(nn.Module):
    """An encoder and the head that predicts tokens by its input embeddings."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.tokens = TokenHead(encoder.out_dim, self.embedding, encoder.config)

    @property
    def embedding(self) -> nn.Embedding:
        """The encoder's input embeddings; never registered a second time, so they are saved once."""
        embedding = self.encoder.backbone.get_input_embeddings()
        assert isinstance(embedding, nn.Embedding)
        return embedding

    def scores(self, states: Float[Tensor, "B P H"]) -> Float[Tensor, "B P V"]:
        return self.tokens(states, self.embedding.weight)


class MaskedLM(LanguageModel):
    """Predicts hidden tokens from both sides (Devlin et al. 2019).

    ``sentence_task`` adds a head on the first token: next-sentence prediction (``nsp``, BERT: does the second
    part follow, or is it of another document) or sentence order (``sop``, ALBERT: are the two in order).
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
    """Predicts each token from those before it: under a look-ahead mask an encoder is a decoder (GPT)."""

    def forward(self, batch: LanguageBatch) -> LanguageLogits:
        readable = padding_mask(batch.mask) & look_ahead_mask(batch.mask.shape[1], batch.mask.device)
        return LanguageLogits(self.scores(self.encoder(batch.ids, readable, batch.segments)))


class Denoiser(LanguageModel):
    """Writes the text that was there from one with spans hidden and sentences moved (Lewis et al. 2020).

    The decoder of ``layers`` reads and writes by the encoder's token embeddings; its positions are its own.
    """

    def __init__(
        self,
        encoder: Encoder,
        *,
        layers: Annotated[int, Range(1)] = 6,
        dropout: Annotated[float, Range(0, 1)] = 0.1,
    ) -> None:
        super().__init__(encoder)
        config, H = encoder.config, encoder.out_dim
        std = getattr(config, "initializer_range", None) or 0.02
        settings = TransformerSettings(
            vocabulary=encoder.vocab_size,
            layers=layers,
            width=H,
            heads=config.num_attention_heads,
            hidden=4 * H,
            dropout=dropout,
            attention_dropout=dropout,
            initializer_range=std,
        )
        self.blocks = nn.ModuleList(DecoderBlock(settings, cross=True) for _ in range(layers))
        for module in self.blocks.modules():
            if isinstance(module, nn.Linear):
                initialize(module, config)
        self.positions = nn.Embedding(encoder.max_tokens or settings.max_positions, H)
        nn.init.normal_(self.positions.weight, std=std)
        # ALBERT's embeddings are narrower than its layers.
        width = self.embedding.embedding_dim
        self.widen = nn.Identity() if width == H else nn.Linear(width, H)
        if isinstance(self.widen, nn.Linear):
            initialize(self.widen, config)
        self.norm, self.dropout = nn.LayerNorm(H, eps=settings.norm_eps), nn.Dropout(dropout)

    def forward(self, batch: LanguageBatch) -> LanguageLogits:
        assert batch.prefix is not None
        memory = self.encoder(batch.ids, batch.mask, batch.segments)
        return LanguageLogits(self.decode(batch.prefix, memory, batch.mask))

    def decode(
        self,
        prefix: Int[Tensor, "B P"],
        memory: Float[Tensor, "B T H"],
        memory_mask: Bool[Tensor, "B T"],
    ) -> Float[Tensor, "B P V"]:
        """Scores of the token behind each of ``prefix``, given the encoder's states of the noisy text."""
        length, device = prefix.shape[1], prefix.device
        places = torch.arange(length, device=device)
        states = self.widen(self.embedding(prefix)) + self.positions(places)
        states = self.dropout(self.norm(states))
        for block in self.blocks:
            states = block(states, look_ahead_mask(length, device), True, memory, padding_mask(memory_mask))
        return self.scores(states)
