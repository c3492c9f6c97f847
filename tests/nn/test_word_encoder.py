"""The encoder of words: it adds nothing, or a vector learned for each word."""

from __future__ import annotations

import json

import pytest
import torch

from qa_arch.errors import ConfigError
from qa_arch.nn.encoder_factory import build_encoder
from qa_arch.nn.word_encoder import WordEncoder, encoder_from

IDS = torch.tensor([[4, 2, 4, 0], [3, 3, 1, 5]])


def test_without_a_width_it_has_no_parameters_and_says_nothing():
    encoder = build_encoder(init="random", family="words", vocab_size=6)
    assert encoder(IDS, IDS > 0).shape == (2, 4, 0)
    assert encoder.out_dim == 0
    assert not list(encoder.parameters())


def test_with_a_width_each_word_has_its_vector_and_padding_none():
    encoder = build_encoder(init="random", family="words", vocab_size=6, width=3)
    vectors = encoder(IDS, IDS > 0)
    assert torch.equal(vectors[0, 0], vectors[0, 2])
    assert vectors[IDS > 0].abs().sum(-1).min() > 0
    assert not vectors[IDS == 0].any()
    assert len({tuple(v.tolist()) for v in vectors[IDS > 0]}) == 5


def test_its_description_makes_one_of_the_same_sizes():
    encoder = WordEncoder(6, 3)
    copy = encoder_from(json.loads(json.dumps(encoder.describe())))
    copy.load_state_dict(encoder.state_dict())
    assert torch.equal(copy(IDS, IDS > 0), encoder(IDS, IDS > 0))


def test_it_can_be_frozen_whole_only():
    assert not WordEncoder(6, 3).freeze("all").embedding.weight.requires_grad
    with pytest.raises(ConfigError, match="no layers"):
        WordEncoder(6, 3).freeze(2)


def test_segment_ids_and_checkpointing_are_refused():
    with pytest.raises(ValueError, match="no segment ids"):
        WordEncoder(6, 3)(IDS, IDS > 0, IDS)
    with pytest.raises(ConfigError, match="gradient checkpointing"):
        build_encoder(init="random", family="words", vocab_size=6, gradient_checkpointing=True)
