"""A trained language model, and the collector of what it predicts of each block."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from qa_arch.config.schema import Config
from qa_arch.metrics.language_scores import BlockScores, TextSize
from qa_arch.models.language_models import LanguageModel
from qa_arch.nn.precision import Precision
from qa_arch.pretraining.corpus_splits import CorpusSplit
from qa_arch.pretraining.language_batches import LanguageTable
from qa_arch.tasks import task_of
from qa_arch.tasks.base import Predictor, Watch
from qa_arch.tasks.reading import read_table
from qa_arch.types.records import RunRecord
from qa_arch.types.tensors import LanguageBatch, LanguageLogits

if TYPE_CHECKING:
    from qa_arch.tasks.language import LanguageTask


@dataclass(frozen=True)
class LanguageOutputs:
    """What was predicted of each block of a table, in order."""

    blocks: Sequence[BlockScores]
    text: TextSize
    protocol: str


class OutputCollector:
    """Loss and hits of each block, by its row: a padding row repeats what another process has."""

    def __init__(self, table: LanguageTable) -> None:
        self.table = table
        self.parts: list[dict[int, BlockScores]] = []

    def add(self, batch: LanguageBatch, logits: LanguageLogits) -> None:
        losses, hits = token_losses(logits.tokens, batch.targets)
        losses, hits = losses.where(batch.counted, 0.0).double().sum(1), (hits & batch.counted).sum(1)
        figures = [losses.tolist(), batch.counted.sum(1).tolist(), hits.tolist()]
        if logits.follows is not None and batch.follows is not None:
            figures += [logits.follows.float().tolist(), batch.follows.tolist()]
        scores = (BlockScores(*row) for row in zip(*figures, strict=True))
        self.parts.append(dict(zip(batch.index.tolist(), scores, strict=True)))

    def merge(self, others: Iterable[list[dict[int, BlockScores]]]) -> None:
        self.parts = [part for parts in others for part in parts]

    def result(self) -> LanguageOutputs:
        by_row = {row: scores for part in self.parts for row, scores in part.items()}
        ordered = [by_row[row] for row in sorted(by_row)]
        return LanguageOutputs(ordered, self.table.text, self.table.protocol)


def token_losses(scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """(B, P) -log p of each target, and whether its score is above that of every other token."""
    scores = scores.float()
    own = scores.gather(-1, targets[..., None])
    return scores.logsumexp(-1) - own.squeeze(-1), (scores >= own).sum(-1) == 1


class LanguagePredictor(Predictor):
    """A language model with its tokenizer; ``tasks.language_texts`` asks it about a text."""

    null_threshold = 0.0
    model: LanguageModel

    def __init__(
        self,
        model: Any,
        tokenizer: PreTrainedTokenizerBase,
        config: Config,
        *,
        record: RunRecord | None = None,
        precision: Precision = "fp32",
    ) -> None:
        self.model, self.tokenizer, self.config, self.record = model.eval(), tokenizer, config, record
        self.precision: Precision = precision

    @property
    def task(self) -> LanguageTask:
        return task_of(self.config.model)  # type: ignore[return-value]

    def table(self, questions: CorpusSplit, *, cache: bool = True) -> LanguageTable:
        """The blocks of a corpus."""
        return self.task.table(self.config, questions, self.tokenizer, self.model.encoder, cache=cache)

    def read(
        self,
        questions: CorpusSplit,
        *,
        table: LanguageTable | None = None,
        batch_size: int | None = None,
        watch: Watch | None = None,
    ) -> LanguageOutputs:
        """Loss and hits of every block of a corpus, under the noise of validation."""
        table = self.table(questions) if table is None else table
        return read_table(
            self.model,
            self.task.collator(self.config, table),
            OutputCollector(table),
            batch_size=batch_size or self.config.trainer.eval_batch_size,
            precision=self.precision,
            watch=watch,
        )
