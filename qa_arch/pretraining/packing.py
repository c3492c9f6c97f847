"""Packing: the tokens of a corpus as blocks of at most ``max_length``, memory-mapped from the feature cache.

Two units (Liu et al. 2019, section 4.2):

- ``tokens``: FULL-SENTENCES. Blocks are full and run on over the ends of documents, each of which is marked
  by the tokenizer's separator; for masked and causal language modelling and for denoising.
- ``sentences``: a block holds whole sentences of a single document (DOC-SENTENCES), with room for the special
  tokens of a pair; for next-sentence and sentence-order prediction. A sentence longer than a block is cut.

Blocks are stored without the special tokens around them, which ``single`` and ``pair`` add.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from transformers import PreTrainedTokenizerBase

from qa_arch.features.table import Bools, Longs, Template
from qa_arch.pretraining.corpus import Corpus

Unit = Literal["tokens", "sentences"]
Watch = Callable[[int, int | None, int], None]
"""Progress: (bytes of text done, bytes in all where known, tokens done)."""


@dataclass(frozen=True, slots=True, eq=False)
class Padded:
    """Rows for a model, padded on the right to the longest. Axes: ``B`` rows, ``T`` tokens."""

    ids: Longs
    """(B, T) token ids with the special tokens in place."""
    mask: Bools
    """(B, T) True on every token that is not padding."""
    segments: Longs
    """(B, T) segment ids of the tokenizer's template."""
    content: Bools
    """(B, T) True on tokens of the text: neither padding nor added special tokens."""


@dataclass(frozen=True, eq=False)
class Blocks:
    """The N blocks of a corpus. Axes: ``K`` tokens of the corpus, ``S`` sentences, ``D`` documents.

    All arrays are views of a mapped file; ``pickle`` (data-loading workers) takes its path along.
    """

    max_length: int
    ids: np.ndarray
    """(K,) token ids of all documents, one after another (uint16 or int32)."""
    starts: Longs
    """(N + 1,) block i is ``ids[starts[i]:starts[i + 1]]``."""
    sentences: Longs
    """(S,) token at which each sentence begins."""
    documents: Longs
    """(D,) token at which each document begins."""
    text_bytes: Longs
    """(N,) UTF-8 bytes of text in each block, for bits per byte; they sum to those of the corpus."""
    template: Template
    """Special tokens around a pair."""

    def __len__(self) -> int:
        """Number of blocks."""
        return len(self.starts) - 1

    @property
    def lengths(self) -> Longs:
        """(N,) tokens of each block with the special tokens that ``single`` (unit ``tokens``) or ``pair``
        (unit ``sentences``) adds; at most ``max_length``."""
        ...

    def content(self, row: int) -> Longs:
        """(n,) token ids of a block, without special tokens around it."""
        ...

    def sentence_starts(self, row: int) -> Longs:
        """Places within ``content(row)`` at which a sentence begins; the first is 0, even if a sentence
        goes on there."""
        ...

    def document(self, row: int) -> int:
        """Number of the document that the first token of a block belongs to."""
        ...

    def single(self, contents: Sequence[Longs]) -> Padded:
        """Rows ``[CLS] content [SEP]``, as the tokenizer frames a single text."""
        ...

    def pair(self, firsts: Sequence[Longs], seconds: Sequence[Longs]) -> Padded:
        """Rows ``[CLS] first [SEP] second [SEP]``, as the tokenizer frames a pair."""
        ...


def pack(
    corpus: Corpus,
    tokenizer: PreTrainedTokenizerBase,
    cache_dir: str | os.PathLike[str] | None = None,
    *,
    max_length: int,
    unit: Unit = "tokens",
    watch: Watch | None = None,
) -> Blocks:
    """Blocks of ``corpus``, built in constant memory or read back from ``cache_dir``.

    Without ``cache_dir`` the file is a temporary one. Raises DataError for a corpus without text (or
    without any token), ConfigError for a ``max_length`` that leaves no room or a tokenizer without separator
    or padding token.
    """
    ...
