"""Pre-training: what the objectives share, which ``masked_lm``, ``causal_lm`` and ``denoising`` complete.

A corpus in place of questions: ``open`` and ``load_splits`` (documents), ``assemble`` (-> blocks of tokens,
and the model), ``batches`` (-> batches, with noise), ``collector`` (scores -> loss and hits of each block),
``points``. There is no answer, no null and no dev set of questions. ``finish`` leaves the encoder as a folder
that later runs start from (``encoder.name=RUN``).
"""

from __future__ import annotations

import hashlib
import json
import logging
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from qa_arch.config.schema import Config, Data
from qa_arch.config.target import TRUSTED
from qa_arch.errors import ConfigError
from qa_arch.features.cache import tokenizer_hash
from qa_arch.features.sampler import EpochBatchSampler
from qa_arch.metrics.language_scores import METRIC_VERSION, language_scores
from qa_arch.models import store
from qa_arch.models.build import build_model
from qa_arch.models.encoders import make_encoder, tokenizer_of
from qa_arch.nn.count import parameter_blocks
from qa_arch.nn.encoder import Encoder
from qa_arch.nn.losses import build_loss
from qa_arch.nn.precision import Precision, cast_weights
from qa_arch.pretraining.corpus_splits import CorpusSplit, load_splits, open_split
from qa_arch.pretraining.language_batches import LanguageCollator, LanguageTable
from qa_arch.pretraining.packing import Unit, pack
from qa_arch.pretraining.token_masks import vocabulary_of
from qa_arch.tasks.base import Batches, Parts, Task
from qa_arch.tasks.language_predictor import LanguageOutputs, LanguagePredictor, OutputCollector
from qa_arch.types.records import TOKENS, Point, Points, RunRecord, SplitFacts
from qa_arch.types.tensors import LanguageBatch, LanguageLogits

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LanguageParts(Parts):
    """``tables`` hold blocks of tokens."""

    tokenizer: PreTrainedTokenizerBase
    encoder: Encoder


class LanguageTask(Task):
    """Predicts tokens of a corpus; the objective says which, and from what."""

    output = LanguageLogits
    monitor = "calibration_loss"
    lower_is_better = True
    has_validation_loss = False  # the collector's is exact: over tokens, not over blocks
    every_token: ClassVar[bool]
    """Whether the targets spell out the whole text; see ``metrics.language_scores``."""

    @abstractmethod
    def collator(self, config: Config, table: LanguageTable, seed: int | None = None) -> LanguageCollator:
        """The batches of the objective; without ``seed`` those of validation."""

    @abstractmethod
    def measure(self, config: Config) -> dict[str, Any]:
        """The settings of the objective that its validation scores depend on."""

    def unit(self, config: Config) -> Unit:
        """What blocks are made of."""
        return "tokens"

    # Data ---------------------------------------------------------------------------------------

    def open(self, source: str | list[str], *, name: str = "", on_error: Any = "raise") -> CorpusSplit:
        return open_split(source, self.name)

    def load_splits(self, data: Data) -> dict[str, CorpusSplit]:
        return load_splits(data, self.name)

    def facts(self, questions: CorpusSplit, table: LanguageTable, *, titles: bool) -> SplitFacts:
        return SplitFacts(
            name=questions.name,
            fingerprint=questions.fingerprint,
            protocol=table.protocol,
            windows=len(table),
            extra={
                "documents": len(table.blocks.documents),
                "tokens": table.text.tokens,
                "bytes": table.text.bytes,
            },
        )

    def table(
        self,
        config: Config,
        split: CorpusSplit,
        tokenizer: PreTrainedTokenizerBase,
        encoder: Encoder,
        *,
        cache: bool = True,
    ) -> LanguageTable:
        """The blocks of a corpus, from the cache where they are there already."""
        blocks = pack(
            split.corpus,
            tokenizer,
            config.features.cache_dir if cache else None,
            max_length=config.features.max_length,
            unit=self.unit(config),
        )
        vocabulary = vocabulary_of(tokenizer, encoder.vocab_size)
        settings = [tokenizer_hash(tokenizer), config.features.max_length, self.measure(config)]
        digest = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:8]
        return LanguageTable(blocks, vocabulary, encoder.has_segments, f"{self.name}:{digest}")

    # Building -----------------------------------------------------------------------------------

    def assemble(self, config: Config, trusted: Sequence[str] = TRUSTED) -> LanguageParts:
        """Read the corpora, pack them into blocks, build model and loss."""
        sets = self.load_splits(config.data)
        tokenizer = tokenizer_of(config.encoder, sets["train"].corpus.documents())
        encoder = self._encoder(config, tokenizer)
        tables = {split: self.table(config, corpus, tokenizer, encoder) for split, corpus in sets.items()}
        for split, table in tables.items():
            log.info("%s: %s in %d blocks", split, table.text, len(table))
        model = build_model(config.model, encoder, None, trusted)
        return LanguageParts(sets, tables, None, model, build_loss(config, trusted), tokenizer, encoder)

    def count_parameters(self, config: Config, trusted: Sequence[str] = TRUSTED) -> dict[str, Any]:
        """On the meta device. Reads the corpus where the tokenizer of a random encoder is trained on it."""
        tokenizer = None
        if config.encoder.init == "random":
            corpus = self.load_splits(config.data)["train"].corpus
            tokenizer = tokenizer_of(config.encoder, corpus.documents())
        with torch.device("meta"):
            model = build_model(config.model, self._encoder(config, tokenizer), None, trusted)
        return asdict(parameter_blocks(model))

    def _encoder(self, config: Config, tokenizer: PreTrainedTokenizerBase | None) -> Encoder:
        encoder = make_encoder(config, tokenizer)
        if not isinstance(encoder, Encoder):
            raise ConfigError(
                "encoder.family: words has no layers to pre-train; choose bert or another encoder of pieces"
            )
        return encoder

    def save(self, folder: Path, parts: LanguageParts) -> None:
        store.save_encoder(folder, parts.encoder)
        store.save_tokenizer(folder, parts.tokenizer)

    def finish(self, folder: Path, parts: LanguageParts) -> None:
        store.save_pretrained(folder, parts.encoder, parts.tokenizer)

    def load(
        self, folder: Path, record: RunRecord, config: Config, device: Any, precision: Precision, trusted: Any
    ) -> LanguagePredictor:
        model = build_model(config.model, store.load_encoder(folder), None, trusted)
        store.load_weights(folder, model)
        model = cast_weights(model.to(device), precision)
        return LanguagePredictor(
            model, store.load_tokenizer(folder), config, record=record, precision=precision
        )

    def predictor(self, config: Config, parts: LanguageParts) -> LanguagePredictor:
        precision: Any = config.trainer.precision
        model = cast_weights(parts.model, precision)
        return LanguagePredictor(model, parts.tokenizer, config, precision=precision)

    # Training -----------------------------------------------------------------------------------

    def batches(self, config: Config, parts: LanguageParts) -> Batches:
        """Training blocks with new noise in each epoch, validation blocks with fixed noise."""
        calibration = parts.tables.get("calibration")
        return Batches(
            self.collator(config, parts.tables["train"], config.seed),
            None if calibration is None else self.collator(config, calibration),
            EpochBatchSampler,
        )

    def labels(self, batch: LanguageBatch) -> LanguageBatch:
        return batch  # its fields hold the targets

    def weight(self, batch: LanguageBatch) -> Tensor:
        return batch.weight

    def collector(self, config: Config, parts: LanguageParts, split: str) -> OutputCollector:
        return OutputCollector(parts.tables[split])

    def validation_scores(self, questions: CorpusSplit, outputs: LanguageOutputs) -> dict[str, float]:
        counts = ("targets", "blocks")
        scores = self._scores(outputs).items()
        return {f"calibration_{name}": value for name, value in scores if name not in counts}

    # Scoring ------------------------------------------------------------------------------------

    def points(
        self, questions: CorpusSplit, outputs: LanguageOutputs, threshold: float, given: float | None = None
    ) -> Points:
        point = Point(protocol=outputs.protocol, metric_version=METRIC_VERSION, metrics=self._scores(outputs))
        return {TOKENS: point}

    def rows(
        self, questions: CorpusSplit, outputs: LanguageOutputs, threshold: float
    ) -> dict[str, list[Any]]:
        """A row a block: the sum of its losses, its targets and hits, and what its sentence task says."""
        rows = {"id": [str(number) for number in range(len(outputs.blocks))]}
        for name in ("loss", "tokens", "right", "odds", "follows"):
            rows[name] = [getattr(block, name) for block in outputs.blocks]
        return rows

    def write_predictions(
        self, folder: Path, questions: CorpusSplit, outputs: LanguageOutputs, threshold: float
    ) -> None:
        """Nothing: blocks have no answers."""

    def _scores(self, outputs: LanguageOutputs) -> dict[str, float]:
        return language_scores(outputs.blocks, outputs.text, every_token=self.every_token)
