"""Texts -> word pieces with their offsets; runs of visible characters that repeat are cut once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from tokenizers import Tokenizer

from qa_arch.features.table import Longs

BUNDLE = 128
"""Runs encoded as one text: a call for each costs more than the cutting."""


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """The word pieces of several texts, one text behind the other."""

    count: Longs
    """(X,) pieces of each text."""
    ids: Longs
    start: Longs
    """First character of each piece, counted in its own text."""
    end: Longs
    """End of each piece, exclusive."""


def cutter(backend: Tokenizer) -> Callable[[Sequence[str]], Pieces]:
    """The fastest exact way to cut texts with ``backend``; keep it for all texts of a set."""
    return _Runs(backend).cut if cuts_at_spaces(backend) else lambda texts: whole(texts, backend)


def whole(texts: Sequence[str], backend: Tokenizer) -> Pieces:
    """``texts`` as ``backend`` cuts them, without special tokens."""
    encodings = backend.encode_batch(list(texts), add_special_tokens=False)
    count = np.fromiter(map(len, encodings), np.int64, len(encodings))
    total = int(count.sum())
    ids = np.fromiter(chain.from_iterable(e.ids for e in encodings), np.int64, total)
    pairs = chain.from_iterable(e.offsets for e in encodings)
    offsets = np.fromiter(chain.from_iterable(pairs), np.int64, 2 * total).reshape(total, 2)
    return Pieces(count, ids, offsets[:, 0], offsets[:, 1])


def cuts_at_spaces(backend: Tokenizer) -> bool:
    """Whether blanks and line breaks vanish and nothing on one side of them bears on the other.

    True of BERT's own normalizer, pre-tokenizer and WordPiece, unless a token was added that looks
    at the white space around it or holds some.
    """
    parts = (backend.normalizer, backend.pre_tokenizer, backend.model)
    kinds = [type(part).__name__ for part in parts]
    return kinds == ["BertNormalizer", "BertPreTokenizer", "WordPiece"] and not any(
        token.lstrip or token.rstrip or len(token.content.split()) != 1
        for token in backend.get_added_tokens_decoder().values()
    )


class _Runs:
    """Every run between two blanks met so far, with its pieces. Most of a data set is repetition."""

    def __init__(self, backend: Tokenizer) -> None:
        self.backend = backend
        self.number: defaultdict[str, int] = defaultdict()
        self.number.default_factory = self.number.__len__  # a new run gets the next number
        nothing = np.zeros(0, np.int64)
        self.met = Pieces(nothing, nothing, nothing, nothing)

    def cut(self, texts: Sequence[str]) -> Pieces:
        if not texts:
            return whole(texts, self.backend)
        known = len(self.number)
        axis = "\n".join(texts).replace("\n", " ")
        surface = axis.split(" ")
        run = np.fromiter(map(self.number.__getitem__, surface), np.int64, len(surface))
        self._learn(list(self.number)[known:])

        begin = _starts(np.fromiter(map(len, surface), np.int64, len(surface)) + 1)
        base = _starts(np.fromiter(map(len, texts), np.int64, len(texts)) + 1)
        text = np.searchsorted(base, begin, side="right") - 1
        count = self.met.count[run]
        place = np.arange(int(count.sum())) + np.repeat(_starts(self.met.count)[run] - _starts(count), count)
        shift = np.repeat(begin - base[text], count)
        pieces = np.bincount(text, weights=count, minlength=len(texts)).astype(np.int64)
        met = self.met
        return Pieces(pieces, met.ids[place], met.start[place] + shift, met.end[place] + shift)

    def _learn(self, surface: list[str]) -> None:
        """Cut new runs, many to a text, and append their pieces."""
        if not surface:
            return
        bundles = [surface[at : at + BUNDLE] for at in range(0, len(surface), BUNDLE)]
        found = whole(["\n".join(bundle) for bundle in bundles], self.backend)
        length = np.fromiter(map(len, surface), np.int64, len(surface)) + 1
        base = _starts(length)
        bundle_base = np.repeat(base[::BUNDLE], found.count)
        run = np.searchsorted(base, bundle_base + found.start, side="right") - 1
        within = base[run] - bundle_base
        fresh = (
            np.bincount(run, minlength=len(surface)),
            found.ids,
            found.start - within,
            found.end - within,
        )
        old = (self.met.count, self.met.ids, self.met.start, self.met.end)
        self.met = Pieces(*(np.concatenate(pair) for pair in zip(old, fresh, strict=True)))


def _starts(lengths: Longs) -> Longs:
    """Where each of several stretches begins when they lie end to end."""
    return np.cumsum(lengths) - lengths
