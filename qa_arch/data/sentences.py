"""Sentences of a text, by rules."""

from __future__ import annotations

import re

_END = re.compile(r"""(?<![.!?])[.!?]++["'”’)\]]*(?:\[[^\]\s]{0,40}\])*(?=\s+["'“‘(\[]?[^\W_a-z])|\n+""")
"""The end of a sentence: its mark, then closing quotes, brackets and footnotes, white space and a
capital, a digit or an opening sign; or a line break."""
_SHORT = """
adm al apr aug ave blvd bros c ca capt cf co col corp dec dept dr ed est etc feb fig fr ft gen
gov hon inc jan jr jul jun lt ltd maj mar messrs mr mrs ms mt no nov oct op p pp pres prof rep
rev rt sen sep sept sgt sr st u.k u.s vol vs viz e.g i.e a.m p.m b.c a.d
"""
_ABBREVIATIONS = frozenset(_SHORT.split())
_LAST_WORD = re.compile(r"[\w.]*\w$")
_LONGEST = max(map(len, _ABBREVIATIONS)) + 1
"""Characters before a full stop that decide whether they are an abbreviation."""


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """(start, end) of the sentences of ``text`` by rules, end exclusive, without outer white space.

    A blank text has no sentence. A full stop after an abbreviation or an initial does not end a sentence, so
    two sentences are not separated where the first ends in such a word.
    """
    spans = []
    begin = 0
    for match in _END.finditer(text):
        if match[0] == "." and _is_abbreviation(text[max(begin, match.start() - _LONGEST) : match.start()]):
            continue
        spans.append((begin, match.end()))
        begin = match.end()
    spans.append((begin, len(text)))
    return [span for span in (_strip(text, *span) for span in spans) if span[0] < span[1]]


def _is_abbreviation(before: str) -> bool:
    word = _LAST_WORD.search(before)
    if word is None:
        return False
    initial = len(word[0]) == 1 and word[0].isupper()
    return initial or word[0].lower() in _ABBREVIATIONS


def _strip(text: str, start: int, end: int) -> tuple[int, int]:
    piece = text[start:end]
    return start + len(piece) - len(piece.lstrip()), end - (len(piece) - len(piece.rstrip()))
