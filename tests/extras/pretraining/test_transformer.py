"""Our Transformer against torch's own layers, sums by hand, and what masks and norms promise."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from qa_arch.extras.pretraining.transformer import (
    Embeddings,
    EncoderBlock,
    MultiHeadAttention,
    TransformerEncoder,
    TransformerSettings,
    attention,
    look_ahead_mask,
    padding_mask,
    sinusoidal_positions,
)

PAD = 0
TINY = TransformerSettings(
    vocabulary=23,
    layers=2,
    width=16,
    heads=4,
    hidden=24,
    max_positions=12,
    segments=2,
    dropout=0.0,
    attention_dropout=0.0,
    initializer_range=0.3,
    padding=PAD,
)
VARIANTS = [
    replace(TINY, pre_norm=pre_norm, positions=positions)
    for pre_norm in (False, True)
    for positions in ("learned", "sinusoidal")
]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def variants(test):
    return pytest.mark.parametrize(
        "settings", VARIANTS, ids=lambda s: f"{'pre' if s.pre_norm else 'post'}-{s.positions}"
    )(test)


def random_ids(rows: int, length: int) -> torch.Tensor:
    return torch.randint(3, TINY.vocabulary, (rows, length))


def prefixes(lengths: list[int], width: int) -> torch.Tensor:
    """Masks of rows with so many real tokens."""
    return torch.arange(width) < torch.tensor(lengths)[:, None]


def heads(*lengths: int) -> list[torch.Tensor]:
    """Queries, keys and values (2, 3, length, 5) that take gradients."""
    return [torch.randn(2, 3, length, 5, requires_grad=True) for length in lengths]


def test_attention_is_the_sum_of_equation_1():
    q, k, v = (x[0, 0].tolist() for x in heads(4, 6, 6))
    given = [torch.tensor(x)[None, None] for x in (q, k, v)]
    readable = [[s <= t + 1 for s in range(6)] for t in range(4)]
    output, weights = attention(*given, torch.tensor(readable)[None, None], fused=False)
    for t in range(4):
        scores = [math.exp(sum(a * b for a, b in zip(q[t], k[s], strict=True)) / 5**0.5) for s in range(6)]
        scores = [score * readable[t][s] for s, score in enumerate(scores)]
        expected = [score / sum(scores) for score in scores]
        assert weights[0, 0, t].tolist() == pytest.approx(expected, abs=1e-6)
        mixed = [sum(expected[s] * v[s][d] for s in range(6)) for d in range(5)]
        assert output[0, 0, t].tolist() == pytest.approx(mixed, abs=1e-6)


@pytest.mark.parametrize(
    "mask",
    [
        None,
        padding_mask(prefixes([6, 2], 6)),
        padding_mask(prefixes([4, 0], 6)),
        look_ahead_mask(6)[:4],
        look_ahead_mask(6)[2:] & padding_mask(prefixes([6, 0], 6)),
    ],
    ids=["none", "padding", "a row of padding", "look-ahead", "both"],
)
def test_the_fused_form_equals_the_plain(mask):
    results = []
    for fused in (True, False):
        torch.manual_seed(0)
        given = heads(4, 6, 6)
        output, weights = attention(*given, mask, fused=fused)
        output.square().sum().backward()
        results.append([output, *(x.grad for x in given)])
        assert (weights is None) == fused
    torch.testing.assert_close(*results, rtol=0, atol=1e-5)
    assert all(x.isfinite().all() for x in results[0])


def test_a_token_that_may_read_none_gets_zeros():
    for fused in (True, False):
        output, weights = attention(*heads(4, 6, 6), padding_mask(prefixes([6, 0], 6)), fused=fused)
        assert not output[1].any()
        assert output[0].abs().min() > 0
        assert weights is None or (not weights[1].any() and torch.allclose(weights[0].sum(-1), torch.ones(1)))


def test_dropout_leaves_out_probabilities_in_training_alone():
    attend = MultiHeadAttention(replace(TINY, attention_dropout=0.5))
    x = torch.randn(2, 5, 16)
    for fused in (True, False):
        assert torch.equal(attend.eval()(x, fused=fused)[0], attend(x, fused=fused)[0])
        assert not torch.allclose(attend.train()(x, fused=fused)[0], attend(x, fused=fused)[0])
    weights = attend(x, fused=False)[1]
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 5), msg="as they are before dropout")


def same_weights(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> None:
    parts = (ours.query, ours.key, ours.value)
    theirs.in_proj_weight.data = torch.cat([part.weight.data for part in parts])
    theirs.in_proj_bias.data = torch.cat([part.bias.data for part in parts])
    theirs.out_proj.load_state_dict(ours.output.state_dict())


@pytest.mark.parametrize("pre_norm", [False, True])
def test_blocks_are_torch_s_layers(pre_norm):
    """LN(x + f(x)) after Vaswani et al. 2017, x + f(LN(x)) with pre-norm."""
    ours = EncoderBlock(replace(TINY, pre_norm=pre_norm, norm_eps=1e-5))
    for parameter in ours.parameters():
        nn.init.normal_(parameter, std=0.5)
    theirs = nn.TransformerEncoderLayer(
        16, 4, 24, 0.0, "gelu", layer_norm_eps=1e-5, batch_first=True, norm_first=pre_norm
    )
    same_weights(ours.attention, theirs.self_attn)
    theirs.norm1.load_state_dict(ours.around_attention.norm.state_dict())
    theirs.norm2.load_state_dict(ours.around_feed_forward.norm.state_dict())
    theirs.linear1.load_state_dict(ours.feed_forward.expand.state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward.contract.state_dict())
    x, mask = torch.randn(2, 5, 16), look_ahead_mask(5)
    torch.testing.assert_close(ours(x, mask), theirs(x, src_mask=~mask), rtol=0, atol=1e-5)


def test_a_pre_norm_stack_ends_in_a_norm_and_a_post_norm_stack_begins_with_one():
    for settings in VARIANTS:
        encoder = TransformerEncoder(settings)
        assert isinstance(encoder.norm, nn.LayerNorm) == settings.pre_norm
        assert isinstance(encoder.embeddings.norm, nn.LayerNorm) != settings.pre_norm
        states = encoder(random_ids(2, 5))
        torch.testing.assert_close(states.mean(-1), torch.zeros(2, 5), rtol=0, atol=1e-5)


@pytest.mark.parametrize("width", [6, 7])
def test_sinusoidal_positions_are_those_of_section_3_5(width):
    actual = sinusoidal_positions(40, width)
    for t in range(40):
        for i in range(width):
            angle = t / 10_000 ** (2 * (i // 2) / width)
            assert actual[t, i].item() == pytest.approx((math.cos if i % 2 else math.sin)(angle), abs=1e-5)


@variants
def test_embeddings_add_position_and_segment(settings):
    embeddings = Embeddings(settings)
    ids, segments = random_ids(2, 5), torch.tensor([[0, 0, 1, 1, 1]]).expand(2, 5)
    vectors = embeddings.tokens.weight[ids] + embeddings.segments.weight[segments]
    if settings.positions == "learned":
        vectors = vectors + embeddings.positions.weight[:5]
    else:
        vectors = (
            vectors + 3 * embeddings.tokens.weight[ids] + sinusoidal_positions(5, 16)
        )  # sqrt(16) = 1 + 3
    torch.testing.assert_close(embeddings(ids, segments), embeddings.norm(vectors))
    torch.testing.assert_close(embeddings(ids), embeddings(ids, torch.zeros_like(ids)))
    assert not embeddings.tokens.weight[PAD].any()


@variants
def test_padding_changes_nothing(settings):
    encoder = TransformerEncoder(settings)
    ids, mask = random_ids(3, 9), prefixes([9, 4, 0], 9)
    for fused in (True, False):
        states = encoder(ids, mask, fused=fused)
        assert states.isfinite().all()
        torch.testing.assert_close(states[1:2, :4], encoder(ids[1:2, :4]), rtol=0, atol=1e-5)
        torch.testing.assert_close(states[:1], encoder(ids[:1], mask[:1]), rtol=0, atol=1e-5)
    states.square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in encoder.parameters())


@variants
def test_a_causal_stack_reads_itself_and_what_is_before(settings):
    stack = TransformerEncoder(settings, causal=True)
    ids = random_ids(1, 7)
    states = stack(ids)
    for t in range(7):
        other = ids.clone()
        other[0, t] = 3 + (ids[0, t] - 2) % 20
        changed = (stack(other) - states).abs().amax(-1)[0] > 1e-5
        assert changed.tolist() == [s >= t for s in range(7)]
    padded = stack(torch.cat([ids, ids[:, :3]], 1), prefixes([7], 10))
    torch.testing.assert_close(padded[:, :7], states, rtol=0, atol=1e-5)
