"""What is counted of tokenizers, and how their pieces are shown."""

from __future__ import annotations

import re
from html import unescape

import pytest
from browsers import start_browser
from transformers import PreTrainedTokenizerFast

from qa_arch.features import tokenizers
from qa_arch.pretraining import tokenizer_comparison
from qa_arch.pretraining.comparison_page import page
from qa_arch.pretraining.corpus import Corpus
from qa_arch.pretraining.tokenizer_comparison import BLANK, SENTENCES, Lengths, compare, cut, figures

TEXTS = [f"Keeper {n} of lock {n * 7} paid {n % 13}½ crowns, naïvely, at the quay." for n in range(200)]


def wordpiece(*pieces: str) -> PreTrainedTokenizerFast:
    return tokenizers.wordpiece(pieces)


@pytest.fixture(scope="module")
def families():
    return {
        name: tokenizers.build(name, TEXTS, 400) for name in ("wordpiece", "byte_bpe", "unigram", "words")
    }


# Figures -----------------------------------------------------------------------------------------


def test_figures_of_a_tokenizer_that_is_known_piece_by_piece():
    tokenizer = wordpiece("the", "keep", "##er", "##s", "paid", ".", "!")
    counted = figures(tokenizer, ["The keepers paid.", "The crab paid!", "the."])
    assert (counted.vocabulary, counted.documents, counted.words, counted.pieces) == (12, 3, 10, 12)
    assert counted.pieces_per_word == 1.2
    assert counted.whole == 0.9  # all but keepers
    assert counted.unknown == 0.1  # crab
    assert counted.positions == Lengths(6, 8, 8)


def test_unknown_pieces_of_a_word_count_once_and_bytes_are_never_unknown(families):
    text = ["寿司 the 🦀🦀 quay"]
    assert figures(families["byte_bpe"], text).unknown == 0
    for name in ("wordpiece", "unigram", "words"):  # 🦀🦀 are two words, and for WordPiece a single piece
        assert figures(families[name], text).unknown == 3 / 5


def test_a_word_within_the_piece_of_another_is_not_divided():
    tokenizer = tokenizers.byte_bpe(["it's " * 50], 300)
    assert tokenizer.tokenize("it's") == ["it", "'s"]
    counted = figures(tokenizer, ["it's"])  # three words: it, ', s
    assert (counted.words, counted.pieces, counted.whole) == (3, 2, 1)


def test_chunks_make_no_difference(families, monkeypatch):
    whole = {name: figures(tokenizer, TEXTS) for name, tokenizer in families.items()}
    monkeypatch.setattr(tokenizer_comparison, "CHUNK", 7)
    assert {name: figures(tokenizer, iter(TEXTS)) for name, tokenizer in families.items()} == whole
    for tokenizer in families.values():
        tokenizer.backend_tokenizer.enable_truncation(5)
    assert {name: figures(tokenizer, TEXTS) for name, tokenizer in families.items()} == whole


def test_positions_are_those_that_the_tokenizer_needs(families):
    for tokenizer in families.values():
        longest = max(len(ids) for ids in tokenizer(TEXTS)["input_ids"])
        assert figures(tokenizer, TEXTS).positions.max == longest


# Pieces ------------------------------------------------------------------------------------------


def test_pieces_cover_the_sentence_in_order(families):
    for name, tokenizer in families.items():
        for sentence in SENTENCES:
            pieces = cut(tokenizer, sentence)
            encoding = tokenizer(sentence, add_special_tokens=False)
            assert [piece.token for piece in pieces] == encoding.tokens(), name
            text = "".join(piece.text for piece in pieces if piece.text != BLANK)
            assert text == sentence.replace(" ", ""), name
            begins = "".join(" " * piece.begins_word + piece.text for piece in pieces)
            assert begins.replace(BLANK, "").split() == sentence.split(), name
            unknown = [piece.unknown for piece in pieces]
            assert unknown == [number == tokenizer.unk_token_id for number in encoding["input_ids"]], name


def test_blanks_and_bytes_of_a_character_are_told_apart():
    tokenizer = tokenizers.byte_bpe(["a b"], 261)
    assert [(piece.text, piece.begins_word) for piece in cut(tokenizer, "é b")] == [
        ("é", True),
        ("", False),
        (BLANK, True),
        ("b", False),
    ]


# Vocabularies in common --------------------------------------------------------------------------


def test_vocabularies_are_compared_by_what_the_pieces_stand_for():
    """WordPiece marks what goes on, the others what begins."""
    text = Corpus("c", "f", None, lambda: iter(["lock"]))
    compared = {
        "wordpiece": wordpiece("lock", "##s", "the", "##lock"),
        "unigram": tokenizers.unigram(
            [("▁lock", -1.0), ("s", -1.0), ("▁", -2.0), ("lock", -2.0), ("x", -3.0)]
        ),
        "byte_bpe": tokenizers.byte_bpe([" lock lock lock"], 265),
        "words": tokenizers.build("words", ["lock the é"], 6),
    }
    shared = compare(compared, text, []).shared
    assert [shared[i][i] for i in range(4)] == [1] * 4
    assert shared[0][1] == 3 / 4  # all but: the
    assert shared[1][0] == 3 / 5  # all but: a blank, x inside a word
    assert shared[0][2] == 2 / 4  # lock and s: no merge without a blank
    assert shared[3][0] == 2 / 3  # lock, the
    assert shared[2][3] == 1 / 260


# The page ----------------------------------------------------------------------------------------

HOSTILE = "<script>alert('x')</script> & \"quoted\" naïve"


@pytest.fixture(scope="module")
def comparison(families):
    text = Corpus("<b>text</b>", "f", None, lambda: iter(TEXTS))
    return compare({**families, "<i>x</i>": families["words"]}, text, [*SENTENCES, HOSTILE])


def test_the_page_needs_nothing_else_and_escapes_everything(comparison):
    html = page(comparison)
    assert not re.search(r"<(script|i|b|img|link)\b|https?:|@import|url\(", html)
    assert html.count("&lt;script&gt;") == 1
    for sentence in (*SENTENCES, HOSTILE):
        assert f"<h3>{sentence}</h3>" in unescape(html)
    assert html.count('<span class="piece') == sum(
        len(cut_) for _, cuts in comparison.examples for cut_ in cuts
    )
    assert html.count("piece unknown") == sum(
        piece.unknown for _, cuts in comparison.examples for pieces in cuts for piece in pieces
    )


@pytest.fixture(scope="module")
def browser():
    yield from start_browser()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_accessible_at_every_width(comparison, browser, tmp_path, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe")
    file = tmp_path / "page.html"
    file.write_text(page(comparison), encoding="utf-8")
    for width in (360, 800, 1400):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        view = context.new_page()
        view.set_default_timeout(60_000)
        view.goto(file.as_uri())
        results = axe.Axe().run(view)
        assert results.violations_count == 0, results.generate_report()
        assert view.evaluate("() => document.documentElement.scrollWidth") <= width
        context.close()
