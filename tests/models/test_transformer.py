"""The standard baseline in every encoder family; ``tests/test_contract.py`` tests what all models share."""

from __future__ import annotations

import pytest
import torch
from families import EXTRA_FAMILIES

from baselines.transformer import TransformerSpan
from qa_arch.errors import ConfigError
from qa_arch.nn.encoder import WordEncoder

FAMILIES = ["bert", "albert", "roberta", "distilbert", *EXTRA_FAMILIES]


@pytest.mark.parametrize("family", FAMILIES)
def test_null_is_the_score_of_the_first_token(family, tiny_encoder, make_batch):
    encoder = tiny_encoder(family)
    model, batch = TransformerSpan(encoder).eval(), make_batch(segments=encoder.has_segments)
    logits, tokens = model(batch), encoder(batch.ids, batch.mask, batch.segments)
    torch.testing.assert_close(torch.stack([logits.null_start, logits.null_end], 1), model.span(tokens[:, 0]))
    torch.testing.assert_close(logits.end[0, 6], model.span(tokens[0, 6])[1])


def test_word_encoder_is_refused():
    with pytest.raises(ConfigError, match=r"has no \[CLS\] token"):
        TransformerSpan(WordEncoder(50, 8))
