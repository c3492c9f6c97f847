"""Special tokens around a single text and around a pair, as a tokenizer places them, and padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from transformers import PreTrainedTokenizerBase

from qa_arch.errors import ConfigError
from qa_arch.features.table import Bools, Longs, Special, Template
from qa_arch.features.template import backend_of, name_of, probe, unlimited

_Part = tuple[ArrayLike, int, bool]
"""(token ids, segment, whether they are content)."""


@dataclass(frozen=True, slots=True, eq=False)
class Padded:
    """Rows for a model, padded on the right to the longest. Axes: ``B`` rows, ``T`` tokens."""

    ids: Longs
    """(B, T) token ids with the special tokens in place."""
    mask: Bools
    """(B, T) True on every token that is not padding."""
    segments: Longs
    """(B, T) segment ids: 0, and 1 on the second text of a pair and what follows it."""
    content: Bools
    """(B, T) True on tokens of the texts: neither padding nor special tokens added here."""


@dataclass(frozen=True, slots=True)
class Framing:
    """Special tokens of a tokenizer around a text and around a pair."""

    before: tuple[int, ...]
    """In front of a single text."""
    after: tuple[int, ...]
    """Behind a single text."""
    pairs: Template
    """Around a pair."""
    separator: int
    """Marks the end of a document within a block: the tokenizer's separator, else its end of text."""

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> Framing:
        """Read from encoded texts. Raises ConfigError for a slow tokenizer, or one without separator or
        padding token."""
        with unlimited(backend_of(tokenizer)) as backend:
            text = backend.encode("a")
        if 0 not in text.sequence_ids:
            raise ConfigError(f"{name_of(tokenizer)} has no token for 'a': give a tokenizer of this language")
        separator = tokenizer.sep_token_id if tokenizer.sep_token_id is not None else tokenizer.eos_token_id
        if separator is None:
            raise ConfigError(f"{name_of(tokenizer)} marks no end of a text: set tokenizer.sep_token")
        begin = text.sequence_ids.index(0)
        end = len(text.ids) - text.sequence_ids[::-1].index(0)
        pairs = probe(tokenizer, segments=True)
        return cls(tuple(text.ids[:begin]), tuple(text.ids[end:]), pairs, separator)

    def single(self, contents: Sequence[ArrayLike]) -> Padded:
        """A row for each text: ``[CLS] content [SEP]``, if the tokenizer is BERT's."""
        return self._padded(
            [[(self.before, 0, False), (content, 0, True), (self.after, 0, False)] for content in contents]
        )

    def pair(self, firsts: Sequence[ArrayLike], seconds: Sequence[ArrayLike]) -> Padded:
        """A row for each pair: ``[CLS] first [SEP] second [SEP]``, if the tokenizer is BERT's."""
        template = self.pairs
        return self._padded(
            [
                [
                    *_specials(template.before),
                    (first, template.question_segment, True),
                    *_specials(template.between),
                    (second, template.context_segment, True),
                    *_specials(template.after),
                ]
                for first, second in zip(firsts, seconds, strict=True)
            ]
        )

    def _padded(self, rows: Sequence[Sequence[_Part]]) -> Padded:
        lengths = [sum(np.size(ids) for ids, _, _ in row) for row in rows]
        shape = len(rows), max(lengths, default=0)
        ids = np.full(shape, self.pairs.pad, np.int64)
        segments, content = np.zeros(shape, np.int64), np.zeros(shape, bool)
        for number, row in enumerate(rows):
            at = 0
            for values, segment, is_content in row:
                place = slice(at, at := at + np.size(values))
                ids[number, place] = values
                segments[number, place], content[number, place] = segment, is_content
        mask = np.arange(shape[1]) < np.array(lengths, np.int64)[:, None]
        return Padded(ids, mask, segments, content)


def _specials(tokens: Sequence[Special]) -> list[_Part]:
    return [((token.id,), token.segment, False) for token in tokens]
