"""Trained tokenizers; and tokenizing each run of characters once gives the pieces of whole texts."""

import dataclasses
import gc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from transformers import AutoTokenizer, BertTokenizer, PreTrainedTokenizerFast

from qa_arch.features import words as pieces
from qa_arch.features.tokenizers import build
from qa_arch.features.words import backend_of
from qa_arch.process import gc_disabled

TEXTS = [f"Keeper {n} of lock {n * 7} paid {n % 13}½ crowns, naïvely, at the quay." for n in range(200)]
FAMILIES = ("wordpiece", "byte_bpe", "unigram", "words")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_texts_give_the_same_tokenizer(family, tmp_path):
    """Saved and loaded as well; none of their tokens is unknown."""
    tokenizer, again = (build(family, TEXTS, 400) for _ in range(2))
    content = tokenizer.backend_tokenizer.to_str()
    assert again.backend_tokenizer.to_str() == content
    assert build(family, TEXTS[:50], 400).backend_tokenizer.to_str() != content
    assert 200 < len(tokenizer) <= 400
    assert all(tokenizer.unk_token_id not in ids for ids in tokenizer(TEXTS)["input_ids"])
    assert len(tokenizer(TEXTS[3])["input_ids"]) < 40
    tokenizer.save_pretrained(tmp_path)
    for loader in (AutoTokenizer, PreTrainedTokenizerFast):
        loaded = loader.from_pretrained(tmp_path)
        assert loaded.is_fast
        assert loaded("Who paid?", TEXTS[0])["input_ids"] == tokenizer("Who paid?", TEXTS[0])["input_ids"]
        assert loaded.pad_token_id == tokenizer.pad_token_id
        assert loaded.backend_tokenizer.to_str() == content


@pytest.mark.parametrize("family", FAMILIES)
def test_any_number_of_pieces_may_be_asked_for(family):
    assert build(family, TEXTS, 10**20).get_vocab() == build(family, TEXTS, 5000).get_vocab()


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


@pytest.mark.parametrize("size", [0, 300])
def test_word_tokens_match_the_words_of_vector_lookup(size):
    """One piece per word, with its offsets in the original text, whether or not the word is known."""
    text = "Ünlü Dr. O'Neil's 1,234.5 km²—naïve_test İstanbul\u2028e\u0301tude \u4f60\u597d?! x\u00a0z"
    encoded = build("words", TEXTS, size)(text, return_offsets_mapping=True)
    expected = pieces.split([text])
    assert encoded["offset_mapping"] == list(zip(expected.start.tolist(), expected.end.tolist(), strict=True))
    few = build("words", ["The lock the keeper", "the LOCK"], 5)  # in lower case, the most frequent
    assert few.tokenize("THE lock keeper") == ["the", "lock", "[UNK]"]


SENTENCES = [
    "Ælfric's naïve café_bar cost €5½ — 漢字 and İstanbul.",
    "the cat sat on the mat, the cat!",
    "a b c d",
]
ODD = [
    *" \n\t \u3000\x00\x1c\x85\u200b\u200d\u0301ﬁ½漢é\ufffd🙂",
    *("\u0301a", "[MASK]", "[SEP].", "\r\n", "شكرا"),
    "x" * 120,
]


@pytest.fixture(scope="module")
def backends():
    uncased = backend_of(build("wordpiece", SENTENCES, 120))
    vocabulary = BertTokenizer(vocab=uncased.get_vocab(), do_lower_case=False, strip_accents=False)
    return {"uncased": uncased, "cased": backend_of(vocabulary)}


def assert_same(result: pieces.Pieces, expected: pieces.Pieces) -> None:
    for field in dataclasses.fields(pieces.Pieces):
        np.testing.assert_array_equal(
            getattr(result, field.name), getattr(expected, field.name), err_msg=field.name
        )


odd_words = st.one_of(
    st.sampled_from(ODD), st.sampled_from(" ".join(SENTENCES).split(" ")), st.text(max_size=4)
)
texts = st.lists(
    st.lists(odd_words, max_size=12).map("".join) | st.lists(odd_words, max_size=12).map(" ".join), max_size=5
)


@settings(deadline=None, max_examples=50)
@given(sets=st.lists(texts, min_size=1, max_size=3))
@pytest.mark.parametrize("kind", ["uncased", "cased"])
def test_runs_and_whole_texts_give_the_same_pieces(backends, kind, sets):
    tokenize = pieces.tokenize_fn(backends[kind])
    for batch in sets:  # one function for all: its cache must not change the result
        batch = [text.encode("utf-8", "ignore").decode() for text in batch]
        assert_same(tokenize(batch), pieces.tokenize_whole(batch, backends[kind]))


def test_any_number_of_runs_per_text(backends, monkeypatch):
    monkeypatch.setattr(pieces, "BUNDLE", 2)
    batch, backend = [*SENTENCES, "", "  two  blanks  ", "\n", *ODD], backends["uncased"]
    assert_same(pieces.tokenize_fn(backend)(batch), pieces.tokenize_whole(batch, backend))


@pytest.mark.parametrize(
    ("added", "expected"),
    [
        (AddedToken("[E]"), True),
        (AddedToken("[E]", lstrip=True), False),
        (AddedToken("[E]", rstrip=True), False),
        (AddedToken("New York"), False),
    ],
)
def test_added_tokens_with_spaces_disable_splitting_at_spaces(added, expected):
    tokenizer = build("wordpiece", SENTENCES, 120)
    tokenizer.add_tokens([added])
    backend = backend_of(tokenizer)
    assert pieces.splits_at_spaces(backend) is expected
    batch = ["in New York [E] a", "[E]cat [E] cat"]
    assert_same(pieces.tokenize_fn(backend)(batch), pieces.tokenize_whole(batch, backend))
    for family in ("byte_bpe", "unigram"):
        assert not pieces.splits_at_spaces(backend_of(build(family, SENTENCES, 300)))


def test_tokenizing_creates_no_reference_cycles():
    """Otherwise bulk prediction keeps the words of many parts until the next garbage collection."""
    backend = backend_of(build("wordpiece", SENTENCES, 120))
    pieces.tokenize(SENTENCES, backend)
    with gc_disabled():
        gc.collect()
        pieces.tokenize(SENTENCES, backend)
        assert gc.collect() == 0
