"""Cutting runs once must give what cutting whole texts gives, whatever is in them."""

from __future__ import annotations

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
from qa_arch.system.garbage import gc_disabled

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


def same(result: pieces.Pieces, expected: pieces.Pieces) -> None:
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
    for some in sets:  # one function for all: its cache must not change the result
        some = [text.encode("utf-8", "ignore").decode() for text in some]
        same(tokenize(some), pieces.tokenize_whole(some, backends[kind]))


def test_any_number_of_runs_to_a_text(backends, monkeypatch):
    monkeypatch.setattr(pieces, "BUNDLE", 2)
    some = [*TEXTS, "", "  two  blanks  ", "\n", *ODD]
    same(pieces.tokenize_fn(backends["uncased"])(some), pieces.tokenize_whole(some, backends["uncased"]))


@pytest.mark.parametrize(
    ("added", "expected_alone"),
    [
        (AddedToken("[E]"), True),
        (AddedToken("[E]", lstrip=True), False),
        (AddedToken("[E]", rstrip=True), False),
        (AddedToken("New York"), False),
    ],
)
def test_an_added_token_with_spaces_forbids_it(added, expected_alone):
    tokenizer = build("wordpiece", TEXTS, 120)
    tokenizer.add_tokens([added])
    backend = backend_of(tokenizer)
    assert pieces.splits_at_spaces(backend) is expected_alone
    some = ["in New York [E] a", "[E]cat [E] cat"]
    same(pieces.tokenize_fn(backend)(some), pieces.tokenize_whole(some, backend))
    for family in ("byte_bpe", "unigram"):
        assert not pieces.splits_at_spaces(backend_of(build(family, TEXTS, 300)))


def test_no_word_outlives_the_call():
    """Else bulk prediction holds the words of many parts until Python searches for cycles."""
    backend = backend_of(build("wordpiece", TEXTS, 120))
    token_columns(TEXTS, backend)
    with gc_disabled():
        gc.collect()
        token_columns(TEXTS, backend)
        assert gc.collect() == 0
