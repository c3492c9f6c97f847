"""Pre-training tasks: objectives, the trained language model, and its scores.

The data is a corpus instead of questions: ``open`` and ``load_splits`` (documents), ``assemble`` (blocks of
tokens and the model), ``batches`` (noisy batches), ``collector`` (loss and hits per block), ``points``. There
are no answers, no null and no dev questions. ``finish`` saves the encoder as a folder from which later runs
start (``encoder.name=RUN``).
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from qa_arch.config.schema import Config, Data
from qa_arch.config.target import TRUSTED
from qa_arch.errors import ConfigError, DataError
from qa_arch.extras.pretraining.blocks import LanguageCollator, LanguageTable, framed_row, pack
from qa_arch.extras.pretraining.corpus import Corpus, load_splits, open_corpus
from qa_arch.extras.pretraining.models import CausalLM, LanguageBatch, LanguageLogits, LanguageModel
from qa_arch.features.batches import EpochBatchSampler
from qa_arch.features.cache import tokenizer_hash
from qa_arch.features.windows import probe
from qa_arch.models import store
from qa_arch.models.build import build_model, check_window, make_encoder, tokenizer_of
from qa_arch.nn.count import parameter_blocks
from qa_arch.nn.encoder import Encoder
from qa_arch.nn.losses import build_loss
from qa_arch.nn.precision import Precision, cast_weights, mixed
from qa_arch.records import TOKENS, Parameters, Point, Points, RunRecord, SplitFacts
from qa_arch.tasks import Batches, Parts, Predictor, Task, device_of, task_of

METRIC_VERSION = "language-1"
MASK = "[MASK]"
"""Marks a token to predict in user text, whatever the tokenizer's own mask token is."""

log = logging.getLogger(__name__)


# Scores ---------------------------------------------------------------------------------------------


class BlockScores(NamedTuple):
    """Scores of one block."""

    loss: float
    """Sum of -log p over the block's targets, in nats."""
    tokens: int
    """Number of targets."""
    right: int
    """Number of targets ranked first in the vocabulary."""
    odds: float | None = None
    """Log-odds that the second part follows the first; None without a sentence task."""
    follows: bool | None = None
    """True if it does."""


def language_scores(
    blocks: Collection[BlockScores], predictions: int | None, text_bytes: int
) -> dict[str, float | int]:
    """Means over all targets of all blocks, independent of batching; accuracies in percent.

    ``loss`` is in nats per target, ``perplexity`` its exponential. ``bits_per_byte`` is the loss in bits
    times the number N of ``predictions`` that cover the text, divided by its UTF-8 bytes::

        loss / ln 2 * N / bytes

    For causal models (None) N is the number of targets, which gives the exact code length of the text. Masked
    models predict a sample of the tokens from all others: N is the number of tokens, and the result estimates
    their pseudo-likelihood, not a code length. ``sentence_f1`` is F1 of the class "follows"; a log-odds of 0
    counts as "does not follow".
    """
    tokens = sum(block.tokens for block in blocks)
    if not tokens:
        raise ValueError("there is no predicted token to score")
    loss = math.fsum(block.loss for block in blocks) / tokens
    scores: dict[str, float | int] = {
        "loss": loss,
        "perplexity": math.exp(loss) if loss < 700 else math.inf,
        "token_accuracy": 100 * sum(block.right for block in blocks) / tokens,
        "bits_per_byte": loss / math.log(2) * (predictions or tokens) / text_bytes,
        "targets": tokens,
        "blocks": len(blocks),
    }
    pairs = [(block.odds > 0, bool(block.follows)) for block in blocks if block.odds is not None]
    if pairs:
        hits = sum(predicted and actual for predicted, actual in pairs)
        positives = sum(predicted + actual for predicted, actual in pairs)
        scores["sentence_accuracy"] = (
            100 * sum(predicted == actual for predicted, actual in pairs) / len(pairs)
        )
        scores["sentence_f1"] = 200 * hits / positives if positives else 0.0
    return scores


# The trained model ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class LanguageOutputs:
    """Scores of every block of a table, in order."""

    blocks: Sequence[BlockScores]
    table: LanguageTable


class OutputCollector:
    """Collects loss and hits by row, since a padding row repeats a block of another process."""

    def __init__(self, table: LanguageTable) -> None:
        self.table = table
        self.parts: list[tuple[int, BlockScores]] = []

    def add(self, batch: LanguageBatch, logits: LanguageLogits) -> None:
        """A target counts as right if its score is strictly the highest of the vocabulary."""
        scores, counted = logits.tokens.float(), batch.counted
        target_scores = scores.gather(-1, batch.targets[..., None])
        losses = (scores.logsumexp(-1) - target_scores.squeeze(-1)).where(counted, 0.0).double().sum(1)
        hits = ((scores >= target_scores).sum(-1) == 1) & counted
        columns = [losses.tolist(), counted.sum(1).tolist(), hits.sum(1).tolist()]
        if logits.follows is not None and batch.follows is not None:
            columns += [logits.follows.float().tolist(), batch.follows.tolist()]
        blocks = (BlockScores(*row) for row in zip(*columns, strict=True))
        self.parts += zip(batch.index.tolist(), blocks, strict=True)

    def result(self) -> LanguageOutputs:
        by_row = dict(self.parts)
        return LanguageOutputs([by_row[row] for row in sorted(by_row)], self.table)


class LanguagePredictor(Predictor):
    """A language model with its tokenizer."""

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
        cast: Any = cast_weights(model, precision)
        self.model, self.tokenizer, self.config, self.record = cast.eval(), tokenizer, config, record
        self.precision: Precision = precision

    @property
    def task(self) -> LanguageTask:
        return task_of(self.config.model)  # type: ignore[return-value]

    def table(self, questions: Corpus, *, cache: bool = True) -> LanguageTable:
        """The blocks of a corpus."""
        return self.task.table(self.config, questions, self.tokenizer, self.model.encoder, cache=cache)

    def reading(self, questions: Corpus, table: LanguageTable) -> tuple[LanguageCollator, OutputCollector]:
        """``read`` gives loss and hits of every block, with the noise of validation."""
        return self.task.collator(self.config, table), OutputCollector(table)

    def try_out(self) -> None:
        self.fill("Ada \U00013000 " + ("" if isinstance(self.model, CausalLM) else MASK), 1)

    def fill(self, text: str, top_k: int) -> list[list[tuple[str, float]]]:
        """The ``top_k`` most probable tokens with their probabilities (0 to 1) at each [MASK] of ``text``, in
        order; for a causal model, those of the token after ``text``.

        Raises ConfigError if a masked model gets no [MASK] or a causal model gets one, and if the text
        exceeds the model's maximum length.
        """
        tokenizer, model = self.tokenizer, self.model
        causal = isinstance(model, CausalLM)
        if causal == (MASK in text):
            hint = "the model predicts what follows the text" if causal else "put it where a token is missing"
            raise ConfigError(f"the text has {'a' if causal else 'no'} {MASK}: {hint}")
        marked = text.replace(MASK, str(tokenizer.mask_token))
        text_ids = tokenizer(marked, add_special_tokens=False, verbose=False)["input_ids"]
        template = probe(tokenizer, model.encoder.has_segments)
        row, _ = framed_row(template, np.array(text_ids, np.int64))
        ids = torch.from_numpy(row[: len(row) - len(template.after)] if causal else row)[None]
        limit = model.encoder.max_tokens
        if limit is not None and ids.shape[1] > limit:
            raise ConfigError(f"the text has {ids.shape[1]} tokens and the model reads {limit}: shorten it")
        last = torch.tensor([[ids.shape[1] - 1]])
        positions = last if causal else (ids == tokenizer.mask_token_id).nonzero()[:, 1][None]
        mask, device = torch.ones_like(ids, dtype=torch.bool), device_of(model)
        segments = torch.zeros_like(ids) if model.encoder.has_segments else None
        targets, counted = ids.gather(1, positions), torch.ones_like(positions, dtype=torch.bool)
        batch = LanguageBatch(ids[:, 0], ids, mask, segments, targets, counted, torch.ones(1), positions)
        with torch.inference_mode(), mixed(self.precision, device.type):
            probabilities = model(batch.to(device)).tokens[0].float().softmax(-1)
        if causal:
            probabilities = probabilities[-1:]
        best = probabilities[:, : len(tokenizer)].topk(min(top_k, len(tokenizer)))
        return [
            list(zip(tokenizer.convert_ids_to_tokens(token_ids), values, strict=True))
            for token_ids, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]


# The task -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LanguageParts(Parts):
    """``tables`` hold blocks of tokens."""

    tokenizer: PreTrainedTokenizerBase
    encoder: Encoder


class LanguageTask(Task):
    """Masked language modelling (Devlin et al. 2019); with ``model.sentence_task`` in pairs, and predicting
    whether the second part follows (``nsp``) or the two are in order (``sop``, Lan et al. 2020)."""

    name = "masked_lm"
    output = LanguageLogits
    monitor = "calibration_loss"
    has_validation_loss = False  # the collector's loss is exact: a mean over tokens, not blocks
    causal: ClassVar[bool] = False
    """Predict every token from the preceding ones, so that the targets cover the whole text."""
    spans: ClassVar[bool] = False
    """Hide tokens in spans."""

    def collator(self, config: Config, table: LanguageTable, seed: int | None = None) -> LanguageCollator:
        """Collator of the objective; without ``seed``, that of validation."""
        sentence_task = _sentence_task(config)
        objective: Any = "causal" if self.causal else "mlm" if sentence_task == "none" else sentence_task
        return LanguageCollator(table, config.pretraining, seed, objective, self.spans)

    # Data ---------------------------------------------------------------------------------------

    def open(
        self, source: str | list[str], *, name: str = "", on_error: Any = "raise", language: str = "en"
    ) -> Corpus:
        return open_corpus(source, self.name)

    def load_splits(self, data: Data) -> dict[str, Corpus]:
        return load_splits(data, self.name)

    def facts(self, questions: Corpus, table: LanguageTable, *, titles: bool) -> SplitFacts:
        return SplitFacts(
            name=questions.name,
            fingerprint=questions.fingerprint,
            protocol=table.protocol,
            windows=len(table),
            extra={"documents": table.documents, "tokens": table.tokens, "bytes": table.text_bytes},
        )

    def table(
        self,
        config: Config,
        split: Corpus,
        tokenizer: PreTrainedTokenizerBase,
        encoder: Encoder,
        *,
        cache: bool = True,
    ) -> LanguageTable:
        """The blocks of a corpus, packed or from the cache; DataError if there are too few documents."""
        sentence_task, length = _sentence_task(config), config.features.max_length
        noise = asdict(config.pretraining)  # validation scores depend on it
        if not self.spans:
            del noise["span_length"]
        objective = {} if self.causal else {"sentence_task": sentence_task, **noise}
        settings = json.dumps([tokenizer_hash(tokenizer), length, objective])
        table = pack(
            split,
            tokenizer,
            config.features.cache_dir if cache else None,
            max_length=length,
            vocab_size=encoder.vocab_size,
            pairs=sentence_task != "none",
            segments=encoder.has_segments,
            protocol=f"{self.name}:{hashlib.sha256(settings.encode()).hexdigest()[:8]}",
        )
        if sentence_task == "nsp" and table.documents < 2:
            raise DataError(
                f"{split.source}: is a single document, but next-sentence prediction draws false pairs from"
                " two; name a larger corpus, or train with model.sentence_task=sop"
            )
        return table

    # Building -----------------------------------------------------------------------------------

    def assemble(self, config: Config, trusted: Sequence[str] = TRUSTED) -> LanguageParts:
        """Pack the corpora into blocks and build model and loss."""
        sets = self.load_splits(config.data)
        tokenizer = tokenizer_of(config.encoder, sets["train"].documents())
        encoder = self._encoder(config, tokenizer)
        tables = {split: self.table(config, corpus, tokenizer, encoder) for split, corpus in sets.items()}
        for split, table in tables.items():
            log.info("%s: %d tokens in %d blocks", split, table.tokens, len(table))
        model = build_model(config.model, encoder, None, trusted)
        if isinstance(model, CausalLM) and not is_causal(model):
            raise ConfigError(
                f"encoder: {encoder.config.model_type} ignores a look-ahead mask, so it cannot be a decoder;"
                " choose bert, roberta, albert, distilbert or qa_transformer"
            )
        return LanguageParts(sets, tables, None, model, build_loss(config, trusted), tokenizer, encoder)

    def count_parameters(self, config: Config, trusted: Sequence[str] = TRUSTED) -> Parameters:
        """Count on the meta device. Reads the corpus to train the tokenizer of a random encoder."""
        tokenizer = None
        if config.encoder.init == "random":
            tokenizer = tokenizer_of(config.encoder, self.load_splits(config.data)["train"].documents())
        with torch.device("meta"):
            model = build_model(config.model, self._encoder(config, tokenizer), None, trusted)
        return parameter_blocks(model)

    def _encoder(self, config: Config, tokenizer: PreTrainedTokenizerBase | None) -> Encoder:
        encoder = make_encoder(config, tokenizer)
        if not isinstance(encoder, Encoder):
            raise ConfigError(
                "encoder.family: words has no layers to pre-train; choose bert or another subword encoder"
            )
        return encoder

    def save(self, folder: Path, parts: LanguageParts) -> None:
        store.save_encoder(folder, parts.encoder)
        store.save_tokenizer(folder, parts.tokenizer)

    def finish(self, folder: Path, parts: LanguageParts) -> None:
        store.save_pretrained(folder, parts.encoder, parts.tokenizer)

    def load(self, folder: Path, config: Config, trusted: Sequence[str]) -> LanguageParts:
        encoder: Any = store.load_encoder(folder)
        check_window(config, encoder)
        model = build_model(config.model, encoder, None, trusted)
        return LanguageParts({}, {}, None, model, None, store.load_tokenizer(folder), encoder)

    def predictor(
        self, config: Config, parts: LanguageParts, record: RunRecord | None = None, precision: Any = None
    ) -> LanguagePredictor:
        precision = precision or config.trainer.precision
        return LanguagePredictor(parts.model, parts.tokenizer, config, record=record, precision=precision)

    # Training -----------------------------------------------------------------------------------

    def batches(self, config: Config, parts: LanguageParts) -> Batches:
        """Training blocks with new noise every epoch, validation blocks with fixed noise."""
        calibration = parts.tables.get("calibration")
        return Batches(
            self.collator(config, parts.tables["train"], config.seed),
            None if calibration is None else self.collator(config, calibration),
            EpochBatchSampler,
        )

    def collector(self, config: Config, parts: LanguageParts, split: str) -> OutputCollector:
        return OutputCollector(parts.tables[split])

    def validation_scores(self, questions: Corpus, outputs: LanguageOutputs) -> dict[str, float]:
        counts = ("targets", "blocks")
        scores = self._scores(outputs).items()
        return {f"calibration_{name}": value for name, value in scores if name not in counts}

    # Scoring ------------------------------------------------------------------------------------

    def points(
        self,
        questions: Corpus,
        outputs: LanguageOutputs,
        threshold: float,
        extra_threshold: float | None = None,
    ) -> Points:
        metrics, protocol = self._scores(outputs), outputs.table.protocol
        return {TOKENS: Point(protocol=protocol, metric_version=METRIC_VERSION, metrics=metrics)}

    def rows(self, questions: Corpus, outputs: LanguageOutputs, threshold: float) -> dict[str, list[Any]]:
        """One row per block: the fields of ``BlockScores``."""
        columns = zip(BlockScores._fields, map(list, zip(*outputs.blocks, strict=True)), strict=True)
        return {"id": [str(number) for number in range(len(outputs.blocks))], **dict(columns)}

    def write_predictions(
        self, folder: Path, questions: Corpus, outputs: LanguageOutputs, threshold: float
    ) -> None:
        """Write nothing: blocks have no answers."""

    def _scores(self, outputs: LanguageOutputs) -> dict[str, float]:
        table = outputs.table
        predictions = None if self.causal else table.tokens
        return language_scores(outputs.blocks, predictions, table.text_bytes)


class CausalLanguageTask(LanguageTask):
    """Predicts every token of a block but the first, from left to right (Radford et al. 2018)."""

    name = "causal_lm"
    causal = True


class MaskedSpansTask(LanguageTask):
    """Masked language modelling with the same share hidden in spans (SpanBERT, Joshi et al. 2020)."""

    name = "masked_spans"
    spans = True


MASKED_LM, CAUSAL_LM, MASKED_SPANS = LanguageTask(), CausalLanguageTask(), MaskedSpansTask()


def _sentence_task(config: Config) -> Any:
    return config.model.get("sentence_task", "none")


def is_causal(model: CausalLM) -> bool:
    """True if the scores of a token do not depend on the tokens after it."""
    ids = torch.tensor([[0, 1, 2, 3], [0, 1, 2, 4]]) % model.encoder.vocab_size
    mask = torch.ones_like(ids, dtype=torch.bool)
    segments = torch.zeros_like(ids) if model.encoder.has_segments else None
    batch = LanguageBatch(ids[:, 0], ids, mask, segments, ids, mask, torch.ones(2))
    was_training = model.training
    try:
        with torch.inference_mode():
            first, second = model.eval()(batch).tokens
    except (RuntimeError, ValueError):  # the attention does not accept such a mask
        return False
    finally:
        model.train(was_training)
    return torch.equal(first[:3], second[:3])
