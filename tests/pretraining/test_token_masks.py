"""What is hidden of a block: which tokens, how many, by what, and that it is another draw each time."""

from __future__ import annotations

import numpy as np
import pytest

from qa_arch.config.schema import Pretraining
from qa_arch.errors import ConfigError
from qa_arch.features import tokenizers
from qa_arch.pretraining.infilling import infilled, permuted
from qa_arch.pretraining.token_masks import Vocabulary, hidden_places, hide, vocabulary_of

CLS, SEP, MASK, PAD = 0, 1, 2, 3
SPECIAL = np.arange(1000) < 4
CONTINUES = np.arange(1000) % 3 == 0
VOCABULARY = Vocabulary(MASK, SPECIAL, ~CONTINUES, np.flatnonzero(~SPECIAL))
IDS = np.r_[CLS, np.arange(4, 304), SEP, np.arange(4, 104), SEP, PAD, PAD]
TEXTS = ["Old Tarn keeps nine bees by the riverside, unbelievably.", "Mira paints boats, riverboats."] * 9


def draw(*entropy: int) -> np.random.Generator:
    return np.random.default_rng(entropy)


def test_fifteen_percent_of_the_tokens_that_are_not_special():
    for seed in range(50):
        places = hidden_places(IDS, VOCABULARY, Pretraining(), draw(seed))
        assert len(places) == 60  # of 400
        assert (np.diff(places) > 0).all()
        assert not SPECIAL[IDS[places]].any()


@pytest.mark.parametrize(("length", "count"), [(1, 1), (3, 1), (10, 2), (0, 0)])
def test_a_short_block_predicts_at_least_a_token(length, count):
    ids = np.r_[CLS, np.arange(4, 4 + length), SEP]
    places = hidden_places(ids, VOCABULARY, Pretraining(), draw(1))
    assert len(places) == count
    assert (hide(ids, places, VOCABULARY, Pretraining(), draw(1))[[0, -1]] == [CLS, SEP]).all()


def test_of_the_hidden_tokens_80_percent_are_masked_10_replaced_and_10_left():
    masked = replaced = left = total = 0
    for seed in range(300):
        places = hidden_places(IDS, VOCABULARY, Pretraining(), draw(seed))
        hidden = hide(IDS, places, VOCABULARY, Pretraining(), draw(seed, 1))
        untouched = np.delete(np.arange(len(IDS)), places)
        assert (hidden[untouched] == IDS[untouched]).all()
        now = hidden[places]
        masked += (now == MASK).sum()
        left += (now == IDS[places]).sum()
        replaced += ((now != MASK) & (now != IDS[places])).sum()
        assert not SPECIAL[now[now != MASK]].any()
        total += len(places)
    assert masked / total == pytest.approx(0.8, abs=0.01)
    assert replaced / total == pytest.approx(0.1, abs=0.01)
    assert left / total == pytest.approx(0.1, abs=0.01)


def test_the_shares_are_settings():
    everything = Pretraining(mask_share=0.5, masked=0.0, replaced=0.0)
    places = hidden_places(IDS, VOCABULARY, everything, draw(0))
    assert len(places) == 200
    assert (hide(IDS, places, VOCABULARY, everything, draw(0)) == IDS).all()


def test_words_are_hidden_whole():
    settings = Pretraining(whole_words=True)
    for seed in range(30):
        places = hidden_places(IDS, VOCABULARY, settings, draw(seed))
        hidden = np.zeros(len(IDS), bool)
        hidden[places] = True
        inside = CONTINUES[IDS] & ~SPECIAL[IDS] & ~SPECIAL[np.roll(IDS, 1)]
        assert (hidden[inside] == np.roll(hidden, 1)[inside]).all()
        assert 58 <= len(places) <= 60
        assert not SPECIAL[IDS[places]].any()
    alone = hidden_places(IDS, VOCABULARY, Pretraining(), draw(0))
    assert hidden_places(IDS, VOCABULARY, settings, draw(0)).tolist() != alone.tolist()


def test_a_word_longer_than_the_share_is_hidden_where_there_is_no_other():
    ids = np.r_[CLS, 4, 6, 9, 12, SEP]  # a word of four pieces
    continuing = Vocabulary(MASK, SPECIAL, np.arange(1000) == 4, VOCABULARY.words)
    settings = Pretraining(whole_words=True)
    assert hidden_places(ids, continuing, settings, draw(0)).tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("family", ["wordpiece", "byte_bpe", "unigram"])
def test_the_vocabulary_knows_where_words_begin(family):
    tokenizer = tokenizers.build(family, TEXTS, 400)
    vocabulary = vocabulary_of(tokenizer, len(tokenizer) + 3)
    ids = np.array(tokenizer(" riverside unbelievably", add_special_tokens=False)["input_ids"])
    pieces = tokenizer.convert_ids_to_tokens(ids)
    assert vocabulary.mask == tokenizer.mask_token_id
    assert vocabulary.begins_word[ids].sum() == 2, pieces
    assert vocabulary.begins_word[ids[0]]
    assert set(np.flatnonzero(vocabulary.special)) == {
        *tokenizer.all_special_ids,
        *range(len(tokenizer), len(tokenizer) + 3),
    }
    assert not set(vocabulary.words) & set(np.flatnonzero(vocabulary.special))


def test_a_tokenizer_without_a_mask_is_refused():
    with pytest.raises(ConfigError, match="has no mask token"):
        vocabulary_of(tokenizers.build("words", TEXTS, 50), 50)


def test_infilling_hides_the_share_by_one_mask_a_span():
    ids = np.arange(10, 410)
    spans, inserted = [], 0
    for seed in range(200):
        noisy = infilled(ids, MASK, 0.3, 3.0, draw(seed))
        kept_ids = noisy[noisy != MASK]
        assert len(kept_ids) == 280
        assert (np.diff(kept_ids) > 0).all()
        spans.append(int((noisy == MASK).sum()))
        # An inserted mask hides nothing: both its neighbours are there.
        at = np.flatnonzero(noisy == MASK)
        at = at[(at > 0) & (at < len(noisy) - 1)]
        inserted += int((noisy[at + 1] - noisy[at - 1] == 1).sum())
    assert np.mean(spans) == pytest.approx(120 / 3, rel=0.05)  # Poisson(3)
    assert inserted / sum(spans) == pytest.approx(np.exp(-3), abs=0.02)


def test_infilling_reaches_both_ends_and_leaves_what_it_must():
    ids = np.arange(10, 30)
    ends = [infilled(ids, MASK, 0.3, 3.0, draw(seed))[[0, -1]] == MASK for seed in range(200)]
    assert np.any(ends, axis=0).all()
    assert not np.all(ends, axis=0).any()
    assert infilled(ids, MASK, 0.01, 3.0, draw(0)).tolist() == ids.tolist()
    assert infilled(ids[:1], MASK, 0.3, 3.0, draw(0)).tolist() == [10]


@pytest.mark.parametrize("mean", [0.5, 1.0, 3.0])
def test_infilling_never_makes_a_block_longer(mean):
    """Spans of length 0 insert a mask, and half of those of mean 0.5 would be one."""
    for seed in range(100):
        ids = np.arange(10, 11 + draw(seed).integers(100))
        noisy = infilled(ids, MASK, 0.3, mean, draw(seed))
        assert len(noisy) <= len(ids)
        assert (noisy != MASK).sum() == len(ids) - round(0.3 * len(ids))


def test_sentences_are_permuted_and_none_is_lost():
    sentences = [np.array([1, 2]), np.array([3]), np.array([4, 5, 6])]
    orders = {tuple(np.concatenate(permuted(sentences, draw(seed))).tolist()) for seed in range(60)}
    assert len(orders) == 6
    assert all(sorted(order) == [1, 2, 3, 4, 5, 6] for order in orders)
