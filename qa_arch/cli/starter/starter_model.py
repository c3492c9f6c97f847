"""StarterModel: an encoder and a span head that combines each token with a summary of the question.

A starting point: change what lies between the encoder and the scores. Axes: ``B`` windows, ``T`` tokens of
the longest of them, ``H`` encoder width (``encoder.out_dim``), ``D`` width of the scored features.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import nn

from qa_arch.config.check import Range
from qa_arch.nn.encoder import Encoder
from qa_arch.nn.masking import fill, linear_fp32, masked_softmax
from qa_arch.tensors import Batch, SpanLogits


class StarterModel(nn.Module):
    """``encoder`` is built from the config section of that name; other arguments are keys of the YAML."""

    def __init__(
        self,
        encoder: Encoder,
        *,
        hidden: Annotated[int, Range(1)] = 128,
        dropout: Annotated[float, Range(0, 1)] = 0.1,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.query = nn.Linear(encoder.out_dim, 1, bias=False)  # H -> 1
        self.mix = nn.Linear(3 * encoder.out_dim, hidden)  # 3H -> D
        self.score = nn.Linear(hidden, 2)  # D -> start and end
        self.dropout = nn.Dropout(dropout)

    def forward(self, batch: Batch) -> SpanLogits:
        """Start and end scores of the answer; labels and the loss are not the model's concern.

        The batch (qa_arch/tensors.py) has ``ids``, ``mask`` (True except on padding), ``question`` and
        ``context`` (True on their tokens), ``word``, ``overlap``, all (B, T).
        """
        tokens = self.dropout(self.encoder(batch.ids, batch.mask, batch.segments))  # (B, T, H)
        weights = masked_softmax(self.query(tokens)[..., 0], batch.question)  # (B, T), 0 outside the question
        question = (weights[:, None] @ tokens).expand_as(tokens)  # (B, 1, H) -> (B, T, H)
        mixed = self.mix(torch.cat([tokens, question, tokens * question], dim=-1))  # (B, T, D)
        # In fp32 whatever the precision of training: (B, T, 2) -> twice (B, T).
        start, end = linear_fp32(self.score, torch.tanh(mixed)).unbind(-1)
        # Answers lie in the context only. The first token, [CLS], stands for "no answer".
        return SpanLogits(
            start=fill(start, batch.context),  # (B, T)
            end=fill(end, batch.context),  # (B, T)
            null_start=start[:, 0],  # (B,)
            null_end=end[:, 0],  # (B,)
        )
