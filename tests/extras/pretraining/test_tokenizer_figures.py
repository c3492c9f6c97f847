"""Statistics of how tokenizers split a text, counted by hand."""

import pytest

from qa_arch.extras.pretraining import tokenizer_figures
from qa_arch.extras.pretraining.tokenizer_figures import figures
from qa_arch.features import tokenizers

TEXTS = [f"Keeper {n} of lock {n * 7} naïvely paid {n % 13} crowns at the quay." for n in range(40)]


@pytest.fixture(scope="module")
def families():
    return {
        name: tokenizers.build(name, TEXTS, 400) for name in ("wordpiece", "byte_bpe", "unigram", "words")
    }


def test_figures_of_a_hand_made_tokenizer():
    tokenizer = tokenizers.wordpiece(["the", "keep", "##er", "##s", "paid", ".", "!"])
    actual = figures(tokenizer, ["The keepers paid.", "The crab paid!", "the."])
    assert actual == {
        "vocabulary": 12,
        "documents": 3,
        "words": 10,
        "tokens": 12,
        "tokens_per_word": 1.2,
        "unsplit": 90,  # all but keepers
        "unknown": 10,  # crab
        "p50": 6,
        "p95": 8,
        "longest": 8,
    }


def test_unknown_words_are_counted_once_and_never_for_bytes(families):
    text = ["寿司 the 🦀🦀 quay"]
    assert figures(families["byte_bpe"], text)["unknown"] == 0
    for name in ("wordpiece", "unigram", "words"):  # 🦀🦀: two words, one piece for WordPiece
        assert figures(families[name], text)["unknown"] == 60


def test_word_inside_a_larger_piece_is_not_split():
    tokenizer = tokenizers.build("byte_bpe", ["it's " * 50], 300)
    assert tokenizer.tokenize("it's") == ["it", "'s"]
    actual = figures(tokenizer, ["it's"])  # three words: it, ', s
    assert (actual["words"], actual["tokens"], actual["unsplit"]) == (3, 2, 100)


def test_chunk_size_and_truncation_do_not_change_figures(families, monkeypatch):
    expected = {name: figures(tokenizer, TEXTS) for name, tokenizer in families.items()}
    monkeypatch.setattr(tokenizer_figures, "CHUNK", 7)
    for tokenizer in families.values():
        tokenizer.backend_tokenizer.enable_truncation(5)
    assert {name: figures(tokenizer, iter(TEXTS)) for name, tokenizer in families.items()} == expected
