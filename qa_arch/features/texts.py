"""Distinct texts -> token columns; each passage and question is tokenised once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from qa_arch.features import words as word_module
from qa_arch.features.pieces import Pieces, tokenize_fn
from qa_arch.features.table import Ints, Longs
from qa_arch.features.template import unlimited

CHUNK = 1024
"""Texts per call: enough for the tokenizer's threads, few enough to bound the memory."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenColumns:
    """Token columns of a FeatureTable; see there for the fields."""

    vocabulary: tuple[str, ...]
    folded: Ints
    text_offsets: Longs
    ids: Ints
    char_start: Ints
    char_end: Ints
    word_number: Ints
    word: Ints


def tokenize(texts: Sequence[str], backend: Tokenizer) -> TokenColumns:
    """Tokenise ``texts`` without special tokens and align every piece with its word."""
    vocabulary: defaultdict[str, int] = defaultdict()
    vocabulary.default_factory = vocabulary.__len__  # a new word gets the next number
    counts: list[Longs] = [np.zeros(1, np.int64)]
    chunks: list[tuple[Ints, ...]] = []
    with unlimited(backend):
        to_pieces = tokenize_fn(backend)
        for begin in range(0, len(texts), CHUNK):
            chunk = texts[begin : begin + CHUNK]
            count, columns = _columns(chunk, to_pieces, vocabulary)
            counts.append(count)
            chunks.append(columns)
    vocabulary.default_factory = None  # it refers to the dictionary: all words would outlive this call
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
    words = word_module.split(texts)  # first, because it reports invalid text
    pieces = to_pieces(texts)
    text = np.repeat(np.arange(len(texts)), pieces.count)
    base = words.base[text]
    start, end = word_module.fit(base + pieces.start, base + pieces.end, words)
    word = word_module.word_of(start, end, text, words)
    index = np.fromiter(map(vocabulary.__getitem__, words.surface), np.int32, len(words.surface))
    number = np.where(word < 0, -1, word - words.first[text])
    narrow = (column.astype(np.int32) for column in (pieces.ids, start - base, end - base, number))
    return pieces.count, (*narrow, np.append(index, np.int32(-1))[word])
