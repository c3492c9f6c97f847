"""The standard baseline over the families."""

from __future__ import annotations

import math

import pytest
import torch
from families import OURS

from baselines.transformer import TransformerSpan
from qa_arch.errors import ConfigError
from qa_arch.nn.encoder import WordEncoder

FAMILIES = ["bert", "albert", "roberta", "distilbert", *OURS]


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_padding_and_gradients(family, tiny_encoder, make_batch):
    encoder = tiny_encoder(family)
    model, batch = TransformerSpan(encoder).eval(), make_batch(segments=encoder.has_segments)
    logits = model(batch)
    assert (logits.start[~batch.context] == -math.inf).all()
    assert (logits.end[~batch.context] == -math.inf).all()
    assert torch.isfinite(logits.end[batch.context]).all()
    tokens = encoder(batch.ids, batch.mask, batch.segments)
    torch.testing.assert_close(logits.null_start, model.span(tokens[:, 0])[:, 0])
    torch.testing.assert_close(logits.null_end, model.span(tokens[:, 0])[:, 1])
    torch.testing.assert_close(logits.end[0, 6], model.span(tokens[0, 6])[1])
    for row in range(4):
        alone = model(make_batch(segments=encoder.has_segments, rows=slice(row, row + 1), pad=3))
        width = min(alone.start.shape[1], logits.start.shape[1])
        torch.testing.assert_close(alone.start[0, :width], logits.start[row, :width], rtol=0, atol=1e-5)
    (logits.start[batch.context].sum() + logits.null.sum()).backward()
    assert all(p.grad is not None for p in model.parameters())


def test_words_are_refused():
    with pytest.raises(ConfigError, match=r"have no \[CLS\]"):
        TransformerSpan(WordEncoder(50, 8))
