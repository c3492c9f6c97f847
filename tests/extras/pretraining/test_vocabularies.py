"""Trained tokenizers are of the size asked for and of their kind; how they divide a text."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from itertools import groupby

import pytest
from transformers import AutoTokenizer

from qa_arch.errors import ConfigError
from qa_arch.extras.pretraining import vocabularies
from qa_arch.extras.pretraining.vocabularies import (
    KINDS,
    count_words,
    figures,
    train_tokenizer,
)
from qa_arch.features import tokenizers

TEXTS = [f"Keeper {n} of Lock {n * 7} paid {n % 13}½ crowns, naïvely, at the quay." for n in range(200)] * 2
SAME = ("wordpiece", "bpe")
"""Kinds that give the same bytes every time."""
FRESH = "The keepers naïvely unlocked 12 quays."


@pytest.mark.parametrize("kind", KINDS)
def test_it_has_the_size_and_comes_from_a_single_pass(kind):
    size = 150 if kind == "unigram" else 330
    tokenizer = train_tokenizer(kind, iter(TEXTS), size)
    assert len(tokenizer) == size
    assert sorted(tokenizer.get_vocab().values()) == list(range(size))
    unknown = tokenizer.unk_token_id
    assert all(unknown not in ids for ids in tokenizer(TEXTS)["input_ids"])
    assert kind == "unigram" or len(tokenizer(TEXTS[3])["input_ids"]) < len(TEXTS[3]) / 2


@pytest.mark.slow
def test_every_process_trains_the_same():
    program = (
        "import sys, json\n"
        "from qa_arch.extras.pretraining.vocabularies import KINDS, train_tokenizer\n"
        "texts = json.load(sys.stdin)\n"
        "print(json.dumps([train_tokenizer(k, texts, 330).backend_tokenizer.to_str() for k in KINDS[:2]]))"
    )
    command = [sys.executable, "-c", program]
    there = subprocess.run(command, input=json.dumps(TEXTS), capture_output=True, text=True, check=True)
    here = [train_tokenizer(kind, TEXTS, 330).backend_tokenizer.to_str() for kind in SAME]
    assert json.loads(there.stdout) == here


@pytest.mark.parametrize("kind", SAME)
def test_the_order_of_documents_does_not_matter(kind):
    backwards = train_tokenizer(kind, TEXTS[::-1], 330).backend_tokenizer.to_str()
    assert backwards == train_tokenizer(kind, TEXTS, 330).backend_tokenizer.to_str()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lowercase", [None, True, False])
def test_it_survives_save_and_load_with_its_case(kind, lowercase, tmp_path):
    tokenizer = train_tokenizer(kind, TEXTS, 150 if kind == "unigram" else 300, lowercase=lowercase)
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again(FRESH, TEXTS[0])["input_ids"] == tokenizer(FRESH, TEXTS[0])["input_ids"]
    assert (again.pad_token_id, again.mask_token_id) == (tokenizer.pad_token_id, tokenizer.mask_token_id)
    lower = lowercase if lowercase is not None else kind != "bpe"
    assert (again.tokenize("Lock") == again.tokenize("lock")) == lower


@pytest.mark.parametrize(
    ("kind", "family"), [("wordpiece", "wordpiece"), ("bpe", "byte_bpe"), ("unigram", "unigram")]
)
def test_specials_and_templates_are_those_of_the_family(kind, family):
    size = 150 if kind == "unigram" else 300
    trained, built = train_tokenizer(kind, TEXTS, size), tokenizers.build(family, TEXTS, size)
    assert trained.special_tokens_map == built.special_tokens_map
    pairs = [tokenizer("1", "2", return_token_type_ids=True) for tokenizer in (trained, built)]
    placed = [zip(pair.sequence_ids(), pair["token_type_ids"], strict=True) for pair in pairs]
    first, second = ([place for place, _ in groupby(pair)] for pair in placed)
    assert first == second


def test_byte_level_tokenizers_know_everything_in_lower_case_too():
    for lowercase in (True, False):
        tokenizer = train_tokenizer("bpe", TEXTS, 300, lowercase=lowercase)
        text = "Ünlü 寿司 🦀\n\tX"
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.unk_token_id not in ids
        assert tokenizer.decode(ids) == (text.lower() if lowercase else text)


def test_wordpieces_inside_a_word_are_marked_and_every_character_is_there_in_both_forms():
    vocabulary = set(train_tokenizer("wordpiece", TEXTS, 300).get_vocab())
    characters = set("".join(TEXTS).lower()) - set(" ï") | {"i"}
    assert characters | {f"##{character}" for character in characters} <= vocabulary
    assert {"keeper", "lock", "crowns", "naively"} <= vocabulary
    assert any(len(piece) > 4 and piece.startswith("##") for piece in vocabulary)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [-1, 0, 20, 10**6])
def test_a_size_that_the_corpus_does_not_allow_is_refused_with_one_that_it_does(kind, size):
    with pytest.raises(ConfigError, match=f"a vocabulary of {size:,} is ") as refusal:
        train_tokenizer(kind, TEXTS, size)
    (allowed,) = re.findall(r"alone are ([\d,]+);|allows: ([\d,]+) at most", str(refusal.value))
    best = int("".join(allowed).replace(",", ""))
    if kind == "unigram" and size > best:
        return  # the library's trainer drops pieces that are no longer used, and more of them the more it had
    assert len(train_tokenizer(kind, TEXTS, best)) == best
    with pytest.raises(ConfigError, match=r"too small|more than this corpus allows"):
        train_tokenizer(kind, TEXTS, best + (1 if size > best else -1))


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
def test_rare_characters_are_unknown_beyond_the_number_of_characters(kind):
    tokenizer = train_tokenizer(kind, [*TEXTS, "寿司"], 100, characters=30)
    assert tokenizer.unk_token_id in tokenizer("寿")["input_ids"]
    assert tokenizer.unk_token_id not in tokenizer("quay keeper")["input_ids"]
    assert tokenizer.unk_token_id not in train_tokenizer(kind, [*TEXTS, "寿司"], 120)("寿")["input_ids"]


def test_without_characters_there_is_nothing_to_train():
    with pytest.raises(ConfigError, match="of 0 characters: give at least 1"):
        train_tokenizer("wordpiece", TEXTS, 300, characters=0)


def test_words_are_counted_and_the_rarest_forgotten_when_they_are_too_many(monkeypatch):
    documents = ["a a a b b c", "d d d e\nf  g g"]
    assert count_words(documents) == Counter("aaabbcdddefgg")
    monkeypatch.setattr(vocabularies, "MOST_WORDS", 4)
    assert count_words(documents) == Counter("aaabbdddgg")
    monkeypatch.setattr(vocabularies, "MOST_WORDS", 2)
    assert count_words(documents) == Counter("aaaddd")


# Comparison --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def families():
    return {
        name: tokenizers.build(name, TEXTS, 400) for name in ("wordpiece", "byte_bpe", "unigram", "words")
    }


def test_figures_of_a_tokenizer_that_is_known_piece_by_piece():
    tokenizer = tokenizers.wordpiece(["the", "keep", "##er", "##s", "paid", ".", "!"])
    counted = figures(tokenizer, ["The keepers paid.", "The crab paid!", "the."])
    assert (counted.vocabulary, counted.documents, counted.words, counted.pieces) == (12, 3, 10, 12)
    assert counted.pieces_per_word == 1.2
    assert counted.whole == 90  # all but keepers
    assert counted.unknown == 10  # crab
    assert (counted.p50, counted.p95, counted.longest) == (6, 8, 8)


def test_unknown_pieces_of_a_word_count_once_and_bytes_are_never_unknown(families):
    text = ["寿司 the 🦀🦀 quay"]
    assert figures(families["byte_bpe"], text).unknown == 0
    for name in ("wordpiece", "unigram", "words"):  # 🦀🦀 are two words, and for WordPiece a single piece
        assert figures(families[name], text).unknown == 60


def test_a_word_within_the_piece_of_another_is_not_divided():
    tokenizer = tokenizers.byte_bpe(["it's " * 50], 300)
    assert tokenizer.tokenize("it's") == ["it", "'s"]
    counted = figures(tokenizer, ["it's"])  # three words: it, ', s
    assert (counted.words, counted.pieces, counted.whole) == (3, 2, 100)


def test_chunks_make_no_difference(families, monkeypatch):
    whole = {name: figures(tokenizer, TEXTS) for name, tokenizer in families.items()}
    monkeypatch.setattr(vocabularies, "CHUNK", 7)
    assert {name: figures(tokenizer, iter(TEXTS)) for name, tokenizer in families.items()} == whole
    for tokenizer in families.values():
        tokenizer.backend_tokenizer.enable_truncation(5)
    assert {name: figures(tokenizer, TEXTS) for name, tokenizer in families.items()} == whole
