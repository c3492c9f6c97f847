"""Our Transformer: equal to torch's layers and, with its weights, to BERT; usable like any encoder."""

import math

import pytest
import torch
from families import new_encoder
from torch import nn
from transformers import BertConfig, BertModel

from qa_arch.errors import ConfigError
from qa_arch.extras.pretraining.transformer import (
    Embeddings,
    EncoderBlock,
    MultiHeadAttention,
    QaTransformerModel,
    TransformerEncoder,
    attention,
    look_ahead_mask,
    padding_mask,
    sinusoidal_positions,
)
from qa_arch.extras.pretraining.transformer_config import QaTransformerConfig
from qa_arch.nn import encoder as core

SIZES = {
    "vocab_size": 23,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 12,
    "initializer_range": 0.3,
}


def tiny(**options) -> QaTransformerConfig:
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return QaTransformerConfig(**SIZES | no_dropout | options)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def padding(*lengths: int) -> torch.Tensor:
    """Mask of rows with this many real tokens of 6."""
    return padding_mask(torch.arange(6) < torch.tensor(lengths)[:, None])


@pytest.mark.parametrize(
    "mask",
    [None, padding(6, 2), padding(4, 0), look_ahead_mask(6)[:4], look_ahead_mask(6)[2:] & padding(6, 0)],
    ids=["none", "padding", "a row of padding", "look-ahead", "both"],
)
def test_fused_attention_equals_plain_attention(mask):
    results = []
    for fused in (True, False):
        torch.manual_seed(0)
        qkv = [torch.randn(2, 3, length, 5, requires_grad=True) for length in (4, 6, 6)]
        output, weights = attention(*qkv, mask, fused=fused)
        output.square().sum().backward()
        results.append([output, *(x.grad for x in qkv)])
        assert (weights is None) == fused
    torch.testing.assert_close(*results, rtol=0, atol=1e-5)
    assert all(x.isfinite().all() for x in results[0])
    if mask is not None and not mask[-1].any():  # a token that attends to nothing gets zeros
        assert not output[1].any()


@pytest.mark.parametrize("pre_norm", [False, True])
def test_blocks_equal_torch_layers(pre_norm):
    """LN(x + f(x)) after Vaswani et al. 2017, x + f(LN(x)) with pre-norm."""
    ours = EncoderBlock(tiny(pre_norm=pre_norm, layer_norm_eps=1e-5))
    for parameter in ours.parameters():
        nn.init.normal_(parameter, std=0.5)
    theirs = nn.TransformerEncoderLayer(
        16, 4, 24, 0.0, "gelu", layer_norm_eps=1e-5, batch_first=True, norm_first=pre_norm
    )
    parts = (ours.attention.query, ours.attention.key, ours.attention.value)
    theirs.self_attn.in_proj_weight.data = torch.cat([part.weight.data for part in parts])
    theirs.self_attn.in_proj_bias.data = torch.cat([part.bias.data for part in parts])
    theirs.self_attn.out_proj.load_state_dict(ours.attention.output.state_dict())
    theirs.norm1.load_state_dict(ours.around_attention.norm.state_dict())
    theirs.norm2.load_state_dict(ours.around_feed_forward.norm.state_dict())
    theirs.linear1.load_state_dict(ours.feed_forward.expand.state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward.contract.state_dict())
    x, mask = torch.randn(2, 5, 16), look_ahead_mask(5)
    torch.testing.assert_close(ours(x, mask), theirs(x, src_mask=~mask), rtol=0, atol=1e-5)


def test_look_ahead_mask_hides_what_follows():
    assert look_ahead_mask(3).int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]


def test_embeddings_with_sinusoidal_positions_match_sections_3_4_and_3_5():
    actual = sinusoidal_positions(40, 7)
    for t in range(40):
        for i in range(7):
            angle = t / 10_000 ** (2 * (i // 2) / 7)
            assert actual[t, i].item() == pytest.approx((math.cos if i % 2 else math.sin)(angle), abs=1e-5)
    embeddings = Embeddings(tiny(positions="sinusoidal"))
    ids, segments = torch.randint(3, 23, (2, 5)), torch.tensor([[0, 0, 1, 1, 1]]).expand(2, 5)
    vectors = math.sqrt(16) * embeddings.tokens.weight[ids] + embeddings.segments.weight[segments]
    torch.testing.assert_close(
        embeddings(ids, segments), embeddings.norm(vectors + sinusoidal_positions(5, 16))
    )
    torch.testing.assert_close(embeddings(ids), embeddings(ids, torch.zeros_like(ids)))
    before = TransformerEncoder(tiny(pre_norm=True))
    assert before.embeddings.norm(ids) is ids, "pre-norm: the states are normalised at the end"
    torch.testing.assert_close(before(ids).mean(-1), torch.zeros(2, 5), rtol=0, atol=1e-5)
    assert not embeddings.tokens.weight[0].any(), "padding"


# As an encoder

BERT_TO_OURS = {
    "embeddings.word_embeddings": "embeddings.tokens",
    "embeddings.position_embeddings": "embeddings.positions",
    "embeddings.token_type_embeddings": "embeddings.segments",
    "embeddings.LayerNorm": "embeddings.norm",
    "encoder.layer": "blocks",
    "attention.self": "attention",
    "attention.output.dense": "attention.output",
    "attention.output.LayerNorm": "around_attention.norm",
    "intermediate.dense": "feed_forward.expand",
    "output.dense": "feed_forward.contract",
    "output.LayerNorm": "around_feed_forward.norm",
}
"""Parts of weight names in ``BertModel`` -> ours, replaced in this order."""


def test_hidden_states_and_attention_equal_bert():
    theirs = BertModel(BertConfig(**SIZES), add_pooling_layer=False).eval()
    for parameter in theirs.parameters():  # also those that BERT initialises to 0 or 1
        nn.init.normal_(parameter, std=0.3)
    real, position = torch.arange(9) < torch.tensor([9, 4, 1])[:, None], torch.arange(9).expand(3, 9)
    inputs = {"input_ids": torch.randint(3, 23, (3, 9)) * real, "attention_mask": real}
    inputs["token_type_ids"] = ((position > 2) & real).long()
    ours, state = QaTransformerModel(tiny()).eval(), {}
    for name, value in theirs.state_dict().items():
        for part, replacement in BERT_TO_OURS.items():
            name = name.replace(part, replacement)
        state[name] = value
    ours.transformer.load_state_dict(state)
    for implementation in ("sdpa", "eager"):
        ours.set_attn_implementation(implementation)
        theirs.set_attn_implementation(implementation)
        actual, expected = (m(**inputs, output_hidden_states=True).hidden_states for m in (ours, theirs))
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)
        assert min(layer.std() for layer in actual) > 0.1
    actual, expected = (m(**inputs, output_attentions=True).attentions for m in (ours, theirs))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6)


def test_transformer_is_imported_when_a_checkpoint_is_opened(tmp_path, monkeypatch):
    QaTransformerModel(tiny()).save_pretrained(tmp_path)
    imported: list[str] = []
    monkeypatch.setattr(core, "import_module", imported.append)
    new_encoder(family="bert", layers=1, width=16, heads=2)
    assert not imported
    assert new_encoder(name=str(tmp_path)).config.model_type == "qa_transformer"
    assert set(imported) == {"qa_arch.extras.pretraining.transformer"}


def test_attention_dropout_is_active_only_in_training():
    attend = MultiHeadAttention(tiny(attention_probs_dropout_prob=0.5))
    x = torch.randn(2, 5, 16)
    for fused in (True, False):
        assert torch.equal(attend.eval()(x, fused=fused)[0], attend(x, fused=fused)[0])
        assert not torch.allclose(attend.train()(x, fused=fused)[0], attend(x, fused=fused)[0])
    weights = attend(x, fused=False)[1]
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 5), msg="weights before dropout")


def test_its_settings_are_refused_by_other_families():
    sizes = {"layers": 1, "width": 16, "heads": 2}
    encoder = new_encoder(family="qa_transformer", positions="sinusoidal", pre_norm=True, **sizes)
    assert (encoder.config.positions, encoder.config.pre_norm) == ("sinusoidal", True)
    with pytest.raises(ConfigError, match=r"encoder\.pre_norm: bert has no such choice"):
        new_encoder(family="bert", pre_norm=False, **sizes)
