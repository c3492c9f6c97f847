"""Hidden states, queries, keys and values of real classes, recorded from outside."""

from __future__ import annotations

import pytest
import torch

from qa_arch.errors import ConfigError
from qa_arch.nn.encoder_factory import build_encoder
from qa_arch.nn.layer_outputs import attention_linears, passed_layers, recorded

FAMILIES = ["bert", "albert", "roberta", "distilbert", "electra", "deberta-v2", "qa_transformer"]
IDS = torch.tensor([[2, 7, 8, 9, 3], [2, 11, 3, 1, 1]])
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], dtype=torch.bool)


def tiny(family="bert", **options):
    torch.manual_seed(0)
    sizes = {"layers": 3, "width": 16, "heads": 2, "vocab_size": 50, "max_positions": 12, "pad_token_id": 1}
    return build_encoder(init="random", family=family, **sizes | options).eval()


def read(encoder):
    return encoder(IDS, MASK, torch.zeros_like(IDS) if encoder.has_segments else None)


@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_are_those_that_the_library_gives(family):
    encoder = tiny(family)
    with recorded(encoder, hidden=True, attention=None) as outputs:
        last = read(encoder)
    inputs = {"input_ids": IDS, "attention_mask": MASK}
    if encoder.has_segments:
        inputs["token_type_ids"] = torch.zeros_like(IDS)
    expected = encoder.backbone(**inputs, output_hidden_states=True).hidden_states
    assert len(outputs.hidden) == len(expected) == 4 == passed_layers(encoder) + 1
    for actual, state in zip(outputs.hidden, expected, strict=True):
        torch.testing.assert_close(actual, state)
    torch.testing.assert_close(outputs.hidden[-1], last)
    assert not outputs.attention


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layer", [1, 3])
def test_queries_keys_and_values_are_those_of_the_layer(family, layer):
    """The maps of the layer, applied to what enters it."""
    encoder = tiny(family)
    with recorded(encoder, hidden=True, attention=layer) as outputs:
        read(encoder)
    for name, linears in attention_linears(encoder).items():
        linear = linears[min(layer, len(linears)) - 1]
        torch.testing.assert_close(outputs.attention[name], linear(outputs.hidden[layer - 1]))


def test_nothing_is_recorded_outside_of_the_block():
    encoder = tiny()
    with recorded(encoder, hidden=True, attention=2) as outputs:
        read(encoder)
    before = list(outputs.hidden), dict(outputs.attention)
    read(encoder)
    assert (outputs.hidden, outputs.attention) == before
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in encoder.modules())


def test_recomputed_activations_have_the_same_gradients():
    """Gradient checkpointing runs each layer again in the backward pass, which is not recorded twice."""
    gradients = []
    for checkpointing in (False, True):
        encoder = tiny(
            gradient_checkpointing=checkpointing, hidden_dropout=0.0, attention_dropout=0.0
        ).train()
        with recorded(encoder, hidden=True, attention=3) as outputs:
            last = read(encoder)
        assert len(outputs.hidden) == 4
        states = sum(state.square().sum() for state in outputs.hidden)
        (last.sum() + states + sum(value.square().sum() for value in outputs.attention.values())).backward()
        assert len(outputs.hidden) == 4
        gradients.append({name: parameter.grad for name, parameter in encoder.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], msg=name)


def test_a_family_without_maps_of_their_own_is_refused():
    modernbert = tiny("modernbert")
    with pytest.raises(ConfigError, match=r"distillation\.relations: modernbert has no maps"):
        attention_linears(modernbert)
