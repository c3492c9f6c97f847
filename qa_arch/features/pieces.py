"""Texts -> word pieces with offsets; each distinct run of visible characters is tokenised once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from itertools import count as numbers

import numpy as np
from tokenizers import Tokenizer

from qa_arch.features.table import Longs

BUNDLE = 128
"""Runs encoded as one text, because a call per run costs more than the tokenisation."""


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Word pieces of several texts, concatenated."""

    count: Longs
    """(X,) pieces of each text."""
    ids: Longs
    start: Longs
    """First character of each piece, counted in its own text."""
    end: Longs
    """End of each piece, exclusive."""


def tokenize_fn(backend: Tokenizer) -> Callable[[Sequence[str]], Pieces]:
    """Fastest exact function texts -> Pieces for ``backend``; it caches, so use it for all texts of a set."""
    return (
        _Runs(backend).tokenize if splits_at_spaces(backend) else lambda texts: tokenize_whole(texts, backend)
    )


def tokenize_whole(texts: Sequence[str], backend: Tokenizer) -> Pieces:
    """Pieces of ``texts`` by ``backend``, without special tokens."""
    encodings = backend.encode_batch(list(texts), add_special_tokens=False)
    count = np.fromiter(map(len, encodings), np.int64, len(encodings))
    total = int(count.sum())
    ids = np.fromiter(chain.from_iterable(e.ids for e in encodings), np.int64, total)
    pairs = chain.from_iterable(e.offsets for e in encodings)
    offsets = np.fromiter(chain.from_iterable(pairs), np.int64, 2 * total).reshape(total, 2)
    return Pieces(count, ids, offsets[:, 0], offsets[:, 1])


def splits_at_spaces(backend: Tokenizer) -> bool:
    """Whether the tokenizer drops white space and tokenises the text on its two sides independently.

    True of BERT's normalizer, pre-tokenizer and WordPiece, unless an added token contains or strips white
    space.
    """
    parts = (backend.normalizer, backend.pre_tokenizer, backend.model)
    kinds = [type(part).__name__ for part in parts]
    return kinds == ["BertNormalizer", "BertPreTokenizer", "WordPiece"] and not any(
        token.lstrip or token.rstrip or len(token.content.split()) != 1
        for token in backend.get_added_tokens_decoder().values()
    )


class _Runs:
    """Cache of the pieces of every run between two spaces seen so far; most runs of a data set recur."""

    def __init__(self, backend: Tokenizer) -> None:
        self.backend = backend
        # A new run gets the next number. Not by the dict's own __len__: a cycle would outlive the cache.
        self.number: defaultdict[str, int] = defaultdict(numbers().__next__)
        empty = np.zeros(0, np.int64)
        self.seen = Pieces(empty, empty, empty, empty)

    def tokenize(self, texts: Sequence[str]) -> Pieces:
        if not texts:
            return tokenize_whole(texts, self.backend)
        n_seen = len(self.number)
        axis = "\n".join(texts).replace("\n", " ")
        surface = axis.split(" ")
        run = np.fromiter(map(self.number.__getitem__, surface), np.int64, len(surface))
        self._add(list(self.number)[n_seen:])

        begin = _starts(np.fromiter(map(len, surface), np.int64, len(surface)) + 1)
        base = _starts(np.fromiter(map(len, texts), np.int64, len(texts)) + 1)
        text = np.searchsorted(base, begin, side="right") - 1
        count = self.seen.count[run]
        source = np.arange(int(count.sum())) + np.repeat(
            _starts(self.seen.count)[run] - _starts(count), count
        )
        shift = np.repeat(begin - base[text], count)
        pieces = np.bincount(text, weights=count, minlength=len(texts)).astype(np.int64)
        seen = self.seen
        return Pieces(pieces, seen.ids[source], seen.start[source] + shift, seen.end[source] + shift)

    def _add(self, surface: list[str]) -> None:
        """Tokenise new runs, ``BUNDLE`` per text, and append their pieces."""
        if not surface:
            return
        bundles = [surface[at : at + BUNDLE] for at in range(0, len(surface), BUNDLE)]
        pieces = tokenize_whole(["\n".join(bundle) for bundle in bundles], self.backend)
        length = np.fromiter(map(len, surface), np.int64, len(surface)) + 1
        base = _starts(length)
        bundle_base = np.repeat(base[::BUNDLE], pieces.count)
        run = np.searchsorted(base, bundle_base + pieces.start, side="right") - 1
        within = base[run] - bundle_base
        fresh = (
            np.bincount(run, minlength=len(surface)),
            pieces.ids,
            pieces.start - within,
            pieces.end - within,
        )
        old = (self.seen.count, self.seen.ids, self.seen.start, self.seen.end)
        self.seen = Pieces(*(np.concatenate(pair) for pair in zip(old, fresh, strict=True)))


def _starts(lengths: Longs) -> Longs:
    """Start of each of several concatenated parts."""
    return np.cumsum(lengths) - lengths
