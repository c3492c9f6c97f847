"""Texts -> words and word pieces aligned with them: the token columns of a feature table.

A word is a run of letters, marks, digits and underscores, or a single other visible character. Each distinct
text is tokenised once; with BERT's tokenizer, each distinct run of visible characters. Everything is
vectorised over arrays of code points, many texts at a time.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from itertools import count as numbers
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from qa_arch.errors import ConfigError, DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Bools = NDArray[np.bool_]

CHUNK = 1024
"""Texts per chunk: enough for the tokenizer's threads, few enough to bound memory."""
BUNDLE = 128
"""Runs encoded as one text, as a call per run costs more than the tokenisation."""
_SPACE, _LETTER, _MARK, _SYMBOL = 0, 1, 2, 3
_JAMO = re.compile("[\u1160-\u11ff\ud7b0-\ud7ff]")
"""Vowels and final consonants of decomposed Hangul, which compose with what precedes them, like marks."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenColumns:
    """Tokens of texts, and the words they belong to. Axes: ``X`` texts, ``K`` tokens, ``V`` words.

    The token columns end with a null row (no text, zero width, no word), which index -1 selects.
    """

    vocabulary: tuple[str, ...]
    """The V distinct words of all texts, in their exact form."""
    folded: Ints
    """(V,) index of each word's case-folded form: equal for words that differ only in case."""

    text_offsets: Longs
    """(X + 1,) tokens of text x are ``[text_offsets[x], text_offsets[x + 1])`` of the token columns."""
    ids: Ints
    """(K + 1,) vocabulary id of each piece."""
    char_start: Ints
    """(K + 1,) first character of each piece in its text; surrounding white space is excluded."""
    char_end: Ints
    """(K + 1,) end of each piece, exclusive; equal to ``char_start`` for a zero-width piece."""
    word_number: Ints
    """(K + 1,) index within the text of the word that a piece belongs to; -1 for none."""
    word: Ints
    """(K + 1,) the same word as an index into ``vocabulary``; -1 for none."""


def tokenize(texts: Sequence[str], backend: Tokenizer) -> TokenColumns:
    """Tokenise ``texts`` without special tokens and align every piece with its word."""
    vocabulary: defaultdict[str, int] = defaultdict()
    vocabulary.default_factory = vocabulary.__len__  # a new word gets the next number
    counts: list[Longs] = [np.zeros(1, np.int64)]
    chunks: list[tuple[Ints, ...]] = []
    with unlimited(backend):
        to_pieces = tokenize_fn(backend)
        for begin in range(0, len(texts), CHUNK):
            count, columns = _columns(texts[begin : begin + CHUNK], to_pieces, vocabulary)
            counts.append(count)
            chunks.append(columns)
    vocabulary.default_factory = None  # a reference cycle: all words would outlive this call
    null_row = tuple(np.array([value], np.int32) for value in (0, 0, 0, -1, -1))
    forms: dict[str, int] = {}
    folded = [forms.setdefault(word.casefold(), len(forms)) for word in vocabulary]
    return TokenColumns(
        tuple(vocabulary),
        np.array(folded, np.int32),
        np.cumsum(np.concatenate(counts)),
        *(np.concatenate(column) for column in zip(*chunks, null_row, strict=True)),
    )


def _columns(
    texts: Sequence[str], to_pieces: Callable[[Sequence[str]], Pieces], vocabulary: defaultdict[str, int]
) -> tuple[Longs, tuple[Ints, ...]]:
    """Tokens per text, and (ids, char_start, char_end, word_number, word) of all their tokens."""
    words = split(texts)  # first, as it reports invalid text
    pieces = to_pieces(texts)
    text = np.repeat(np.arange(len(texts)), pieces.count)
    base = words.base[text]
    start, end = fit(base + pieces.start, base + pieces.end, words)
    word = word_of(start, end, text, words)
    index = np.fromiter(map(vocabulary.__getitem__, words.surface), np.int32, len(words.surface))
    number = np.where(word < 0, -1, word - words.first[text])
    narrow = (column.astype(np.int32) for column in (pieces.ids, start - base, end - base, number))
    return pieces.count, (*narrow, np.append(index, np.int32(-1))[word])  # -1 selects the -1


@dataclass(frozen=True, slots=True, eq=False)
class Words:
    """Words of several texts on one character axis: text x starts at ``base[x]``."""

    base: Longs
    """(X + 1,) start of each text; texts are separated by a line break."""
    start: Longs
    """(W,) first character of each word."""
    end: Longs
    """(W,) end of each word, exclusive."""
    first: Longs
    """(X + 1,) words of text x are ``[first[x], first[x + 1])``."""
    surface: list[str]
    """The W words in their exact form."""
    space: Bools
    """True on white space characters."""
    mark: Bools
    """True on characters that compose with the one before: combining marks (decomposed accents, voiced kana)
    and the jamo that follow the first of a syllable."""


def split(texts: Sequence[str]) -> Words:
    """Split ``texts`` into words. Raises DataError for text that is not Unicode (a lone surrogate)."""
    joined = "\n".join(texts) + "\n"
    try:
        codes = np.frombuffer(joined.encode("utf-32-le"), np.uint32)
    except UnicodeEncodeError as error:
        near = joined[max(0, error.start - 30) : error.start]
        raise DataError(
            f"a text contains a lone surrogate after {near!r}: save the file as valid UTF-8"
        ) from error
    # Each character that occurs is looked up once.
    present = np.zeros(int(codes.max()) + 1, bool)
    present[codes] = True
    kinds = np.zeros(len(present), np.uint8)
    for code in np.flatnonzero(present).tolist():
        kinds[code] = _kind(chr(code))
    kind = kinds[codes]

    # Marks count as letters, or a decomposed accent would split its word.
    word, symbol = (kind == _LETTER) | (kind == _MARK), kind == _SYMBOL
    # The axis ends with a line break, so every word is followed by a character.
    start = np.flatnonzero(symbol | (word & ~np.r_[False, word[:-1]]))
    end = np.flatnonzero(symbol | (word & ~np.r_[word[1:], False])) + 1
    base = np.r_[0, np.cumsum(np.fromiter((len(t) + 1 for t in texts), np.int64, len(texts)))]
    surface = list(map(joined.__getitem__, map(slice, start.tolist(), end.tolist())))
    first = np.array(np.searchsorted(start, base), np.int64)
    return Words(base, start, end, first, surface, kind == _SPACE, kind == _MARK)


def _kind(character: str) -> int:
    if character.isspace():
        return _SPACE
    category = unicodedata.category(character)[0]
    first = unicodedata.normalize("NFKD", character)[0]  # the halfwidth voiced mark U+FF9E is a letter itself
    if unicodedata.category(first)[0] == "M" or _JAMO.match(first):
        return _MARK
    return _LETTER if character == "_" or category in "LN" else _SYMBOL


@cache
def word_pattern(*, symbols: bool) -> re.Pattern[str]:
    """Matches the words of a text one by one, for texts too short for ``split``; with ``symbols`` also the
    words of a single other character."""
    # \w has no marks, which are most vowels of Hindi.
    characters = map(chr, range(sys.maxunicode + 1))
    marks = "".join(c for c in characters if unicodedata.category(c)[0] == "M")
    return re.compile(rf"[\w{marks}]+" + r"|[^\w\s]" * symbols)


def fit(start: Longs, end: Longs, words: Words) -> tuple[Longs, Longs]:
    """Trim white space from the offsets ``[start, end)`` of pieces and extend them by combining marks.

    Pieces of only white space get zero width. Combining marks that no piece covers are added to the piece
    before them: tokenizers that strip or compose accents (or Hangul) exclude them from the offsets, and an
    answer would lose the accent of its last letter.
    """
    start, end = start.copy(), end.copy()
    while (blank := (start < end) & words.space[start]).any():
        start += blank
    while (blank := (start < end) & words.space[end - 1]).any():
        end -= blank
    wide = np.flatnonzero(start < end)
    following = np.append(start[wide[1:]], len(words.mark))  # where the next piece begins
    while (grows := (end[wide] < following) & words.mark[end[wide]]).any():
        end[wide] += grows
    return start, end


def word_of(start: Longs, end: Longs, text: Longs, words: Words) -> Longs:
    """Index of the word of each piece ``[start, end)`` of text ``text``: the first that overlaps it.

    A piece that overlaps no word (zero width) belongs to the nearest word of its text; -1 if the text has no
    words.
    """
    if not len(words.start):
        return np.full(len(start), -1)
    first, last = words.first[text], words.first[text + 1] - 1
    # The first word of the text that ends after the piece begins.
    after = np.clip(np.searchsorted(words.end, start, side="right"), first, np.maximum(last, first))
    after = np.minimum(after, len(words.start) - 1)
    before = after - (after > first)
    # A piece of zero width counts as the character at its place.
    no_overlap = words.start[after] >= np.maximum(end, start + 1)
    previous_is_nearer = (
        no_overlap & (start - words.end[before] < words.start[after] - end) & (before < after)
    )
    return np.where(last < first, -1, np.where(previous_is_nearer, before, after))


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Word pieces of several texts, concatenated."""

    count: Longs
    """(X,) pieces of each text."""
    ids: Longs
    start: Longs
    """First character of each piece, relative to its own text."""
    end: Longs
    """End of each piece, exclusive."""


def tokenize_fn(backend: Tokenizer) -> Callable[[Sequence[str]], Pieces]:
    """Fastest exact function texts -> Pieces for ``backend``; it caches, so reuse it for a whole set."""
    if splits_at_spaces(backend):
        return _RunCache(backend).tokenize
    return partial(tokenize_whole, backend=backend)


def tokenize_whole(texts: Sequence[str], backend: Tokenizer) -> Pieces:
    """Encode ``texts`` with ``backend``, without special tokens."""
    encodings = backend.encode_batch(list(texts), add_special_tokens=False)
    count = np.fromiter(map(len, encodings), np.int64, len(encodings))
    total = int(count.sum())
    ids = np.fromiter(chain.from_iterable(e.ids for e in encodings), np.int64, total)
    pairs = chain.from_iterable(e.offsets for e in encodings)
    offsets = np.fromiter(chain.from_iterable(pairs), np.int64, 2 * total).reshape(total, 2)
    return Pieces(count, ids, offsets[:, 0], offsets[:, 1])


def splits_at_spaces(backend: Tokenizer) -> bool:
    """Whether the tokenizer drops white space and tokenises the texts around it independently.

    True for BERT's normalizer, pre-tokenizer and WordPiece, unless an added token contains or strips white
    space.
    """
    parts = (backend.normalizer, backend.pre_tokenizer, backend.model)
    kinds = [type(part).__name__ for part in parts]
    return kinds == ["BertNormalizer", "BertPreTokenizer", "WordPiece"] and not any(
        token.lstrip or token.rstrip or len(token.content.split()) != 1
        for token in backend.get_added_tokens_decoder().values()
    )


class _RunCache:
    """Cache of the pieces of every run between two spaces; most runs of a data set recur."""

    def __init__(self, backend: Tokenizer) -> None:
        self.backend = backend
        # A new run gets the next number; the dict's own __len__ would be a reference cycle.
        self.number: defaultdict[str, int] = defaultdict(numbers().__next__)
        empty = np.zeros(0, np.int64)
        self.seen = Pieces(empty, empty, empty, empty)

    def tokenize(self, texts: Sequence[str]) -> Pieces:
        if not texts:
            return tokenize_whole(texts, self.backend)
        n_seen = len(self.number)
        # All texts on one axis: as many characters, so the places of runs give the offsets. A line break
        # separates like a space.
        axis = "\n".join(texts).replace("\n", " ")
        surface = axis.split(" ")
        run = np.fromiter(map(self.number.__getitem__, surface), np.int64, len(surface))
        self._add(list(self.number)[n_seen:])

        begin = _starts(np.fromiter(map(len, surface), np.int64, len(surface)) + 1)
        base = _starts(np.fromiter(map(len, texts), np.int64, len(texts)) + 1)
        text = np.searchsorted(base, begin, side="right") - 1
        seen, count = self.seen, self.seen.count[run]
        # Pieces of a run lie together in `seen`: where each begins there, minus where it begins here.
        source = np.arange(int(count.sum())) + np.repeat(_starts(seen.count)[run] - _starts(count), count)
        shift = np.repeat(begin - base[text], count)
        pieces = np.bincount(text, weights=count, minlength=len(texts)).astype(np.int64)
        return Pieces(pieces, seen.ids[source], seen.start[source] + shift, seen.end[source] + shift)

    def _add(self, surface: list[str]) -> None:
        """Tokenise new runs, ``BUNDLE`` per text, and append their pieces."""
        if not surface:
            return
        bundles = [surface[i : i + BUNDLE] for i in range(0, len(surface), BUNDLE)]
        pieces = tokenize_whole(["\n".join(bundle) for bundle in bundles], self.backend)
        base = _starts(np.fromiter(map(len, surface), np.int64, len(surface)) + 1)
        bundle_base = np.repeat(base[::BUNDLE], pieces.count)
        run = np.searchsorted(base, bundle_base + pieces.start, side="right") - 1
        within = base[run] - bundle_base
        count = np.bincount(run, minlength=len(surface))
        fresh = (count, pieces.ids, pieces.start - within, pieces.end - within)
        old = (self.seen.count, self.seen.ids, self.seen.start, self.seen.end)
        self.seen = Pieces(*(np.concatenate(pair) for pair in zip(old, fresh, strict=True)))


def _starts(lengths: Longs) -> Longs:
    """Start of each of several concatenated parts."""
    return np.cumsum(lengths) - lengths


def backend_of(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    """The Rust tokenizer behind ``tokenizer``. Raises ConfigError for a tokenizer without one."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise ConfigError(
            f"{name_of(tokenizer)} is a slow tokenizer without character offsets: "
            "choose an encoder whose folder has a tokenizer.json"
        )
    return backend


def name_of(tokenizer: PreTrainedTokenizerBase) -> str:
    return getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__


@contextmanager
def unlimited(backend: Tokenizer) -> Iterator[Tokenizer]:
    """``backend`` with truncation and padding switched off inside the ``with`` block."""
    truncation, padding = backend.truncation, backend.padding
    backend.no_truncation()
    backend.no_padding()
    try:
        yield backend
    finally:
        if truncation is not None:
            backend.enable_truncation(**truncation)
        if padding is not None:
            backend.enable_padding(**padding)
