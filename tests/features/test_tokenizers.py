"""Trained tokenizers: pieces of their family, determinism, saving and loading."""

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from qa_arch.features import words
from qa_arch.features.tokenizers import build

TEXTS = [f"Keeper {n} of lock {n * 7} paid {n % 13}½ crowns, naïvely, at the quay." for n in range(200)]
QUESTION, CONTEXT = "Who paid?", "The keeper paid 12 crowns at the lock's quay."
FAMILIES = ("wordpiece", "byte_bpe", "unigram", "words")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_texts_give_the_same_tokenizer(family):
    first = build(family, TEXTS, 300).backend_tokenizer.to_str()
    assert all(build(family, TEXTS, 300).backend_tokenizer.to_str() == first for _ in range(3))
    assert build(family, TEXTS[:50], 300).backend_tokenizer.to_str() != first


@pytest.mark.parametrize("loader", [AutoTokenizer, PreTrainedTokenizerFast])
@pytest.mark.parametrize("family", FAMILIES)
def test_tokenizer_survives_save_and_load(family, loader, tmp_path):
    tokenizer = build(family, TEXTS, 350)
    tokenizer.save_pretrained(tmp_path)
    loaded = loader.from_pretrained(tmp_path)
    assert loaded.is_fast
    assert loaded(QUESTION, CONTEXT)["input_ids"] == tokenizer(QUESTION, CONTEXT)["input_ids"]
    assert loaded.pad_token_id == tokenizer.pad_token_id
    assert loaded.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()


@pytest.mark.parametrize("family", ["wordpiece", "unigram"])
def test_words_are_cut_at_the_length_that_wordpiece_reads(family):
    """Longer ones would take quadratic time."""
    assert max(map(len, build(family, ["a" * 1000, "a" * 1000], 300).get_vocab())) <= len("##") + 100


def test_pieces_look_like_their_family():
    text = "The keeper paid"
    wordpiece = build("wordpiece", TEXTS, 120).tokenize("keepers naïvely")
    assert wordpiece[0].startswith("keep")
    assert any(piece.startswith("##") for piece in wordpiece)
    assert "naively" in build("wordpiece", TEXTS, 300).tokenize("NAÏVELY")
    assert build("byte_bpe", TEXTS, 400).tokenize(text)[-1] == "Ġpaid"
    assert build("unigram", TEXTS, 300).tokenize(text)[-1] == "▁paid"
    assert build("byte_bpe", TEXTS, 400).unk_token_id not in build("byte_bpe", TEXTS, 400)("🦀")["input_ids"]


@pytest.mark.parametrize("family", FAMILIES)
def test_training_text_has_no_unknown_token_and_size_is_respected(family):
    tokenizer = build(family, TEXTS, 400)
    assert 200 < len(tokenizer) <= 400
    unknown = tokenizer.unk_token_id
    assert all(unknown not in ids for ids in tokenizer(TEXTS)["input_ids"])
    assert len(tokenizer(TEXTS[3])["input_ids"]) < 40


@pytest.mark.parametrize("size", [0, 300])
def test_word_tokens_match_the_words_of_vector_lookup(size):
    """One piece per word, with its offsets in the original text, whether or not the word is known."""
    text = "Ünlü Dr. O'Neil's 1,234.5 km²—naïve_test İstanbul\u2028e\u0301tude \u4f60\u597d?! x\u00a0z"
    encoded = build("words", TEXTS, size)(text, return_offsets_mapping=True)
    expected = words.split([text])
    assert encoded["offset_mapping"] == list(zip(expected.start.tolist(), expected.end.tolist(), strict=True))


def test_word_vocabulary_is_lower_case_and_most_frequent_first():
    tokenizer = build("words", ["The lock the keeper", "the LOCK"], 5)
    assert tokenizer.tokenize("THE lock keeper") == ["the", "lock", "[UNK]"]
    assert len(build("words", TEXTS, 0)) == 3
