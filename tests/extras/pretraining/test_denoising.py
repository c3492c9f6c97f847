"""Denoising: BART's noise, the decoder with BART's weights, and greedy and beam search as transformers'."""

from dataclasses import replace
from itertools import product
from typing import get_args

import numpy as np
import pytest
import torch
from transformers import AlbertConfig, AlbertModel, BartConfig, BartForConditionalGeneration

from qa_arch.errors import ConfigError
from qa_arch.extras.pretraining.denoising import Denoiser, noised, write
from qa_arch.extras.pretraining.manifest import Denoising, Noise
from qa_arch.extras.pretraining.models import LanguageBatch
from qa_arch.extras.pretraining.transformer import QaTransformerModel
from qa_arch.extras.pretraining.transformer_config import QaTransformerConfig
from qa_arch.nn.encoder import Encoder

START, PAD, END, MASK, LIMIT = 3, 1, 2, 4, 14


# Noise


class Chosen(np.random.Generator):
    """A generator whose draws are chosen."""

    def __init__(self, places: list[int], lengths: tuple[int, ...]) -> None:
        super().__init__(np.random.PCG64())
        self.places, self.lengths = np.array(places), np.array(lengths)

    def choice(self, slots: int, count: int, replace: bool) -> np.ndarray:
        assert (len(self.places), replace, slots > self.places.max()) == (count, False, True)
        return self.places

    def poisson(self, mean: float, count: int) -> np.ndarray:
        return self.lengths[:count]


@pytest.mark.parametrize(
    ("noise", "places", "lengths", "noisy", "hidden"),
    [
        ("masking", [4, 0, 7], (), "M B C D M F G M I J", "A E H"),
        ("deletion", [4, 0, 7], (), "B C D F G I J", "A E H"),
        ("infilling", [2, 5], (2, 9, 9), "A B M E F M H I J", "C D G"),  # the last span is cut at the share
        ("infilling", [7, 0], (0, 3, 3), "M D E F G H I M J", "A B C"),  # a span of 0 inserts a mask
        ("infilling", [0, 8, 4], (1, 0, 1), "M B C D M G H I M J", "A E F"),  # the last covers what is left
    ],
)
def test_noise_of_chosen_tokens(noise, places, lengths, noisy, hidden):
    ids = np.arange(10, 20)
    actual, is_hidden = noised(ids, Chosen(places, lengths), MASK, Denoising(noise=noise, share=0.3))
    letters = dict(zip(ids.tolist(), "ABCDEFGHIJ", strict=True)) | {MASK: "M"}
    assert " ".join(letters[token] for token in actual.tolist()) == noisy
    assert " ".join(letters[token] for token in ids[is_hidden].tolist()) == hidden


def test_spans_cover_the_share_evenly_with_lengths_of_poisson():
    ids, masks, inserted, covered = np.arange(10, 410), [], 0, np.zeros(400)
    for seed in range(400):
        noisy, hidden = noised(ids, np.random.default_rng(seed), MASK, Denoising())
        assert hidden.sum() == 120
        assert noisy[noisy != MASK].tolist() == ids[~hidden].tolist()
        covered += hidden
        masks.append(int((noisy == MASK).sum()))
        # A span of length 0 hides nothing: both its neighbours are there.
        at = np.flatnonzero(noisy == MASK)
        at = at[(at > 0) & (at < len(noisy) - 1)]
        inserted += int((noisy[at + 1] - noisy[at - 1] == 1).sum())
    assert np.mean(masks) == pytest.approx(120 / 3, rel=0.05)  # Poisson(3)
    assert inserted / sum(masks) == pytest.approx(np.exp(-3), abs=0.02)
    assert covered.reshape(20, 20).mean(1) / 400 == pytest.approx(np.full(20, 0.3), abs=0.03)
    for noise, length in product(get_args(Noise), range(12)):
        short = Denoising(noise=noise, span_length=0.3)
        noisy, hidden = noised(np.arange(10, 10 + length), np.random.default_rng(length), MASK, short)
        assert (len(noisy) <= length, hidden.sum()) == (True, round(0.3 * length)), "never longer"


# The decoder with BART's weights

BART_TO_OURS = {
    "layernorm_embedding": "embeddings.norm",
    "embed_positions": "embeddings.positions",
    "embed_tokens": "embeddings.tokens",
    "layers": "blocks",
    "self_attn_layer_norm": "around_attention.norm",
    "encoder_attn_layer_norm": "around_cross_attention.norm",
    "final_layer_norm": "around_feed_forward.norm",
    "self_attn": "attention",
    "encoder_attn": "cross_attention",
    "q_proj": "query",
    "k_proj": "key",
    "v_proj": "value",
    "out_proj": "output",
    "fc1": "feed_forward.expand",
    "fc2": "feed_forward.contract",
}
"""Parts of weight names in BART -> ours, replaced in this order."""


@pytest.fixture(scope="module")
def theirs() -> BartForConditionalGeneration:
    torch.manual_seed(0)
    sizes = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 3, "vocab_size": 23}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    feed_forward = {"encoder_ffn_dim": 24, "decoder_ffn_dim": 64, "max_position_embeddings": 16}
    special = {"pad_token_id": PAD, "bos_token_id": 0, "eos_token_id": END, "decoder_start_token_id": START}
    config = BartConfig(**sizes, **heads, **feed_forward, **special, forced_eos_token_id=None)
    model = BartForConditionalGeneration(config).eval()
    for name, parameter in model.named_parameters():  # also those that BART initialises to 0 or 1
        # Positions outweigh the token before, which the tied embeddings would have repeated for ever.
        std = {"embed_positions": 1.5, "shared": 0.6}.get(name.split(".")[-2], 0.25)
        is_scale = "norm" in name and name.endswith("weight")
        torch.nn.init.normal_(parameter, mean=float(is_scale), std=std if parameter.dim() > 1 else 0.1)
    torch.nn.init.normal_(model.final_logits_bias, std=0.4)
    return model


@pytest.fixture(scope="module")
def ours(theirs) -> Denoiser:
    """The same weights in our model."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
    tokens = {"vocab_size": 23, "max_position_embeddings": 16, "type_vocab_size": 0, "pad_token_id": PAD}
    config = QaTransformerConfig(**sizes, **tokens, layer_norm_eps=1e-5)
    model = Denoiser(Encoder(QaTransformerModel(config)), layers=3).eval()
    for part, stack in (("encoder", model.encoder.backbone.transformer), ("decoder", model.decoder)):
        state = {}
        for name, value in getattr(theirs.model, part).state_dict().items():
            for old, new in BART_TO_OURS.items():
                name = name.replace(old, new)
            state[name] = value[2:] if "positions" in name else value  # the first two are never used
        if part == "decoder":
            assert torch.equal(state.pop("embeddings.tokens.weight"), theirs.model.shared.weight)
        stack.load_state_dict(state)
    model.tokens.bias.data = theirs.final_logits_bias[0]
    return model


def batch_of(ids: torch.Tensor, mask: torch.Tensor, prefix: torch.Tensor) -> LanguageBatch:
    real, B = torch.ones_like(prefix, dtype=torch.bool), len(ids)
    return LanguageBatch(torch.arange(B), ids, mask, None, prefix, real, torch.ones(B), prefix=prefix)


@pytest.fixture(scope="module")
def batch() -> LanguageBatch:
    """Four texts of 9, 4, 1 and 12 tokens."""
    torch.manual_seed(1)
    mask = torch.arange(12) < torch.tensor([9, 4, 1, 12])[:, None]
    return batch_of(torch.randint(5, 23, (4, 12)).where(mask, PAD), mask, torch.randint(5, 23, (4, 7)))


def alone(batch: LanguageBatch, row: int) -> LanguageBatch:
    real = batch.mask[row]
    return batch_of(batch.ids[row, real][None], real[real][None], batch.prefix[row][None])


def test_logits_equal_bart(theirs, ours, batch):
    with torch.inference_mode():
        expected = theirs(
            input_ids=batch.ids, attention_mask=batch.mask.long(), decoder_input_ids=batch.prefix
        ).logits
        actual = ours(batch).tokens
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)
    assert actual.std() > 0.5


def test_no_token_looks_ahead_or_at_padding(ours, batch):
    logits = ours(batch).tokens
    for t in range(7):
        prefix = batch.prefix.clone()
        prefix[:, t] = 5 + (batch.prefix[:, t] - 4) % 18
        changed = (ours(replace(batch, prefix=prefix)).tokens - logits).abs().amax((0, 2)) > 1e-5
        assert changed.tolist() == [s >= t for s in range(7)]
    for row in range(4):
        torch.testing.assert_close(ours(alone(batch, row)).tokens[0], logits[row], rtol=0, atol=1e-5)


@pytest.mark.parametrize("beams", [1, 4])
def test_written_texts_equal_those_of_transformers(theirs, ours, batch, beams):
    """Ids and scores of all beams, for texts of many lengths; a text alone is written as in a batch."""
    settings = {"start": START, "end": END, "limit": LIMIT, "beams": beams}
    lengths = set()
    for bias in (4.0, 5.5):
        theirs.final_logits_bias[0, END] = bias  # and ours
        texts = write(ours, batch, **settings)
        given = {"input_ids": batch.ids, "attention_mask": batch.mask.long(), "max_new_tokens": LIMIT}
        searched = {"num_beams": beams, "num_return_sequences": beams, "early_stopping": beams > 1}
        returned = {"return_dict_in_generate": True, "output_scores": True}
        expected = theirs.generate(**given, **searched, **returned, do_sample=False)
        rows = [one for of_text in texts for one in of_text]
        padded = [one.ids + [PAD] * (LIMIT - len(one.ids)) for one in rows]
        width = expected.sequences.shape[1] - 1
        assert [ids[:width] for ids in padded] == expected.sequences[:, 1:].tolist()
        if beams > 1:
            torch.testing.assert_close(torch.tensor([one.score for one in rows]), expected.sequences_scores)
        lengths |= {len(one.ids) for one in rows}
    for row in range(4):
        (single,) = write(ours, alone(batch, row), **settings)
        assert [one.ids for one in single] == [one.ids for one in texts[row]]
    assert len(lengths) > 1
    assert LIMIT in lengths


def test_encoder_with_narrow_embeddings_is_refused():
    config = AlbertConfig(vocab_size=23, embedding_size=8, hidden_size=16, num_attention_heads=4)
    with torch.device("meta"), pytest.raises(ConfigError, match="albert are narrower than its states"):
        Denoiser(Encoder(AlbertModel(config, add_pooling_layer=False)))
