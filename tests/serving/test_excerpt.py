from __future__ import annotations

import pytest

from qa_arch.serving.excerpt import MOST, plain, sentence

LONG = "word " * 100


@pytest.mark.parametrize(
    ("text", "span", "expected"),
    [
        ("It stood. Odo built it. It burnt.", "Odo", ("", "Odo", " built it.")),
        ("It stood. Odo built it. It burnt.", "built it.", ("Odo ", "built it.", "")),
        ("It stood. Odo built it. It burnt.", "It burnt.", ("", "It burnt.", "")),
        ("It stood.\nOdo built it\nIt burnt", "built", ("Odo ", "built", " it")),
        ("A cost of 3.5 per cent.", "cost", ("A ", "cost", " of 3.5 per cent.")),
        ("他来了。她走了。", "她", ("", "她", "走了。")),
        ("one. two three. four", "two three. four", ("", "two three. four", "")),
        ("red\x1b[31m and\tblue", "and", ("red [31m ", "and", " blue")),
    ],
)
def test_the_sentence_around_a_span(text, span, expected):
    start = text.index(span)
    assert sentence(text, start, start + len(span)) == expected


def test_a_long_sentence_is_cut_at_words():
    before, span, after = sentence(f"{LONG}Odo {LONG}", len(LONG), len(LONG) + 3)
    assert span == "Odo"
    assert before.startswith("…word ")
    assert after.endswith(" word…")
    assert max(len(before), len(after)) <= MOST + 1


def test_no_text_steers_a_terminal():
    assert plain("a\x1b]0;x\x07\u2028\x85b\ud83d") == "a ]0;x   b "
    assert plain("é 世界 👩‍👩‍👧") == "é 世界 👩‍👩‍👧"
