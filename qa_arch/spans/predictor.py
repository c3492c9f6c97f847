"""A trained span model with its tokenizer and word vectors: questions in, predictions out."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

from torch import nn
from transformers import PreTrainedTokenizerBase

from qa_arch.config.schema import Config, Decode
from qa_arch.data.question_sets import question_set
from qa_arch.errors import ConfigError
from qa_arch.features.batches import Collator
from qa_arch.features.cache import windows_of
from qa_arch.features.vectors import WordVectors, vector_rows
from qa_arch.features.windows import FeatureTable, check_ids, probe
from qa_arch.nn import processor
from qa_arch.nn.precision import Precision
from qa_arch.nn.reading import Watch, read_table
from qa_arch.records import RunRecord
from qa_arch.spans.ranking import Ranking
from qa_arch.spans.search import SpanCollector
from qa_arch.types.text import Example, Prediction, QuestionSet

log = logging.getLogger(__name__)
PART_SIZE = 1000
"""Questions in memory at once in ``read_parts``: enough to sort windows by length."""


class SpanPredictor:
    """Answers questions about texts with a span of the text or "no answer".

    Null threshold (see ``Prediction.at``) and temperature are those of ``record``; 0 and 1 without one.
    ``library`` computes the logits: ``onnx`` for a graph, ``onnx + torch`` for an ensemble of both.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        vectors: WordVectors | None,
        config: Config,
        *,
        segments: bool,
        record: RunRecord | None = None,
        precision: Precision = "fp32",
        vocab_size: int | None = None,
        library: str = "torch",
    ) -> None:
        self.model, self.tokenizer, self.vectors = model.eval(), tokenizer, vectors
        self.segments = segments
        self.config, self.record = config, record
        self.null_threshold = record.null_threshold if record else 0.0
        self.temperature = record.temperature if record else 1.0
        self.precision: Precision = precision
        self.vocab_size, self.library = vocab_size, library
        self.longest: dict[str, int] = {}
        """Limits of ``prepare`` beyond those of the config."""

    @property
    def engine(self) -> str:
        """The ``library`` and its precision, as scores record them: ``torch fp32``."""
        return processor.engine(self.library, self.precision)

    def raise_question_limit(self, max_question: int) -> None:
        """Read questions of up to ``max_question`` tokens whole, if the encoder can; answers to shorter ones
        stay the same.

        Raises ConfigError unless it is at least the run's own limit, and leaves room for the passage.
        """
        windows, specials = self.config.features, probe(self.tokenizer, self.segments).specials
        longest = _longest_window(self.model, windows.max_length, windows.max_length + max_question)
        largest = longest - specials - windows.stride - 1
        if not windows.max_question <= max_question <= largest:
            raise ConfigError(
                f"max_question: {max_question} is out of range; give at least {windows.max_question}, the"
                f" run's limit, and at most {largest}, which leave room for a passage in windows of {longest}"
            )
        self.longest = {"longest_question": max_question, "longest_window": longest}

    def __call__(self, question: str, context: str) -> Prediction:
        """Predict the answer to a single question about a text."""
        return self.predict([(question, context)])[0]

    def predict(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        decode: Decode | None = None,
        batch_size: int | None = None,
    ) -> list[Prediction]:
        """Predict, with candidates, the answer for each (question, text) pair, in order.

        A blank question or text has none (``best`` is None, ``windows`` is 0). ``decode`` overrides the
        model's own settings. Raises DataError for a text that is not valid Unicode.
        """
        examples = [
            Example(id=str(number), question=question, context=context)
            for number, (question, context) in enumerate(pairs)
            if question.strip() and context.strip()
        ]
        predictions = [
            Prediction(str(n), best=None, null_odds=math.inf, windows=0) for n in range(len(pairs))
        ]
        if examples:
            questions = question_set("questions", examples, "2.0")
            table = self.table(questions, cache=False)
            reader = copy(self)
            reader.config = replace(self.config, decode=decode or self.config.decode)
            ranking = reader.read(questions, table=table, batch_size=batch_size)
            cut = dict(zip(table.example.tolist(), table.question_cut.tolist(), strict=True))
            for row, prediction in enumerate(ranking.predictions()):
                predictions[int(prediction.id)] = replace(prediction, question_cut=cut[row])
        return predictions

    def try_out(self) -> None:
        pairs = [("Who?", "Ada \U00013000."), ("Who wrote it?", "It was written by Ada.")]
        if not any(math.isfinite(prediction.null_odds) for prediction in self.predict(pairs)):
            raise ValueError("its scores are not finite")

    def table(self, questions: QuestionSet, *, cache: bool = True) -> FeatureTable:
        """Windows of a set under the settings that the model was trained with.

        Raises ConfigError for a token id beyond the model's ``vocab_size``, which graphs do not state.
        """
        settings = self.config.features if cache else replace(self.config.features, cache_dir=None)
        table = windows_of(questions, self.tokenizer, settings, segments=self.segments, **self.longest)
        if self.vocab_size is not None:
            encoder = self.config.encoder
            label = encoder.name if encoder.init == "pretrained" else f"the encoder {encoder.family}"
            check_ids(table, self.vocab_size, str(label))
        return table

    def read(
        self,
        questions: QuestionSet,
        *,
        table: FeatureTable | None = None,
        batch_size: int | None = None,
        watch: Watch | None = None,
    ) -> Ranking:
        """The ranked answers to each question of a set, in order.

        ``table`` may hold the set's features if they exist already. ``watch`` counts windows.
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
        size: int = PART_SIZE,
        batch_size: int | None = None,
        watch: Watch | None = None,
    ) -> Iterator[Ranking]:
        """``read`` any number of questions in parts of ``size``, to bound memory; one ranking per part.

        Features are not cached. ``watch`` counts questions. Questions that are cut are counted in the log.
        """
        cut = 0
        for begin in range(0, len(questions), size):
            examples = questions.examples[begin : begin + size]
            part = question_set(questions.name, examples, questions.protocol, language=questions.language)
            table = self.table(part, cache=False)
            cut += table.truncated_questions
            yield self.read(part, table=table, batch_size=batch_size)
            if watch is not None:
                watch(begin + len(examples), len(questions))
        if cut:
            limit = self.longest.get("longest_question", self.config.features.max_question)
            log.warning("%s: %d questions were cut to %d tokens", questions.name, cut, limit)


def _longest_window(model: nn.Module, stated: int, unlimited: int) -> int:
    """Tokens of the longest window that a model, or every member of an ensemble, can read: ``stated`` if it
    is not known (a graph), ``unlimited`` if nothing limits it."""
    members: Any = getattr(model, "members", [model])
    limits = [getattr(getattr(member, "encoder", member), "max_tokens", stated) for member in members]
    return min(unlimited if limit is None else limit for limit in limits)
