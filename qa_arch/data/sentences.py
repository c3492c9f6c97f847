"""Rule-based sentence segmentation."""

from __future__ import annotations

import re

# Possessive and bounded: a text of nothing but marks takes linear time.
_END = re.compile(r"""(?<![.!?])[.!?]++["'”’)\]]*(?:\[[^\]\s]{0,40}\])*(?=\s+["'“‘(\[]?[^\W_a-z])|\n+""")
"""End of a sentence: its mark, closing quotes, brackets and footnotes, followed by white space and a capital,
a digit or an opening quote or bracket; or a line break."""
_SHORT = """
adm al apr aug ave blvd bros c ca capt cf co col corp dec dept dr ed est etc feb fig fr ft gen
gov hon inc jan jr jul jun lt ltd maj mar messrs mr mrs ms mt no nov oct op p pp pres prof rep
rev rt sen sep sept sgt sr st u.k u.s vol vs viz e.g i.e a.m p.m b.c a.d
"""
_ABBREVIATIONS = frozenset(_SHORT.split())
_LAST_WORD = re.compile(r"[\w.]*\w$")
_LONGEST = max(map(len, _ABBREVIATIONS)) + 1
"""Number of characters before a full stop to check for an abbreviation."""


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """(start, end) of each sentence, end exclusive, without surrounding white space.

    A blank text has no sentences. A full stop after an abbreviation or an initial does not end a sentence, so
    a sentence that ends in such a word is merged with the next.
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
