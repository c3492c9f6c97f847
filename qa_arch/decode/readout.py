"""From batches of logits to one answer a question, without keeping the logits.

The same reading serves training, evaluation, the predictor and the demo. Parts read by several
processes are merged by feature index, so that a window counts once whoever computed it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from jaxtyping import Int
from torch import Tensor

from qa_arch.config.schema import Decode
from qa_arch.decode.answers import Ranking, char_spans, rank
from qa_arch.decode.candidates import SpanCandidates
from qa_arch.decode.sequences import SequenceCandidates, best_sequences, rank_sequences
from qa_arch.decode.spans import best_spans
from qa_arch.features.table import FeatureTable
from qa_arch.types.tensors import SpanLogits, StepLogits
from qa_arch.types.text import QuestionSet

Part = tuple[np.ndarray, SpanCandidates | SequenceCandidates]


class Readout:
    """Collects the best spans or sequences of windows in any order; ``ranking`` joins them by question."""

    def __init__(self, questions: QuestionSet, table: FeatureTable, decode: Decode) -> None:
        self.questions, self.table, self.decode = questions, table, decode
        self.parts: list[Part] = []

    def add(self, index: Int[Tensor, "B"], logits: SpanLogits | StepLogits) -> None:
        """Read one batch; ``index`` holds the feature rows of its windows."""
        rows = index.cpu().numpy()
        if isinstance(logits, StepLogits):
            self.parts.append((rows, best_sequences(logits)))
            return
        found = best_spans(
            logits,
            search=self.decode.search,
            max_answer_tokens=self.decode.max_answer_tokens,
            n_best=self.decode.n_best,
        )
        self.parts.append((rows, found))

    def merge(self, others: Iterable[list[Part]]) -> None:
        """Take over what other processes read."""
        self.parts = [part for parts in others for part in parts]

    def ranking(self) -> Ranking:
        """The candidates of each question, in the order of the set.

        Raises RunError, naming the questions, where a window was never read.
        """
        index = np.concatenate([rows for rows, _ in self.parts] or [np.empty(0, np.int64)])
        window, first = np.unique(index, return_index=True)
        found = SpanCandidates.concatenate([part for _, part in self.parts]).take(first)
        table, examples = self.table, self.questions.examples
        origin = table.token_start[window] - table.context_at[window]
        about: Any = {
            "window": window,
            "example": table.example[window],
            "expected": np.bincount(table.example, minlength=len(examples)),
            "n_best": self.decode.n_best,
        }
        if isinstance(found, SequenceCandidates):
            return rank_sequences(found, examples, origin, table.char_start, table.char_end, **about)
        char_start, char_end = char_spans(found, origin, table.char_start, table.char_end)
        dedupe = self.decode.search != "grid"
        return rank(found, examples, char_start=char_start, char_end=char_end, dedupe=dedupe, **about)
