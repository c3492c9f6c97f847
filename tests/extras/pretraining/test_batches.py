"""Blocks as batches of each objective: what is read, hidden and predicted, and when it is drawn anew."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from qa_arch.config.schema import Pretraining
from qa_arch.errors import ConfigError
from qa_arch.extras.pretraining.batches import (
    CausalCollator,
    LanguageTable,
    MaskedCollator,
    SpanCollator,
    Vocabulary,
    hidden_places,
    hide,
    vocabulary_of,
)
from qa_arch.extras.pretraining.blocks import pack
from qa_arch.extras.pretraining.corpus import open_corpus
from qa_arch.features import tokenizers

# Noise -------------------------------------------------------------------------------------------

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


def test_spans_hide_the_share_in_runs_of_the_length_asked_for():
    settings, runs = Pretraining(span_length=4.0), []
    ids = np.full(2000, 10)
    for seed in range(50):
        places = hidden_places(ids, VOCABULARY, settings, draw(seed), spans=True)
        assert 0.97 * 300 <= len(places) <= 300
        runs += np.diff(np.flatnonzero(np.diff(places, prepend=-2, append=9999) > 1)).tolist()
    # A drawn span lies next to another drawn one in 15% of the cases, and both are then one run.
    assert np.mean(runs) == pytest.approx(4 / 0.85, rel=0.05)
    single = hidden_places(ids, VOCABULARY, settings, draw(0))
    assert np.mean(np.diff(single) > 1) > 0.8


# Batches -----------------------------------------------------------------------------------------

STORY = (
    "Old {0} keeps {1} bees. {0} sells honey to {2}. On day {1} it rains in {2}. Nobody minds the {1} bees."
    " In spring {0} paints {1} boats. They sink near {2}. {0} swims home."
)
DOCUMENTS = [
    STORY.format(name, n, town)
    for n, (name, town) in enumerate(
        [
            ("Tarn", "Lomm"),
            ("Mira", "Osk"),
            ("Bell", "Ryde"),
            ("Quill", "Fenn"),
            ("Ada", "Wick"),
            ("Otto", "Yarm"),
        ]
    )
]


@pytest.fixture(scope="module")
def tokenizer():
    return tokenizers.build("wordpiece", DOCUMENTS, 200)


@pytest.fixture(scope="module")
def table_of(tmp_path_factory, tokenizer):
    """The table of the documents above in blocks of ``unit``."""
    path = tmp_path_factory.mktemp("corpus") / "stories.txt"
    path.write_text("\n\n".join(DOCUMENTS))

    def build(unit: str) -> LanguageTable:
        blocks = pack(open_corpus(str(path)), tokenizer, max_length=32, unit=unit)
        return LanguageTable(blocks, vocabulary_of(tokenizer, len(tokenizer)), True, "test")

    tables = {unit: build(unit) for unit in ("tokens", "sentences")}
    return tables.__getitem__


def rows_of(table: LanguageTable) -> list[int]:
    return list(range(len(table)))


def original(batch) -> torch.Tensor:
    """What a masked batch hides, put back in its place."""
    ids = batch.ids.clone()
    for row, (places, targets, real) in enumerate(
        zip(batch.positions, batch.targets, batch.counted, strict=True)
    ):
        ids[row, places[real]] = targets[real]
    return ids


def test_what_is_hidden_is_the_target(table_of, tokenizer):
    table = table_of("tokens")
    batch = MaskedCollator(table, Pretraining(), seed=1)((0, rows_of(table)))
    for row, ids in enumerate(original(batch)):
        content = ids[batch.mask[row]].tolist()
        assert content == [tokenizer.cls_token_id, *table.blocks.content(row), tokenizer.sep_token_id]
    assert (batch.ids == tokenizer.mask_token_id).sum() > len(table)
    assert batch.counted.sum(1).tolist() == [
        max(1, round(0.15 * int((~table.vocabulary.special[table.blocks.content(row)]).sum())))
        for row in rows_of(table)
    ]


@pytest.mark.parametrize("task", ["none", "nsp", "sop"])
def test_no_special_token_and_no_padding_is_ever_predicted(table_of, tokenizer, task):
    table = table_of("tokens" if task == "none" else "sentences")
    collate = MaskedCollator(table, Pretraining(mask_share=0.5), seed=3, sentence_task=task)
    special = torch.from_numpy(table.vocabulary.special)
    for epoch in range(5):
        batch = collate((epoch, rows_of(table)))
        assert not special[batch.targets[batch.counted]].any()
        assert (batch.ids[~batch.mask] == tokenizer.pad_token_id).all()
        assert batch.mask.gather(1, batch.positions)[batch.counted].all()


def test_another_mask_each_epoch_and_the_same_for_a_seed(table_of):
    table = table_of("tokens")
    collate = MaskedCollator(table, Pretraining(), seed=7)
    epochs = [collate((epoch, rows_of(table))).ids for epoch in range(4)]
    assert all(not torch.equal(a, b) for n, a in enumerate(epochs) for b in epochs[:n])
    assert torch.equal(collate((2, rows_of(table))).ids, epochs[2])
    other = MaskedCollator(table, Pretraining(), seed=8)
    assert not torch.equal(other((2, rows_of(table))).ids, epochs[2])


def test_a_row_is_hidden_alike_in_any_batch_and_as_a_padding_row(table_of):
    table = table_of("tokens")
    collate = MaskedCollator(table, Pretraining(), seed=7)
    together = collate((1, rows_of(table)))
    for row in rows_of(table):
        alone = collate((1, [row]))
        width = alone.ids.shape[1]
        assert torch.equal(alone.ids[0], together.ids[row, :width])
        padding = collate((1, [-1 - row]))
        assert torch.equal(padding.ids, alone.ids)
        assert (padding.weight.tolist(), padding.index.tolist()) == ([0.0], [row])


def parts(batch, row: int, tokenizer) -> tuple[list[int], list[int]]:
    ids = original(batch)[row][batch.mask[row]].tolist()
    middle = ids.index(tokenizer.sep_token_id)
    segments = batch.segments[row][batch.mask[row]].tolist()
    assert segments == [0] * (middle + 1) + [1] * (len(ids) - middle - 1)
    return ids[1:middle], ids[middle + 1 : -1]


@pytest.mark.parametrize("task", ["nsp", "sop"])
def test_half_of_the_pairs_follow_and_the_others_do_not(table_of, tokenizer, task):
    table = table_of("sentences")
    blocks = table.blocks
    collate = MaskedCollator(table, Pretraining(), seed=5, sentence_task=task)
    documents = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in DOCUMENTS]
    true = total = 0
    for epoch in range(20):
        batch = collate((epoch, rows_of(table)))
        assert batch.ids.shape[1] <= 32
        for row in rows_of(table):
            first, second = parts(batch, row, tokenizer)
            follows = bool(batch.follows[row])
            content = blocks.content(row).tolist()
            if follows:
                assert first + second == content
            elif task == "sop":
                assert second + first == content
            else:
                assert first == content[: len(first)]
                own = documents[blocks.document(row)]
                assert not any(own[i : i + len(second)] == second for i in range(len(own)))
            assert first
            assert second
            true, total = true + follows, total + 1
    assert true / total == pytest.approx(0.5, abs=0.1)


def test_parts_begin_with_sentences(table_of, tokenizer):
    """A block of several sentences is never cut within one, and neither is what is put in its place."""
    table = table_of("sentences")
    sentences = {
        tuple(tokenizer(text, add_special_tokens=False)["input_ids"][:2])
        for document in DOCUMENTS
        for text in (s.strip() + "." for s in document.split(".") if s.strip())
    }
    collate = MaskedCollator(table, Pretraining(), seed=5, sentence_task="nsp")
    for epoch in range(10):
        batch = collate((epoch, rows_of(table)))
        for row in rows_of(table):
            if len(table.blocks.sentence_starts(row)):
                assert all(tuple(part[:2]) in sentences for part in parts(batch, row, tokenizer))


def test_a_causal_batch_predicts_every_token_but_the_first(table_of, tokenizer):
    table = table_of("tokens")
    batch = CausalCollator(table, Pretraining(), seed=1)((0, rows_of(table)))
    for row in rows_of(table):
        text = [tokenizer.cls_token_id, *table.blocks.content(row), tokenizer.sep_token_id]
        real = batch.counted[row]
        assert batch.targets[row][real].tolist() == text[1:]
        assert batch.ids[row][real].tolist() == text[:-1]
    assert batch.positions is None


def test_a_batch_of_spans_hides_neighbours(table_of):
    table = table_of("tokens")
    share = []
    for collator in (MaskedCollator, SpanCollator):
        batch = collator(table, Pretraining(span_length=8.0), seed=1)((0, rows_of(table)))
        places = [own[real] for own, real in zip(batch.positions, batch.counted, strict=True)]
        share.append(float(torch.cat([own.diff() == 1 for own in places]).float().mean()))
    assert share[0] < 0.4 < 0.7 < share[1]


def test_the_tokens_of_the_text_are_those_of_the_documents(table_of, tokenizer):
    lengths = [len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in DOCUMENTS]
    for unit in ("tokens", "sentences"):
        assert table_of(unit).tokens == sum(lengths)


def test_an_encoder_without_segments_is_given_none(table_of):
    table = replace(table_of("sentences"), segments=False)
    batch = MaskedCollator(table, Pretraining(), seed=5, sentence_task="sop")((0, [0, 1]))
    assert batch.segments is None
    assert len(batch) == 2
    assert np.array_equal(MaskedCollator(table, Pretraining()).lengths, table.blocks.lengths)
