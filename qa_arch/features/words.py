"""Words of texts, and the alignment of word pieces with words.

A word is a run of letters, marks, digits and underscores, or one other visible character. Everything is
vectorised over arrays of code points, many texts at a time.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qa_arch.errors import DataError
from qa_arch.features.table import Bools, Longs

_SPACE, _LETTER, _MARK, _SYMBOL = 0, 1, 2, 3


def _kind(character: str) -> int:
    if character.isspace():
        return _SPACE
    category = unicodedata.category(character)[0]
    if category == "M":
        return _MARK
    return _LETTER if character == "_" or category in "LN" else _SYMBOL


@dataclass(frozen=True, slots=True, eq=False)
class Words:
    """The words of several texts on one character axis: text x begins at ``base[x]``."""

    base: Longs
    """(X + 1,) start of each text; texts are separated by one line break."""
    start: Longs
    """(W,) first character of each word."""
    end: Longs
    """(W,) end of each word, exclusive."""
    first: Longs
    """(X + 1,) words of text x are ``[first[x], first[x + 1])``."""
    surface: list[str]
    """The W words in their exact form."""
    space: Bools
    """True at every white space character of the axis."""
    mark: Bools
    """True at every combining mark of the axis (decomposed accents)."""


def split(texts: Sequence[str]) -> Words:
    """Split ``texts`` into words. Raises DataError for text that is not Unicode (a lone surrogate)."""
    joined = "\n".join(texts) + "\n"
    try:
        codes = np.frombuffer(joined.encode("utf-32-le"), np.uint32)
    except UnicodeEncodeError as error:
        near = joined[max(0, error.start - 30) : error.start]
        raise DataError(
            f"a text holds half a surrogate pair after {near!r}: write the file again as UTF-8"
        ) from error
    present = np.zeros(int(codes.max()) + 1, bool)
    present[codes] = True
    kinds = np.zeros(len(present), np.uint8)
    for code in np.flatnonzero(present).tolist():
        kinds[code] = _kind(chr(code))
    kind = kinds[codes]

    # Marks count as letters, else a decomposed accent would split its word.
    word, symbol = (kind == _LETTER) | (kind == _MARK), kind == _SYMBOL
    # The axis ends with a line break, so every word is followed by a character.
    start = np.flatnonzero(symbol | (word & ~np.r_[False, word[:-1]]))
    end = np.flatnonzero(symbol | (word & ~np.r_[word[1:], False])) + 1
    base = np.r_[0, np.cumsum(np.fromiter((len(t) + 1 for t in texts), np.int64, len(texts)))]
    surface = list(map(joined.__getitem__, map(slice, start.tolist(), end.tolist())))
    first = np.array(np.searchsorted(start, base), np.int64)
    return Words(base, start, end, first, surface, kind == _SPACE, kind == _MARK)


def fit(start: Longs, end: Longs, words: Words) -> tuple[Longs, Longs]:
    """Offsets ``[start, end)`` of pieces without outer white space and with their combining marks.

    Pieces of white space alone get zero width. Combining marks that no piece covers are added to the piece
    before them: tokenizers that strip accents exclude them from the offsets, and an answer would lose the
    accent of its last letter.
    """
    start, end = start.copy(), end.copy()
    while (blank := (start < end) & words.space[start]).any():
        start += blank
    while (blank := (start < end) & words.space[end - 1]).any():
        end -= blank
    wide = np.flatnonzero(start < end)
    following = np.append(start[wide[1:]], len(words.mark))
    while (grows := (end[wide] < following) & words.mark[end[wide]]).any():
        end[wide] += grows
    return start, end


def word_of(start: Longs, end: Longs, text: Longs, words: Words) -> Longs:
    """Index of the word of each piece ``[start, end)`` of text ``text``: the first with a common character.

    A piece without a common character (zero width) belongs to the nearest word of its text; -1 if the text
    has no words.
    """
    if not len(words.start):
        return np.full(len(start), -1)
    first, last = words.first[text], words.first[text + 1] - 1
    after = np.clip(np.searchsorted(words.end, start, side="right"), first, np.maximum(last, first))
    after = np.minimum(after, len(words.start) - 1)
    before = np.maximum(after - 1, first)
    separate = words.start[after] >= np.maximum(end, start + 1)
    previous_is_nearer = separate & (start - words.end[before] < words.start[after] - end) & (before < after)
    return np.where(last < first, -1, np.where(previous_is_nearer, before, after))
