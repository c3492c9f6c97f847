"""Distinct texts -> token columns: each passage and question is tokenised once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from tokenizers import Tokenizer

from qa_arch.features import words as word_module
from qa_arch.features.table import Ints, Longs
from qa_arch.features.template import unlimited

CHUNK = 1024
"""Texts encoded at once: enough to keep the tokenizer's threads busy, few enough to stay small."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenColumns:
    """The text level of a FeatureTable; see there for the fields."""

    vocabulary: tuple[str, ...]
    folded: Ints
    text_offsets: Longs
    ids: Ints
    char_start: Ints
    char_end: Ints
    word_number: Ints
    word: Ints


def tokenize(texts: Sequence[str], backend: Tokenizer) -> TokenColumns:
    """Encode ``texts`` without special tokens and find the word of every piece."""
    vocabulary: defaultdict[str, int] = defaultdict()
    vocabulary.default_factory = vocabulary.__len__  # a new word gets the next number
    counts: list[Longs] = [np.zeros(1, np.int64)]
    chunks: list[tuple[Ints, ...]] = []
    with unlimited(backend):
        for begin in range(0, len(texts), CHUNK):
            count, columns = _encode(texts[begin : begin + CHUNK], backend, vocabulary)
            counts.append(count)
            chunks.append(columns)
    nothing = tuple(np.array([value], np.int32) for value in (0, 0, 0, -1, -1))
    forms: dict[str, int] = {}
    folded = [forms.setdefault(word.casefold(), len(forms)) for word in vocabulary]
    return TokenColumns(
        tuple(vocabulary),
        np.array(folded, np.int32),
        np.cumsum(np.concatenate(counts)),
        *(np.concatenate(column) for column in zip(*chunks, nothing, strict=True)),
    )


def _encode(
    texts: Sequence[str], backend: Tokenizer, vocabulary: defaultdict[str, int]
) -> tuple[Longs, tuple[Ints, ...]]:
    """Tokens per text, and (ids, char_start, char_end, word_number, word) of all their tokens."""
    words = word_module.split(texts)
    encodings = backend.encode_batch(list(texts), add_special_tokens=False)
    count = np.fromiter(map(len, encodings), np.int64, len(encodings))
    total = int(count.sum())
    ids = np.fromiter(chain.from_iterable(e.ids for e in encodings), np.int32, total)
    pairs = chain.from_iterable(e.offsets for e in encodings)
    offsets = np.fromiter(chain.from_iterable(pairs), np.int64, 2 * total).reshape(total, 2)

    text = np.repeat(np.arange(len(texts)), count)
    base = words.base[text]
    start, end = word_module.fit(base + offsets[:, 0], base + offsets[:, 1], words)
    word = word_module.word_of(start, end, text, words)
    known = np.fromiter(map(vocabulary.__getitem__, words.surface), np.int32, len(words.surface))
    number = np.where(word < 0, -1, word - words.first[text])
    narrow = (column.astype(np.int32) for column in (start - base, end - base, number))
    return count, (ids, *narrow, np.append(known, np.int32(-1))[word])
