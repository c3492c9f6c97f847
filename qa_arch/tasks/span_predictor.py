"""A trained span model that answers questions about texts of any length."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace

from torch import nn
from transformers import PreTrainedTokenizerBase

from qa_arch.config.schema import Config
from qa_arch.data.question_sets import question_set
from qa_arch.decode.answers import Ranking
from qa_arch.decode.collector import SpanCollector
from qa_arch.features.cache import windows_of
from qa_arch.features.collate import Collator
from qa_arch.features.glove import WordVectors, vector_rows
from qa_arch.features.table import FeatureTable
from qa_arch.nn.precision import Precision
from qa_arch.tasks.base import Predictor, Watch
from qa_arch.tasks.reading import read_table
from qa_arch.types.records import RunRecord
from qa_arch.types.text import Answer, Example, QuestionSet

PART = 1000
"""Questions in memory at once in ``read_parts``: enough to sort windows by length."""


class SpanPredictor(Predictor):
    """Answers questions about texts with a span of the text or "no answer".

    ``null_threshold`` is that fitted on the run's calibration split (``Answer.at(null_threshold)``).
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        vectors: WordVectors | None,
        config: Config,
        *,
        segments: bool,
        null_threshold: float,
        record: RunRecord | None = None,
        precision: Precision = "fp32",
    ) -> None:
        self.model, self.tokenizer, self.vectors = model.eval(), tokenizer, vectors
        self.segments = segments
        self.config, self.null_threshold, self.record = config, null_threshold, record
        self.precision: Precision = precision

    def __call__(self, question: str, context: str) -> Answer:
        """The answer to a single question; a blank question or text has none (``best`` is None)."""
        if not question.strip() or not context.strip():
            return Answer(id="0", best=None, null_odds=float("inf"), windows=0)
        example = Example(id="0", question=question, context=context)
        text = repr((question, context)).encode()
        single = QuestionSet("question", (example,), "2.0", hashlib.sha256(text).hexdigest())
        return self.read(single, table=self.table(single, cache=False)).answers()[0]

    def table(self, questions: QuestionSet, *, cache: bool = True) -> FeatureTable:
        """The windows of a set under the settings that the model was trained with."""
        settings = self.config.features if cache else replace(self.config.features, cache_dir=None)
        return windows_of(questions, self.tokenizer, settings, segments=self.segments)

    def read(
        self,
        questions: QuestionSet,
        *,
        table: FeatureTable | None = None,
        batch_size: int | None = None,
        watch: Watch | None = None,
    ) -> Ranking:
        """The ranked answers to each question of a set, in order; see ``Ranking.answers``.

        ``table`` holds the set's windows where they are made already. ``watch`` counts windows.
        """
        table = self.table(questions) if table is None else table
        return read_table(
            self.model,
            Collator(table, vector_rows(self.vectors, table), labels=False),
            SpanCollector(questions, table, self.config.decode),
            batch_size=batch_size or self.config.trainer.eval_batch_size,
            precision=self.precision,
            watch=watch,
        )

    def read_parts(
        self,
        questions: QuestionSet,
        *,
        size: int = PART,
        batch_size: int | None = None,
        watch: Watch | None = None,
    ) -> Iterator[Ranking]:
        """``read`` for any number of questions in the memory of ``size``: a ranking for each part, in order.

        Features are made anew for each part. ``watch`` counts questions.
        """
        for begin in range(0, len(questions), size):
            examples = questions.examples[begin : begin + size]
            part = question_set(questions.name, examples, questions.protocol)
            yield self.read(part, table=self.table(part, cache=False), batch_size=batch_size)
            if watch is not None:
                watch(begin + len(examples), len(questions))
