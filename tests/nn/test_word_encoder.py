"""The encoder of words: it adds nothing, or a vector learned for each word."""

from __future__ import annotations

import json

import pytest
import torch

from qa_arch.errors import ConfigError
from qa_arch.nn.encoder_factory import build_encoder
from qa_arch.nn.word_encoder import WordEncoder, encoder_from

IDS = torch.tensor([[4, 2, 4, 0], [3, 3, 1, 5]])


def test_each_word_has_its_vector_padding_none_and_without_a_width_there_are_none():
    nothing = build_encoder(init="random", family="words", vocab_size=6)
    assert nothing(IDS, IDS > 0).shape == (2, 4, nothing.out_dim) == (2, 4, 0)
    assert not list(nothing.parameters())
    encoder = build_encoder(init="random", family="words", vocab_size=6, width=3)
    vectors = encoder(IDS, IDS > 0)
    assert torch.equal(vectors[0, 0], vectors[0, 2])
    assert not vectors[IDS == 0].any()
    assert len({tuple(v.tolist()) for v in vectors[IDS > 0]}) == 5
    copy = encoder_from(json.loads(json.dumps(encoder.describe())))
    copy.load_state_dict(encoder.state_dict())
    assert torch.equal(copy(IDS, IDS > 0), vectors)


def test_what_words_do_not_have():
    assert not WordEncoder(6, 3).freeze("all").embedding.weight.requires_grad
    with pytest.raises(ConfigError, match="no layers"):
        WordEncoder(6, 3).freeze(2)
    with pytest.raises(ValueError, match="no segment ids"):
        WordEncoder(6, 3)(IDS, IDS > 0, IDS)
    with pytest.raises(ConfigError, match="gradient checkpointing"):
        build_encoder(init="random", family="words", vocab_size=6, gradient_checkpointing=True)
