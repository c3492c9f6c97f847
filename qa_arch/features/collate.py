"""Collation: rows of a feature table -> padded Batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from qa_arch.features.table import Bools, FeatureTable, Ints, Longs
from qa_arch.features.windows import Window, assemble
from qa_arch.types.tensors import Batch, SpanLabels


@dataclass(frozen=True, slots=True, eq=False)
class Collator:
    """List of row numbers -> Batch, padded to its longest window.

    A negative number ``-1 - i`` is a padding row: window ``i`` with a label weight of 0. A rank without a row
    of its own computes it to stay in step with the other ranks.
    """

    table: FeatureTable
    vectors: Longs | None = None
    """(V,) row of each vocabulary word in the word-vector table; None without word vectors."""
    labels: bool = True
    multiple: int = 1
    """The padded length is a multiple of this (8 suits tensor cores)."""

    @property
    def lengths(self) -> Ints:
        """(N,) tokens of each window, for the sampler."""
        return self.table.lengths

    def __call__(self, indices: Sequence[int]) -> Batch:
        index = np.asarray(indices, np.int64)
        rows = np.where(index < 0, -1 - index, index)
        longest = int(self.table.lengths[rows].max())
        window = assemble(self.table, rows, -(-longest // self.multiple) * self.multiple)
        word, word_number = self.table.word[window.source], self.table.word_number[window.source]
        return Batch(
            index=torch.from_numpy(rows),
            ids=torch.from_numpy(window.ids),
            mask=torch.from_numpy(window.mask),
            segments=None if window.segments is None else torch.from_numpy(window.segments),
            question=torch.from_numpy(window.question),
            context=torch.from_numpy(window.context),
            word=torch.from_numpy(word_number.astype(np.int64)),
            overlap=torch.from_numpy(self._overlap(window, word)),
            vector=None if self.vectors is None else torch.from_numpy(self._vector(self.vectors, word)),
            labels=self._labels(rows, index >= 0) if self.labels else None,
        )

    def _vector(self, vectors: Longs, word: Ints) -> Longs:
        return np.append(vectors, 0)[word].astype(np.int64)  # -1 (no word) selects the row of zeros

    def _overlap(self, window: Window, word: Ints) -> Bools:
        """(B, T) True if the case-folded word of a piece occurs in question and context."""
        table = self.table
        folded = np.append(table.folded, -1)[word]
        begin = len(table.template.before)
        longest_question = int(window.question.sum(1).max(initial=0))
        question_slice = slice(begin, begin + longest_question)
        question = np.where(window.question & (folded >= 0), folded, -2)[:, None, question_slice]
        context = np.where((window.source >= 0) & ~window.question, folded, -3)[:, :, None]
        matches = context == question  # (B, T, Q): True only for a context and a question piece
        overlap = matches.any(2)
        overlap[:, question_slice] |= matches.any(1)
        return overlap

    def _labels(self, rows: Longs, real: Bools) -> SpanLabels:
        table = self.table
        return SpanLabels(
            start=torch.from_numpy(table.label_start[rows].astype(np.int64)),
            end=torch.from_numpy(table.label_end[rows].astype(np.int64)),
            answerable=torch.from_numpy(table.answerable[rows]),
            weight=torch.from_numpy(real.astype(np.float32)),
        )
