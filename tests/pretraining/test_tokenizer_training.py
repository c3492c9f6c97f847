"""Trained tokenizers: of the size asked for, the same in every process, and of their kind."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections import Counter
from itertools import combinations, pairwise

import numpy as np
import pytest
from tokenizers import Tokenizer, models, trainers
from transformers import AutoTokenizer

from qa_arch.errors import ConfigError
from qa_arch.features import tokenizers
from qa_arch.pretraining import tokenizer_training, unigram
from qa_arch.pretraining.corpus import open_corpus
from qa_arch.pretraining.tokenizer_training import KINDS, count_words, train_tokenizer

TEXTS = [f"Keeper {n} of Lock {n * 7} paid {n % 13}½ crowns, naïvely, at the quay." for n in range(200)] * 2
FRESH = "The keepers naïvely unlocked 12 quays."


@pytest.mark.parametrize("kind", KINDS)
def test_it_has_the_size_and_comes_from_a_single_pass(kind):
    tokenizer = train_tokenizer(kind, iter(TEXTS), 330)
    assert len(tokenizer) == 330
    assert sorted(tokenizer.get_vocab().values()) == list(range(330))
    unknown = tokenizer.unk_token_id
    assert all(unknown not in ids for ids in tokenizer(TEXTS)["input_ids"])
    assert len(tokenizer(TEXTS[3])["input_ids"]) < len(TEXTS[3]) / 2


def test_every_process_trains_the_same():
    program = (
        "import sys, json\n"
        "from qa_arch.pretraining.tokenizer_training import KINDS, train_tokenizer\n"
        "texts = json.load(sys.stdin)\n"
        "print(json.dumps([train_tokenizer(k, texts, 330).backend_tokenizer.to_str() for k in KINDS]))"
    )
    command = [sys.executable, "-c", program]
    there = subprocess.run(command, input=json.dumps(TEXTS), capture_output=True, text=True, check=True)
    here = [train_tokenizer(kind, TEXTS, 330).backend_tokenizer.to_str() for kind in KINDS]
    assert json.loads(there.stdout) == here


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_documents_does_not_matter(kind):
    backwards = train_tokenizer(kind, TEXTS[::-1], 330).backend_tokenizer.to_str()
    assert backwards == train_tokenizer(kind, TEXTS, 330).backend_tokenizer.to_str()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lowercase", [None, True, False])
def test_it_survives_save_and_load_with_its_case(kind, lowercase, tmp_path):
    tokenizer = train_tokenizer(kind, TEXTS, 300, lowercase=lowercase)
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
    trained, built = train_tokenizer(kind, TEXTS, 300), tokenizers.build(family, TEXTS, 300)
    assert trained.special_tokens_map == built.special_tokens_map
    pairs = [tokenizer("1", "2", return_token_type_ids=True) for tokenizer in (trained, built)]
    assert pairs[0].sequence_ids() == pairs[1].sequence_ids()
    assert pairs[0]["token_type_ids"] == pairs[1]["token_type_ids"]


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
    assert len(train_tokenizer(kind, TEXTS, best)) == best
    with pytest.raises(ConfigError, match=r"too small|more than this corpus allows"):
        train_tokenizer(kind, TEXTS, best + (1 if size > best else -1))


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
def test_rare_characters_are_unknown_beyond_the_number_of_characters(kind):
    tokenizer = train_tokenizer(kind, [*TEXTS, "寿司"], 150, characters=30)
    assert tokenizer.unk_token_id in tokenizer("寿")["input_ids"]
    assert tokenizer.unk_token_id not in tokenizer("quay keeper")["input_ids"]
    assert tokenizer.unk_token_id not in train_tokenizer(kind, [*TEXTS, "寿司"], 200)("寿")["input_ids"]


def test_without_characters_there_is_nothing_to_train():
    with pytest.raises(ConfigError, match="of 0 characters: give at least 1"):
        train_tokenizer("wordpiece", TEXTS, 300, characters=0)


def test_words_are_counted_and_the_rarest_forgotten_when_they_are_too_many(monkeypatch):
    documents = ["a a a b b c", "d d d e\nf  g g"]
    assert count_words(documents) == Counter("aaabbcdddefgg")
    monkeypatch.setattr(tokenizer_training, "MOST_WORDS", 4)
    assert count_words(documents) == Counter("aaabbdddgg")
    monkeypatch.setattr(tokenizer_training, "MOST_WORDS", 2)
    assert count_words(documents) == Counter("aaaddd")


# Unigram -----------------------------------------------------------------------------------------

WORDS = {"abab": 10, "ab": 5, "abc": 3, "cd": 7, "dcab": 2}
PIECES = ["a", "ab", "abab", "b", "c", "cd", "d", "dc"]


def segmentations(word):
    """All ways to divide a word."""
    for count in range(len(word)):
        for cuts in combinations(range(1, len(word)), count):
            places = [0, *cuts, len(word)]
            yield [word[a:b] for a, b in pairwise(places)]


def likelihood(pieces, scores):
    return sum(scores.get(piece, -math.inf) for piece in pieces)


def test_the_e_step_counts_the_best_segmentations():
    scores = dict(zip(PIECES, np.log(np.arange(1, 9) / 36).tolist(), strict=True))
    expected = Counter()
    for word, n in WORDS.items():
        best = max(segmentations(word), key=lambda pieces: likelihood(pieces, scores))
        expected.update({piece: n * best.count(piece) for piece in best})
    counts = unigram._viterbi_counts(scores, WORDS)
    assert dict(zip(PIECES, counts.tolist(), strict=True)) == {piece: expected[piece] for piece in PIECES}


def test_the_cost_of_a_piece_is_measured_by_its_best_division():
    scores = dict(zip(PIECES, np.log(np.arange(1, 9) / 36).tolist(), strict=True))
    for piece in PIECES:
        divided = [pieces for pieces in segmentations(piece) if len(pieces) > 1]
        expected = max((likelihood(pieces, scores) for pieces in divided), default=-math.inf)
        assert unigram._best_without(piece, scores) == pytest.approx(expected)


def test_pieces_occur_with_overlaps():
    counts = unigram._substring_counts(PIECES, WORDS)
    expected = [sum(n * len(re.findall(f"(?={p})", word)) for word, n in WORDS.items()) for p in PIECES]
    assert counts.tolist() == expected


def test_useful_pieces_survive_with_probabilities_that_sum_to_1():
    scored = unigram.fit(WORDS, "abcd", ["ab", "abab", "cd", "dc", "ba"], 6)
    assert dict(scored).keys() == {*"abcd", "ab", "cd"}
    assert sum(math.exp(score) for _, score in scored) == pytest.approx(1)
    assert scored == sorted(scored, key=lambda item: (-item[1], item[0]))


def test_seeds_that_occur_once_or_are_too_long_are_no_pieces():
    words = {"abcdefghijklmnopqrst": 5, "rare": 1}
    alphabet = set("".join(words))
    pieces = dict(unigram.fit(words, alphabet, ["rare", "abcdefghijklmnopqrst", "abc", "ra"], 100))
    assert pieces.keys() == alphabet | {"abc"}


def test_unknown_text_is_cut_about_as_well_as_by_the_librarys_trainer():
    train, test = (list(open_corpus(f"squad:synthetic:{split}").documents()) for split in ("train", "dev"))
    ours = train_tokenizer("unigram", train[:400], 500)
    theirs = Tokenizer(models.Unigram())
    theirs.normalizer = ours.backend_tokenizer.normalizer
    theirs.pre_tokenizer = ours.backend_tokenizer.pre_tokenizer
    trainer = trainers.UnigramTrainer(
        vocab_size=500, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )
    theirs.train_from_iterator(train[:400], trainer)
    pieces = sum(map(len, ours(test[:100], add_special_tokens=False)["input_ids"]))
    assert pieces < 1.1 * sum(len(encoding.ids) for encoding in theirs.encode_batch(test[:100]))
