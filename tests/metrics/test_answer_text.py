"""Normalisation and token overlap, against hand-computed values and the plain definition."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qa_arch.metrics.squad import best_overlap, normalise

CASES = [
    ("The Ferry", "ferry"),
    ("a lamp, an oar & the mill.", "lamp oar mill"),
    ("theatre anthem a1", "theatre anthem a1"),  # articles go as whole words only
    ("the", ""),
    ("", ""),
    ("T.H.E. end", "end"),  # punctuation goes first, and leaves an article
    ("co-operative", "cooperative"),  # removed, not replaced by a blank
    ("the–best", "–best"),  # an en dash is no ASCII punctuation, and ends a word
    ("“the” mill", "“ ” mill"),
    ("an_oar", "anoar"),  # the underscore is punctuation here
    ("the\x00mill", "\x00mill"),  # a control character is neither blank nor letter
    ("the\x1cmill", "mill"),  # this one is a blank
    ("x\u00a0the\u3000y", "x y"),
    ("ΣΑΣ Ünder İ", "σας ünder i\u0307"),
    ("athe the\u0301", "athe \u0301"),  # a combining accent is no letter to a regular expression
]


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_normalise(text, expected, plain):
    assert normalise(text) == expected
    assert plain.normal(text) == expected


@given(st.text(alphabet=st.one_of(st.sampled_from("aAnNtThHeE \t\n.,'–“_\x00\x1c½Σİ"), st.characters())))
def test_normalise_equals_the_definition(plain, text):
    assert normalise(text) == plain.normal(text)


def test_overlap_by_hand():
    # shared {red, mill}; precision 2/3, recall 2/4, F1 = 2 * (1/3) / (7/6) = 4/7; of "mill" alone 1/2
    for golds in (["mill", "old red brick mill"], ["old red brick mill", "mill"]):
        got = best_overlap("red mill house", golds, "2.0")
        assert got == (0, pytest.approx(4 / 7, abs=1e-15), 2 / 3, 2 / 4)
    # multisets: "mill" is shared twice of three and two; precision 2/3, recall 2/2, F1 = 0.8
    assert best_overlap("mill mill mill", ["mill mill"], "1.1") == (0, pytest.approx(0.8), 2 / 3, 1.0)
    # repeated in the gold alone: shared once; precision 1/1, recall 1/2, F1 = 2/3
    assert best_overlap("mill", ["mill mill"], "1.1") == (0, pytest.approx(2 / 3), 1.0, 0.5)
    # the same words in another order: F1 1 without an exact match
    assert best_overlap("mill red", ["red mill"], "2.0") == (0, 1.0, 1.0, 1.0)


def test_of_equal_f1_the_first_gold_gives_precision_and_recall():
    # "k k m m" against "k": shared 1, p 1/4, r 1/1, F1 2/5;
    # against "k m x y z w": shared 2, p 2/4, r 2/6, F1 = (1/3) / (5/6) = 2/5 as well
    short, long = "k", "k m x y z w"
    assert best_overlap("k k m m", [short, long], "2.0")[2:] == (1 / 4, 1.0)
    assert best_overlap("k k m m", [long, short], "2.0")[2:] == (2 / 4, 2 / 6)


def test_protocols_differ_where_nothing_is_left():
    assert best_overlap("", [""], "2.0") == (1, 1, 1, 1)
    assert best_overlap("", [""], "1.1") == (1, 0, 0, 0)
    for protocol in ("1.1", "2.0"):
        assert best_overlap("", ["mill"], protocol) == (0, 0, 0, 0)
        assert best_overlap("mill", [""], protocol) == (0, 0, 0, 0)
        assert best_overlap("mill", [], protocol) == (0, 0, 0, 0)


def test_overlap_equals_the_definition(plain):
    rng = random.Random(5)
    for _ in range(2000):
        gold, text = (" ".join(rng.choices("pqrs", k=rng.randint(0, 6))) for _ in range(2))
        for protocol, f1 in (("1.1", plain.f1_11), ("2.0", plain.f1_20)):
            got = best_overlap(text, [gold], protocol)
            assert (got.exact, got.f1) == (plain.exact(gold, text), f1(gold, text)), (gold, text)
