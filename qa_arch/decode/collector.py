"""Batches of logits -> ranked answers of each question, without storing the logits.

The same collector serves training, evaluation and every predictor. The parts of several processes are
merged by feature index, so that a window computed twice counts once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from qa_arch.config.schema import Decode
from qa_arch.decode.answers import char_spans, rank
from qa_arch.decode.candidates import Ranking, SpanCandidates
from qa_arch.decode.sequences import SequenceCandidates, best_sequences, rank_sequences
from qa_arch.decode.spans import best_spans
from qa_arch.errors import RunError
from qa_arch.features.table import FeatureTable
from qa_arch.types.tensors import Batch, SpanLogits, StepLogits
from qa_arch.types.text import QuestionSet

Part = tuple[np.ndarray, SpanCandidates | SequenceCandidates]


class SpanCollector:
    """The best spans or sequences of windows, in any order; ``result`` joins them by question."""

    def __init__(self, questions: QuestionSet, table: FeatureTable, decode: Decode) -> None:
        self.questions, self.table, self.decode = questions, table, decode
        self.parts: list[Part] = []

    def add(self, batch: Batch, logits: SpanLogits | StepLogits) -> None:
        """Decode one batch; its ``index`` holds the feature rows of its windows."""
        self.parts.append((batch.index.cpu().numpy(), self._candidates(logits)))

    def _candidates(self, logits: SpanLogits | StepLogits) -> SpanCandidates | SequenceCandidates:
        any_span = self.decode.null_odds == "any"
        if isinstance(logits, StepLogits):
            return best_sequences(logits, any_span=any_span)
        return best_spans(
            logits,
            search=self.decode.search,
            max_answer_tokens=self.decode.max_answer_tokens,
            n_best=self.decode.n_best,
            any_span=any_span,
        )

    def merge(self, others: Iterable[list[Part]]) -> None:
        """Replace the parts by those of all processes."""
        self.parts = [part for parts in others for part in parts]

    def result(self) -> Ranking:
        """The candidates of each question, in the order of the set.

        Raises RunError where a window was never read, naming the questions unless none was.
        """
        if not self.parts:
            raise RunError(
                f"none of the {len(self.table)} windows of {self.questions.name} was read: run the model on"
                " every window of the set once"
            )
        index = np.concatenate([rows for rows, _ in self.parts])
        window, first = np.unique(index, return_index=True)
        candidates = SpanCandidates.concatenate([part for _, part in self.parts]).take(first)
        table, examples = self.table, self.questions.examples
        origin = table.token_start[window] - table.context_at[window]
        about: Any = {
            "window": window,
            "example": table.example[window],
            "expected": np.bincount(table.example, minlength=len(examples)),
            "n_best": self.decode.n_best,
        }
        if isinstance(candidates, SequenceCandidates):
            return rank_sequences(candidates, examples, origin, table.char_start, table.char_end, **about)
        char_start, char_end = char_spans(candidates, origin, table.char_start, table.char_end)
        dedupe = self.decode.search != "grid"
        return rank(candidates, examples, char_start=char_start, char_end=char_end, dedupe=dedupe, **about)
