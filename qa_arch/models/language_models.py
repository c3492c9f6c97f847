"""Language models on any encoder: masked (BERT, ALBERT), causal (GPT) and denoising (BART).

What is trained of the encoder is what later runs start from (``encoder.name=RUN``); the heads stay behind.
Axes: ``B`` blocks, ``T`` tokens, ``P`` predicted tokens, ``H`` width.
"""

from __future__ import annotations

from typing import Annotated, Literal

from torch import nn

from qa_arch.config.check import Range
from qa_arch.nn.encoder import Encoder
from qa_arch.nn.language_heads import SentenceHead, TokenHead, look_ahead
from qa_arch.types.tensors import LanguageBatch, LanguageLogits

Dropout = Annotated[float, Range(0, 1)]
SentenceTask = Literal["none", "nsp", "sop"]


class MaskedLM(nn.Module):
    """Predicts hidden tokens from both sides (Devlin et al. 2019).

    ``sentence_task`` adds a head on the first token: next-sentence prediction (``nsp``, BERT: does the second
    part follow, or is it of another document) or sentence order (``sop``, ALBERT: are the two in order).
    """

    def __init__(self, encoder: Encoder, *, dropout: Dropout = 0.1, sentence_task: SentenceTask) -> None:
        super().__init__()
        self.encoder = encoder
        self.dropout = nn.Dropout(dropout)
        self.tokens = TokenHead(encoder.out_dim, embedding_of(encoder), encoder.config)
        self.sentence = None if sentence_task == "none" else SentenceHead(encoder.out_dim, encoder.config)

    def forward(self, batch: LanguageBatch) -> LanguageLogits:
        assert batch.positions is not None
        states = self.dropout(self.encoder(batch.ids, batch.mask, batch.segments))
        places = batch.positions[..., None].expand(-1, -1, states.shape[-1])
        follows = None if self.sentence is None else self.sentence(states[:, 0])
        return LanguageLogits(self.tokens(states.gather(1, places), embedding_of(self.encoder).weight), follows)


class CausalLM(nn.Module):
    """Predicts each token from those before it: an encoder under a look-ahead mask is a decoder (GPT)."""

    def __init__(self, encoder: Encoder, *, dropout: Dropout = 0.1) -> None:
        super().__init__()
        self.encoder = encoder
        self.dropout = nn.Dropout(dropout)
        self.tokens = TokenHead(encoder.out_dim, embedding_of(encoder), encoder.config)

    def forward(self, batch: LanguageBatch) -> LanguageLogits:
        states = self.dropout(self.encoder(batch.ids, look_ahead(batch.mask), batch.segments))
        return LanguageLogits(self.tokens(states, embedding_of(self.encoder).weight))


def embedding_of(encoder: Encoder) -> nn.Embedding:
    """The input embeddings, which every head predicts by as well."""
    embedding = encoder.backbone.get_input_embeddings()
    assert isinstance(embedding, nn.Embedding)
    return embedding


