"""Tokenizing each run of characters once must give the same pieces as tokenizing whole texts."""

import dataclasses
import gc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from transformers import BertTokenizer

from qa_arch.features import words as pieces
from qa_arch.features.tokenizers import build
from qa_arch.features.words import backend_of
from qa_arch.features.words import tokenize as token_columns
from qa_arch.process import gc_disabled

TEXTS = [
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
    uncased = backend_of(build("wordpiece", TEXTS, 120))
    vocabulary = BertTokenizer(vocab=uncased.get_vocab(), do_lower_case=False, strip_accents=False)
    return {"uncased": uncased, "cased": backend_of(vocabulary)}


def assert_same(result: pieces.Pieces, expected: pieces.Pieces) -> None:
    for field in dataclasses.fields(pieces.Pieces):
        np.testing.assert_array_equal(
            getattr(result, field.name), getattr(expected, field.name), err_msg=field.name
        )


words = st.one_of(st.sampled_from(ODD), st.sampled_from(" ".join(TEXTS).split(" ")), st.text(max_size=4))
texts = st.lists(
    st.lists(words, max_size=12).map("".join) | st.lists(words, max_size=12).map(" ".join), max_size=5
)


@settings(deadline=None, max_examples=150)
@given(sets=st.lists(texts, min_size=1, max_size=3))
@pytest.mark.parametrize("kind", ["uncased", "cased"])
def test_runs_and_whole_texts_give_the_same_pieces(backends, kind, sets):
    tokenize = pieces.tokenize_fn(backends[kind])
    for batch in sets:  # one function for all: its cache must not change the result
        batch = [text.encode("utf-8", "ignore").decode() for text in batch]
        assert_same(tokenize(batch), pieces.tokenize_whole(batch, backends[kind]))


def test_any_number_of_runs_per_text(backends, monkeypatch):
    monkeypatch.setattr(pieces, "BUNDLE", 2)
    batch = [*TEXTS, "", "  two  blanks  ", "\n", *ODD]
    assert_same(
        pieces.tokenize_fn(backends["uncased"])(batch), pieces.tokenize_whole(batch, backends["uncased"])
    )


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
    tokenizer = build("wordpiece", TEXTS, 120)
    tokenizer.add_tokens([added])
    backend = backend_of(tokenizer)
    assert pieces.splits_at_spaces(backend) is expected
    batch = ["in New York [E] a", "[E]cat [E] cat"]
    assert_same(pieces.tokenize_fn(backend)(batch), pieces.tokenize_whole(batch, backend))
    for family in ("byte_bpe", "unigram"):
        assert not pieces.splits_at_spaces(backend_of(build(family, TEXTS, 300)))


def test_tokenizing_creates_no_reference_cycles():
    """Otherwise bulk prediction keeps the words of many parts until the next garbage collection."""
    backend = backend_of(build("wordpiece", TEXTS, 120))
    token_columns(TEXTS, backend)
    with gc_disabled():
        gc.collect()
        token_columns(TEXTS, backend)
        assert gc.collect() == 0
