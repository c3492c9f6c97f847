"""The proposed model with all its options, and the standard baseline, on handmade batches."""

import math
from dataclasses import replace
from functools import partial
from itertools import product

import pytest
import torch
from families import EXTRA_FAMILIES

from baselines.transformer import TransformerSpan
from qa_arch.contract import check_gradients
from qa_arch.errors import ConfigError
from qa_arch.models.proposed import BertMatch
from qa_arch.nn.encoder import WordEncoder
from qa_arch.nn.features import parameter_blocks
from qa_arch.nn.heads import LinearHead
from qa_arch.nn.masking import take
from qa_arch.nn.pointer import PointerHead

VECTORS = torch.cat([torch.zeros(1, 7), torch.randn(5, 7, generator=torch.Generator().manual_seed(0))])

OPTIONS = {
    "pooled_no_residual": {"sentinel": "pooled", "residual": False},
    "pooled_suffix_prefix": {"sentinel": "pooled", "match": False, "suffix_prefix": 2},
    "everything": {
        "vectors": VECTORS,
        "overlap_flag": True,
        "suffix_prefix": 2,
        "matching": "words",
        "head": partial(PointerHead, hidden=6, bidirectional=True),
        "no_answer": "both",
        "verifier_weight": 0.5,
        "alignment": True,
        "sentinel": "pooled",
    },
    "no_match_words_linear": {"match": False, "head": LinearHead, "matching": "words", "suffix_prefix": 2},
}
"""Combinations that no YAML of ``conf/model`` has; ``tests/test_contract.py`` tests the YAML files."""


def span_loss(logits, start, end):
    """Cross-entropy over the tokens and the null; position T is "no answer"."""
    scores = (torch.cat([logits.start, logits.null_start[:, None]], 1), start)
    scores = (scores, (torch.cat([logits.end, logits.null_end[:, None]], 1), end))
    loss = sum(torch.nn.functional.cross_entropy(*pair) for pair in scores)
    return loss if logits.verifier is None else loss + torch.nn.functional.softplus(logits.verifier).mean()


@pytest.mark.parametrize("name", OPTIONS)
def test_combination_of_options_satisfies_the_contract(tiny_encoder, make_batch, name):
    """Scores do not depend on batch and padding, and every parameter gets a gradient, finite even of a window
    without context and in bf16."""
    model, batch = BertMatch(tiny_encoder(), hidden=6, dropout=0.0, **OPTIONS[name]).eval(), make_batch()
    together = model(batch)
    for row, pad in product(range(4), (0, 5)):
        alone = model(make_batch(rows=slice(row, row + 1), pad=pad))
        width = min(alone.start.shape[1], together.start.shape[1])
        for part in ("start", "end"):
            actual, expected = getattr(alone, part)[0, :width], getattr(together, part)[row, :width]
            torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)
        torch.testing.assert_close(alone.null[0], together.null[row], rtol=0, atol=1e-5)
    first = batch.context.int().argmax(1)
    last = batch.context.shape[1] - 1 - batch.context.flip(1).int().argmax(1)
    span_loss(model.train()(batch), first, last).backward()
    check_gradients(model)
    empty = batch.context.clone()
    empty[2] = False
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(replace(batch, context=empty))
    assert logits.start.dtype == logits.null_end.dtype == torch.float32
    assert (logits.start[2] == -math.inf).all()
    assert torch.isfinite(logits.null).all()
    no_answer = torch.full((4,), batch.ids.shape[1])
    span_loss(logits, no_answer, no_answer).backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_word_matching_scores_first_pieces_as_starts_and_last_as_ends(tiny_encoder, make_batch):
    batch = make_batch()
    logits = BertMatch(tiny_encoder(), hidden=6, matching="words").eval()(batch)
    # Row 1: question 2 pieces, context 4 pieces in two words, on tokens 4-7.
    assert torch.isfinite(logits.start[1]).nonzero()[:, 0].tolist() == [4, 6]
    assert torch.isfinite(logits.end[1]).nonzero()[:, 0].tolist() == [5, 7]
    # Row 0: 9 pieces, so its last word has one piece.
    assert torch.isfinite(logits.start[0]).nonzero()[:, 0].tolist() == [5, 7, 9, 11, 13]
    assert torch.isfinite(logits.end[0]).nonzero()[:, 0].tolist() == [6, 8, 10, 12, 13]


def test_verifier_without_sentinel_leaves_the_null_neutral(tiny_encoder, make_batch):
    model = BertMatch(tiny_encoder(), hidden=6, no_answer="verifier", verifier_weight=2.0).eval()
    logits = model(make_batch())
    torch.testing.assert_close(logits.null_start, logits.start.logsumexp(1))
    torch.testing.assert_close(logits.null_end, logits.end.logsumexp(1))
    torch.testing.assert_close(logits.null, logits.null_start + logits.null_end + 2.0 * logits.verifier)


def states_of(model, batch):
    """Input and output states of the match-LSTM for a batch, and all token states."""
    with torch.no_grad():
        tokens = model.features(model.encoder(batch.ids, batch.mask, batch.segments), None, batch.overlap)
        context, context_mask = take(tokens, batch.context)
        question, question_mask = take(tokens, batch.question)
        if model.align:
            context = model.align(context, question, context_mask, question_mask)
        return context, model.match(context, question, context_mask, question_mask), tokens


@pytest.mark.parametrize("residual", [True, False])
def test_pooled_sentinel_is_attention_pooling_of_match_states(tiny_encoder, make_batch, residual):
    batch = make_batch()
    model = BertMatch(tiny_encoder(), hidden=6, sentinel="pooled", residual=residual, head=LinearHead).eval()
    actual = model(batch).null_start
    _, states, tokens = states_of(model, batch)
    for row, length in enumerate(batch.context.sum(1).tolist()):
        weights = [(model.pool.query.weight[0] @ state).exp() for state in states[row, :length]]
        pooled = sum(w * state for w, state in zip(weights, states[row], strict=False)) / sum(weights)
        null_row = torch.cat([pooled, tokens[row, 0]]) if residual else pooled
        expected = model.pointer.score.weight[0] @ null_row + model.pointer.score.bias[0]
        torch.testing.assert_close(actual[row], expected, rtol=0, atol=1e-5)


def test_sentinel_without_pooling_has_zero_match_states(tiny_encoder, make_batch):
    batch = make_batch()
    model = BertMatch(tiny_encoder(), hidden=6, head=LinearHead).eval()
    cls = model.encoder(batch.ids, batch.mask, batch.segments)[:, 0]
    expected = model.pointer.score(torch.nn.functional.pad(cls, (model.matched_dim, 0)))[:, 0]
    torch.testing.assert_close(model(batch).null_start, expected)


def test_word_encoder_has_zeros_in_place_of_cls(make_batch):
    """Not the first word of the question, which is where [CLS] would be."""
    batch = make_batch(segments=False)
    for options in ({}, {"match": False}):
        model = BertMatch(WordEncoder(50, 8), hidden=6, head=LinearHead, **options).eval()
        torch.nn.init.normal_(model.pointer.score.bias)
        assert (model(batch).null_start == model.pointer.score.bias[0]).all()
    with pytest.raises(ConfigError, match=r"model\.no_answer: both needs an encoder with \[CLS\]"):
        BertMatch(WordEncoder(50, 8), no_answer="both")


def test_alignment_changes_the_match_input_but_not_the_residual(tiny_encoder, make_batch):
    batch = make_batch()
    model = BertMatch(tiny_encoder(), hidden=6, alignment=True, head=LinearHead).eval()
    torch.nn.init.normal_(model.align.change.weight)
    actual = model(batch).start
    aligned, states, tokens = states_of(model, batch)
    context, _ = take(tokens, batch.context)
    assert (aligned - context).abs().max() > 0.1
    expected = model.pointer.score(torch.cat([states, context], -1))[..., 0]
    for row, mask in enumerate(batch.context):
        torch.testing.assert_close(actual[row, mask], expected[row, : mask.sum()], rtol=0, atol=1e-5)


@pytest.mark.parametrize("head", [None, LinearHead])
def test_same_seed_gives_the_same_shared_weights(tiny_encoder, head):
    """An option's parameters are created last, so runs with and without it start alike."""
    plain = BertMatch(tiny_encoder(), hidden=6, head=head, no_answer="both").state_dict()
    more = {"no_answer": "both", "alignment": True, "sentinel": "pooled"}
    extended = BertMatch(tiny_encoder(), hidden=6, head=head, **more).state_dict()
    assert all(torch.equal(extended[name], weight) for name, weight in plain.items())
    assert {name.split(".")[0] for name in extended.keys() - plain.keys()} == {"align", "pool"}


@pytest.mark.parametrize(
    ("options", "setting"),
    [
        ({"match": False, "alignment": True}, "model.alignment"),
        ({"match": False, "sentinel": "pooled"}, "model.sentinel"),
        ({"no_answer": "verifier", "sentinel": "pooled"}, "model.sentinel"),
    ],
)
def test_option_without_its_module_is_refused(tiny_encoder, options, setting):
    with pytest.raises(ConfigError, match=setting):
        BertMatch(tiny_encoder(), hidden=6, **options)


def test_word_vectors_overlap_and_question_affect_the_scores(tiny_encoder, make_batch):
    model = BertMatch(tiny_encoder(), hidden=6, vectors=VECTORS, overlap_flag=True).eval()
    batch = make_batch()
    before = model(batch).start[batch.context]
    on_question = torch.where(batch.question, (batch.vector + 1) % 6, batch.vector)
    for change in ({"vector": on_question}, {"overlap": ~batch.overlap & batch.context}):
        after = model(replace(batch, **change)).start[batch.context]
        assert (after - before).abs().max() > 1e-4


def test_fixed_vectors_are_counted_separately_and_not_saved(tiny_encoder):
    fixed = BertMatch(tiny_encoder(), hidden=6, vectors=VECTORS)
    trained = BertMatch(tiny_encoder(), hidden=6, vectors=VECTORS, train_vectors=True)
    assert not any("vectors" in name for name in fixed.state_dict())
    assert "features.vectors" in trained.state_dict()
    assert (parameter_blocks(fixed).word_vectors, parameter_blocks(trained).word_vectors) == (42, 0)
    count = parameter_blocks(trained)
    assert count.total == parameter_blocks(fixed).total + 42 == sum(count.blocks.values())
    assert count.blocks["features"] == 42
    assert set(count.blocks) == {"encoder", "features", "match", "pointer"}


@pytest.mark.parametrize("family", ["bert", "distilbert", *EXTRA_FAMILIES])
def test_null_is_the_score_of_the_first_token(family, tiny_encoder, make_batch):
    encoder = tiny_encoder(family)
    model, batch = TransformerSpan(encoder).eval(), make_batch(segments=encoder.has_segments)
    logits, tokens = model(batch), encoder(batch.ids, batch.mask, batch.segments)
    torch.testing.assert_close(torch.stack([logits.null_start, logits.null_end], 1), model.span(tokens[:, 0]))
    torch.testing.assert_close(logits.end[0, 6], model.span(tokens[0, 6])[1])


def test_word_encoder_is_refused():
    with pytest.raises(ConfigError, match=r"has no \[CLS\] token"):
        TransformerSpan(WordEncoder(50, 8))
