"""Rows of a feature table -> Batch: the only place that pads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from qa_arch.features.assemble import Window, assemble
from qa_arch.features.table import Bools, FeatureTable, Ints, Longs
from qa_arch.types.tensors import Batch, SpanLabels


@dataclass(frozen=True, slots=True, eq=False)
class Collator:
    """A list of row numbers -> Batch, padded to its longest window.

    A negative number ``-1 - i`` is window ``i`` with a label weight of 0: a rank that has nothing
    left to do computes it to keep in step with the others, and it counts nowhere.
    """

    table: FeatureTable
    vectors: Longs | None = None
    """(V,) row of each vocabulary word in the word-vector table; None without word vectors."""
    labels: bool = True
    multiple: int = 1
    """The padded length is a multiple of this (8 suits tensor cores)."""

    @property
    def lengths(self) -> Ints:
        """(N,) tokens of each window, by which the sampler makes batches."""
        return self.table.lengths

    def __call__(self, indices: Sequence[int]) -> Batch:
        given = np.asarray(indices, np.int64)
        rows = np.where(given < 0, -1 - given, given)
        longest = int(self.table.lengths[rows].max())
        window = assemble(self.table, rows, -(-longest // self.multiple) * self.multiple)
        word, number = self.table.word[window.source], self.table.word_number[window.source]
        return Batch(
            index=torch.from_numpy(rows),
            ids=torch.from_numpy(window.ids),
            mask=torch.from_numpy(window.mask),
            segments=None if window.segments is None else torch.from_numpy(window.segments),
            question=torch.from_numpy(window.question),
            context=torch.from_numpy(window.context),
            word=torch.from_numpy(number.astype(np.int64)),
            overlap=torch.from_numpy(self._overlap(window, word)),
            vector=None if self.vectors is None else torch.from_numpy(self._vector(self.vectors, word)),
            labels=self._labels(rows, given >= 0) if self.labels else None,
        )

    def _vector(self, vectors: Longs, word: Ints) -> Longs:
        return np.append(vectors, 0)[word].astype(np.int64)  # -1, no word, is the row of zeros

    def _overlap(self, window: Window, word: Ints) -> Bools:
        """(B, T) True where a piece's word, case folded, also stands on the other side."""
        table = self.table
        folded = np.append(table.folded, -1)[word]
        begin = len(table.template.before)
        asked = int(window.question.sum(1).max(initial=0))
        side = slice(begin, begin + asked)
        question = np.where(window.question & (folded >= 0), folded, -2)[:, None, side]
        context = np.where((window.source >= 0) & ~window.question, folded, -3)[:, :, None]
        same = context == question  # (B, T, Q): true only between a context and a question piece
        overlap = same.any(2)
        overlap[:, side] |= same.any(1)
        return overlap

    def _labels(self, rows: Longs, real: Bools) -> SpanLabels:
        table = self.table
        return SpanLabels(
            start=torch.from_numpy(table.label_start[rows].astype(np.int64)),
            end=torch.from_numpy(table.label_end[rows].astype(np.int64)),
            answerable=torch.from_numpy(table.answerable[rows]),
            weight=torch.from_numpy(real.astype(np.float32)),
        )
