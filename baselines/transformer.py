"""Standard baseline: an encoder with a linear span head and "no answer" at [CLS] (Devlin et al. 2019)."""

from __future__ import annotations

from typing import Annotated

from torch import nn

from qa_arch.config.check import Range
from qa_arch.errors import ConfigError
from qa_arch.nn.encoder import AnyEncoder
from qa_arch.nn.heads import SpanHead, span_logits
from qa_arch.nn.masking import fill, linear_fp32, take
from qa_arch.tensors import Batch, SpanLogits


class TransformerSpan(nn.Module):
    """Any encoder (ALBERT, RoBERTa, DistilBERT, BERT) with a span head; the first token is "no answer".

    ``head`` replaces the linear map, with the first token as its sentinel row. Raises ConfigError for an
    encoder without [CLS].
    """

    def __init__(
        self,
        encoder: AnyEncoder,
        *,
        dropout: Annotated[float, Range(0, 1)] = 0.1,
        head: SpanHead | None = None,
    ) -> None:
        super().__init__()
        if not encoder.has_cls:
            raise ConfigError(
                'encoder.family: words has no [CLS] token to score "no answer"; choose an encoder such as'
                " bert, or model=match_lstm/boundary"
            )
        self.encoder = encoder
        self.dropout = nn.Dropout(dropout)
        self.head = head(in_dim=encoder.out_dim, sentinel=True) if head else None
        if self.head is None:
            self.span = nn.Linear(encoder.out_dim, 2)
            # As transformers initialises the heads of its own classes.
            nn.init.normal_(self.span.weight, std=getattr(encoder.config, "initializer_range", 0.02))
            nn.init.zeros_(self.span.bias)

    def forward(self, batch: Batch) -> SpanLogits:
        tokens = self.dropout(self.encoder(batch.ids, batch.mask, batch.segments))
        if self.head is not None:
            scores = self.head(*take(tokens, batch.context), tokens[:, 0])
            return span_logits(scores, batch.context, batch.context)
        start, end = linear_fp32(self.span, tokens).unbind(-1)
        return SpanLogits(fill(start, batch.context), fill(end, batch.context), start[:, 0], end[:, 0])
