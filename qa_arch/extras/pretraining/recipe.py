"""The recipe of pre-training: corpora, language model, fit, scores, and an encoder for later runs.

``train`` shows the whole way. The data is a corpus instead of questions, packed into blocks of tokens; there
are no answers and no null. Later runs start from the folder that the encoder is saved in
(``encoder.name=RUN``).
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from qa_arch.config.schema import Config, validate
from qa_arch.config.target import TRUSTED
from qa_arch.errors import ConfigError, DataError, UnavailableError
from qa_arch.evaluation import Reading, read_set
from qa_arch.extras.pretraining.blocks import LanguageCollator, LanguageTable, Objective, framed_row, pack
from qa_arch.extras.pretraining.corpus import Corpus, load_splits, refuse_articles
from qa_arch.extras.pretraining.denoising import Denoiser, Written, write
from qa_arch.extras.pretraining.manifest import Denoising, Pretraining
from qa_arch.extras.pretraining.models import CausalLM, LanguageBatch, LanguageLogits, LanguageModel
from qa_arch.extras.pretraining.transformer import MultiHeadAttention
from qa_arch.features import words
from qa_arch.features.batches import EpochBatchSampler
from qa_arch.features.cache import tokenizer_hash
from qa_arch.features.windows import probe
from qa_arch.manifest import from_extras
from qa_arch.models import store
from qa_arch.models.store import build_model, check_model, make_encoder, tokenizer_of
from qa_arch.nn.encoder import Encoder
from qa_arch.nn.features import parameter_blocks
from qa_arch.nn.losses import Loss, build_loss
from qa_arch.nn.precision import Precision, cast_weights, mixed
from qa_arch.nn.reading import Batches, RowCollector, Watch, device_of, evaluating, run_model
from qa_arch.records import (
    CALIBRATION,
    DEV,
    MODEL,
    TRAIN,
    Parameters,
    Point,
    Points,
    RunRecord,
    SplitFacts,
    questions_folder,
    write_questions,
)
from qa_arch.training.module import Fitting
from qa_arch.training.run import OpenRun

INPUTS = ("encoder",)
METRIC_VERSION = "language-1"
POINT = "tokens"
"""The operating point of the scores: tokens are predicted, there is no threshold."""
WRITTEN = 128
"""Blocks of a set, from the first, whose texts a denoising model writes for its scores."""
MASK = "[MASK]"
"""Marks a token to predict in user text, whatever the tokenizer's own mask token is."""

log = logging.getLogger(__name__)


def train(run: OpenRun) -> None:
    """Pre-train: read and pack the corpora, build the model, fit it, score it, and save its encoder."""
    parts = assemble(run.config, run.trusted)
    facts = {split: facts_of(corpus, parts.tables[split]) for split, corpus in parts.sets.items()}
    run.describe(parts.sets, facts, parts.model, encoder=parts.model.encoder)
    store.save_encoder(run.model_folder, parts.model.encoder)
    store.save_tokenizer(run.model_folder, parts.tokenizer)
    run.fit(fitting(run.config, parts))
    store.save_pretrained(run.model_folder, parts.model.encoder, parts.tokenizer)
    predictor = LanguagePredictor(parts.model, parts.tokenizer, run.config)
    for split in (CALIBRATION, DEV):
        if split in parts.sets:
            reading = read_set(predictor, parts.sets[split], table=parts.tables[split], facts_of=facts_of)
            run.add_scores(split, *score(predictor, reading, run.folder, split=split), reading.seconds)
    run.finish()


# Data and model -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PretrainingParts:
    """Corpora and their blocks by split, tokenizer, model and loss."""

    sets: Mapping[str, Corpus]
    tables: Mapping[str, LanguageTable]
    tokenizer: PreTrainedTokenizerBase
    model: LanguageModel
    loss: Loss


def assemble(config: Config, trusted: Sequence[str] = TRUSTED) -> PretrainingParts:
    """Pack the corpora into blocks and build model and loss."""
    sets = load_splits(config)
    tokenizer = tokenizer_of(config.encoder, sets[TRAIN].documents())
    encoder = _encoder(config, tokenizer)
    tables = {split: table_of(config, corpus, tokenizer, encoder) for split, corpus in sets.items()}
    for split, table in tables.items():
        log.info("%s: %d tokens in %d blocks", split, table.tokens, len(table))
    model: Any = build_model(config.model, encoder, trusted=trusted, inputs=INPUTS)
    if isinstance(model, CausalLM) and not is_causal(model):
        raise ConfigError(
            f"encoder: {encoder.config.model_type} ignores a look-ahead mask, so it cannot be a decoder;"
            " choose bert, roberta, albert, distilbert or qa_transformer"
        )
    return PretrainingParts(sets, tables, tokenizer, model, build_loss(config, trusted))


def check(config: Config, trusted: Sequence[str] = TRUSTED) -> None:
    """Raise ConfigError if model or loss cannot be built, for heuristics, of which there are none, for an
    encoder without layers, and for settings that need articles or spans and find none."""
    noise = noise_of(config)
    _require_layers(config)
    refuse_articles(config)
    if (
        isinstance(noise, Denoising)
        and noise.noise != "infilling"
        and noise.span_length != Denoising.span_length
    ):
        raise ConfigError(
            f"denoising.span_length: {noise.span_length:g} has no effect with denoising.noise={noise.noise},"
            f" which hides single tokens; leave it out, or choose infilling"
        )
    check_model(config.model, trusted, inputs=INPUTS, with_vectors=config.glove.use)
    build_loss(config, trusted)
    if config.references:
        raise ConfigError("references: language models have no heuristics; choose references=none")


def count_parameters(config: Config, trusted: Sequence[str] = TRUSTED) -> Parameters:
    """Count on the meta device. Reads the corpus to train the tokenizer of a random encoder."""
    tokenizer = None
    if config.encoder.init == "random":
        tokenizer = tokenizer_of(config.encoder, load_splits(config)[TRAIN].documents())
    with torch.device("meta"):
        encoder = _encoder(config, tokenizer)
        return parameter_blocks(build_model(config.model, encoder, trusted=trusted, inputs=INPUTS))


def facts_of(corpus: Corpus, table: LanguageTable) -> SplitFacts:
    return SplitFacts(
        name=corpus.name,
        fingerprint=corpus.fingerprint,
        protocol=table.protocol,
        windows=len(table),
        details={"documents": table.documents, "tokens": table.tokens, "bytes": table.text_bytes},
    )


def table_of(
    config: Config,
    corpus: Corpus,
    tokenizer: PreTrainedTokenizerBase,
    encoder: Encoder,
    *,
    cache: bool = True,
) -> LanguageTable:
    """The blocks of a corpus, packed or from the cache; DataError if there are too few documents."""
    objective, length = objective_of(config), config.features.max_length
    sentence_task = objective if objective in ("nsp", "sop") else "none"
    # Validation scores depend on the noise.
    noise = {} if objective == "causal" else {"sentence_task": sentence_task, **asdict(noise_of(config))}
    settings = json.dumps([tokenizer_hash(tokenizer), length, noise])
    table = pack(
        corpus,
        tokenizer,
        config.features.cache_dir if cache else None,
        max_length=length,
        vocab_size=encoder.vocab_size,
        pairs=sentence_task != "none" or objective == "denoising",
        shortest=1 if sentence_task == "none" else 2,
        segments=encoder.has_segments,
        protocol=f"{config.model['task']}:{hashlib.sha256(settings.encode()).hexdigest()[:8]}",
    )
    if objective == "nsp" and table.documents < 2:
        raise DataError(
            f"{corpus.source}: is a single document, but next-sentence prediction draws false pairs from"
            " two; name a larger corpus, or train with model.sentence_task=sop"
        )
    return table


def noise_of(config: Config) -> Pretraining | Denoising:
    """The section ``pretraining`` of the config, or ``denoising`` for that task."""
    if config.model["task"] == "denoising":
        return getattr(config, "denoising", None) or Denoising()
    return getattr(config, "pretraining", None) or Pretraining()


def objective_of(config: Config) -> Objective:
    """What the model of a config learns."""
    if config.model["task"] != "masked_lm":
        return "causal" if config.model["task"] == "causal_lm" else "denoising"
    sentence_task: Any = config.model.get("sentence_task", "none")
    return "mlm" if sentence_task == "none" else sentence_task


def _require_layers(config: Config) -> None:
    if config.encoder.family == "words":
        raise ConfigError(
            "encoder.family: words has no layers to pre-train; choose bert or another subword encoder"
        )


def _encoder(config: Config, tokenizer: PreTrainedTokenizerBase | None) -> Encoder:
    _require_layers(config)
    encoder: Any = make_encoder(config, tokenizer)
    return encoder


def is_causal(model: CausalLM) -> bool:
    """True if the scores of a token do not depend on the tokens after it."""
    ids = torch.tensor([[0, 1, 2, 3], [0, 1, 2, 4]]) % model.encoder.vocab_size  # the last token differs
    mask = torch.ones_like(ids, dtype=torch.bool)
    segments = torch.zeros_like(ids) if model.encoder.has_segments else None
    batch = LanguageBatch(ids[:, 0], ids, mask, segments, ids, mask, torch.ones(2))
    try:
        with evaluating(model), torch.inference_mode():
            first, second = model(batch).tokens
    except (RuntimeError, ValueError):  # the attention does not accept such a mask
        return False
    return torch.equal(first[:3], second[:3])


# Fit ------------------------------------------------------------------------------------------------


def fitting(config: Config, parts: PretrainingParts) -> Fitting:
    """Training blocks with new noise every epoch; validation blocks, whose loss selects the epoch, with fixed
    noise."""
    held = parts.tables.get(CALIBRATION)
    batches = Batches(
        collator(config, parts.tables[TRAIN], config.seed),
        None if held is None else collator(config, held),
        EpochBatchSampler,
    )
    return Fitting(
        parts.model,
        parts.loss,
        batches,
        LanguageLogits,
        OutputCollector,
        partial(validation_scores, config, held),
        monitor="calibration_loss",  # the collector's is exact: a mean over tokens, not blocks
    )


def collator(config: Config, table: LanguageTable, seed: int | None = None) -> LanguageCollator:
    """Collator of the objective; without ``seed``, that of validation."""
    return LanguageCollator(table, noise_of(config), seed, objective_of(config))


# Score ----------------------------------------------------------------------------------------------


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
    noised: int | None = None
    """Number of targets that the encoder does not see; None unless it is denoising."""
    restored: int | None = None
    """Number of these ranked first."""


class OutputCollector(RowCollector):
    """Collects the scores of each block."""

    def add(self, batch: LanguageBatch, logits: LanguageLogits) -> None:
        """A target counts as right if its score is strictly the highest of the vocabulary."""
        scores, counted = logits.tokens.float(), batch.counted
        target_scores = scores.gather(-1, batch.targets[..., None])
        losses = (scores.logsumexp(-1) - target_scores.squeeze(-1)).where(counted, 0.0).double().sum(1)
        hits = ((scores >= target_scores).sum(-1) == 1) & counted
        columns: dict[str, Tensor] = {"loss": losses, "tokens": counted.sum(1), "right": hits.sum(1)}
        if logits.follows is not None and batch.follows is not None:
            columns |= {"odds": logits.follows.float(), "follows": batch.follows}
        if batch.noised is not None:
            columns |= {"noised": batch.noised.sum(1), "restored": (hits & batch.noised).sum(1)}
        values = zip(*(column.tolist() for column in columns.values()), strict=True)
        blocks = (BlockScores(**dict(zip(columns, row, strict=True))) for row in values)
        self.parts += zip(batch.index.tolist(), blocks, strict=True)


def perplexity(loss: float) -> float:
    """exp of a loss in nats; inf where that overflows, at 710."""
    return math.exp(loss) if loss < 700 else math.inf


def language_scores(
    blocks: Collection[BlockScores], predictions: int | None, text_bytes: int
) -> dict[str, float | int]:
    """Means over all targets of all blocks, independent of batching; accuracies in percent.

    ``loss`` is in nats per target, ``perplexity`` its exponential. ``bits_per_byte`` is the loss in bits
    times the number N of ``predictions`` that cover the text, divided by its UTF-8 bytes::

        loss / ln 2 * N / bytes

    For causal models (None) N is the number of targets, which gives the exact code length of the text; for
    denoising, of the text given the noisy one. Masked models predict a sample of the tokens from all others:
    N is the number of tokens, and the result estimates their pseudo-likelihood, not a code length.
    ``sentence_f1`` is F1 of the class "follows"; a log-odds of 0 counts as "does not follow".
    ``restored_tokens`` is the accuracy on tokens that the encoder does not see.
    """
    tokens = sum(block.tokens for block in blocks)
    if not tokens:
        raise ValueError("there is no predicted token to score")
    loss = math.fsum(block.loss for block in blocks) / tokens
    scores: dict[str, float | int] = {
        "loss": loss,
        "perplexity": perplexity(loss),
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
    if noised := sum(block.noised or 0 for block in blocks):
        scores["restored_tokens"] = 100 * sum(block.restored or 0 for block in blocks) / noised
    return scores


def scores_of(config: Config, table: Any, blocks: Collection[BlockScores]) -> dict[str, float]:
    """``language_scores`` of the blocks of a table."""
    masked = config.model["task"] == "masked_lm"
    return language_scores(blocks, table.tokens if masked else None, table.text_bytes)


def validation_scores(config: Config, table: Any, blocks: Collection[BlockScores]) -> dict[str, float]:
    """``calibration_*`` scores of an epoch."""
    scores = scores_of(config, table, blocks).items()
    return {f"calibration_{name}": value for name, value in scores if name not in ("targets", "blocks")}


def score(predictor: LanguagePredictor, reading: Reading, folder: Path, *, split: str) -> tuple[Points, str]:
    """Score a corpus; write its rows (a block each: the fields of ``BlockScores``) below the run folder.

    Returns the scores and the hash of the rows.
    """
    table, blocks = reading.outputs
    metrics = scores_of(predictor.config, table, blocks)
    if isinstance(predictor.model, Denoiser):
        metrics |= writing_scores(predictor, table)
    point = Point(
        protocol=table.protocol,
        metric_version=METRIC_VERSION,
        metrics=metrics,
        engine=f"torch {predictor.precision}",
    )
    columns = dict(zip(BlockScores._fields, map(list, zip(*blocks, strict=True)), strict=True))
    rows = {"id": [str(number) for number in range(len(blocks))], **columns}
    return {POINT: point}, write_questions(questions_folder(folder, split), rows)


def writing_scores(predictor: LanguagePredictor, table: LanguageTable) -> dict[str, float]:
    """What a denoising model writes, greedily, for the first ``WRITTEN`` blocks.

    ``exact_copies``: percentage of blocks written exactly from the text without noise. ``bleu`` and
    ``rouge_l``, if the extra text_metrics and its libraries are installed: of the texts written from the
    noisy ones, in percent; ``bleu_noisy``: of the noisy ones. ``written_perplexity``: exp of the mean -log p
    of the tokens written from these.
    """
    collate, size = collator(predictor.config, table), predictor.config.trainer.eval_batch_size
    golds = [table.content(row).tolist() for row in range(min(WRITTEN, len(table)))]

    def written(collate: LanguageCollator) -> Iterator[tuple[list[int], Written]]:
        """What the encoder reads and the decoder writes of each block."""
        for start in range(0, len(golds), size):
            batch = collate(range(start, min(start + size, len(golds))))
            noisy = (ids[mask].tolist() for ids, mask in zip(batch.ids, batch.mask, strict=True))
            yield from zip(noisy, (best for best, *_ in predictor.write(batch)), strict=True)

    # Without noise there is nothing to restore: what is wrong here is for want of copying. Written texts end
    # with the end token.
    clean = replace(collate, noise=replace(collate.noise, share=0.0))
    copies = [text.ids[:-1] == gold for (_, text), gold in zip(written(clean), golds, strict=True)]
    noisy, texts = zip(*written(collate), strict=True)
    loss = -math.fsum(text.score * len(text.ids) for text in texts) / sum(len(text.ids) for text in texts)
    scores = {"exact_copies": 100 * sum(copies) / len(copies), "written_perplexity": perplexity(loss)}
    decoded = [predictor.decode(ids) for ids in golds]
    if text_scores := _text_scores([predictor.decode(text.ids) for text in texts], decoded):
        scores |= text_scores
        scores["bleu_noisy"] = _text_scores([predictor.decode(ids) for ids in noisy], decoded)["bleu"]
    return scores


def _text_scores(texts: Sequence[str], golds: Sequence[str]) -> dict[str, float]:
    """BLEU and ROUGE-L by the extra text_metrics; none without it or its libraries."""
    references = [[gold] for gold in golds]
    try:
        metrics = import_module(from_extras("metrics")["text-metrics"].module)
        rouge_l = metrics.rouge(texts, references)["rouge_l"]
        return {"bleu": metrics.bleu(texts, references), "rouge_l": rouge_l}
    except (KeyError, UnavailableError) as error:
        log.info("written texts are scored without BLEU and ROUGE (%s)", error)
        return {}


# The trained model ----------------------------------------------------------------------------------


def load(
    folder: Path, record: RunRecord, *, device: Any, precision: Precision, trusted: Sequence[str]
) -> LanguagePredictor:
    """The language model of a finished run."""
    config, saved = validate(record.config), folder / MODEL
    encoder: Any = store.load_encoder(saved)
    store.require_window(config, encoder)
    model = build_model(config.model, encoder, trusted=trusted, inputs=INPUTS)
    store.load_weights(saved, model)
    tokenizer = store.load_tokenizer(saved)
    return LanguagePredictor(model.to(device), tokenizer, config, record=record, precision=precision)


class LanguagePredictor:
    """A language model with its tokenizer."""

    def __init__(
        self,
        model: Any,
        tokenizer: PreTrainedTokenizerBase,
        config: Config,
        *,
        record: RunRecord | None = None,
        precision: Precision | None = None,
    ) -> None:
        self.precision: Precision = precision or config.trainer.precision  # type: ignore[assignment]
        self.model: LanguageModel = cast_weights(model, self.precision).eval()  # type: ignore[assignment]
        self.tokenizer, self.config, self.record = tokenizer, config, record
        self.template = probe(tokenizer, segments=self.model.encoder.has_segments)

    def table(self, corpus: Corpus, *, cache: bool = True) -> LanguageTable:
        """The blocks of a corpus, with the settings that the model was trained with."""
        return table_of(self.config, corpus, self.tokenizer, self.model.encoder, cache=cache)

    def rank(
        self, corpus: Corpus, *, table: LanguageTable | None = None, watch: Watch | None = None
    ) -> tuple[LanguageTable, list[BlockScores]]:
        """The blocks of a corpus, or ``table``, and loss and hits of each, with the noise of validation."""
        table = self.table(corpus) if table is None else table
        blocks = run_model(
            self.model,
            collator(self.config, table),
            OutputCollector(),
            batch_size=self.config.trainer.eval_batch_size,
            precision=self.precision,
            watch=watch,
        )
        return table, blocks

    def try_out(self) -> None:
        """Read something short, so that files that do not fit together fail when they are loaded."""
        text = "Ada \U00013000 " + ("" if isinstance(self.model, CausalLM) else MASK)
        if isinstance(self.model, Denoiser):
            self.write(self.batch(text), limit=1)
        else:
            self.fill(text, 1)

    def batch(self, text: str, *, until_end: bool = True) -> LanguageBatch:
        """``text`` as the model reads it, with each [MASK] as a target, or with its last token without the
        special tokens that end it. Raises ConfigError if it exceeds the model's maximum length, DataError for
        invalid Unicode."""
        words.split([text])  # tokenizers report a lone surrogate as a wrong type
        tokenizer, encoder = self.tokenizer, self.model.encoder
        marked = text.replace(MASK, str(tokenizer.mask_token))
        text_ids = tokenizer(marked, add_special_tokens=False, verbose=False)["input_ids"]
        row, _ = framed_row(self.template, np.array(text_ids, np.int64))
        ids = torch.from_numpy(row if until_end else row[: len(row) - len(self.template.after)])[None]
        limit = encoder.max_tokens
        if limit is not None and ids.shape[1] > limit:
            raise ConfigError(f"the text has {ids.shape[1]} tokens and the model reads {limit}: shorten it")
        # A causal model continues the text after its last token; others fill the masks.
        last = torch.tensor([[ids.shape[1] - 1]])
        positions = (ids == tokenizer.mask_token_id).nonzero()[:, 1][None] if until_end else last
        mask, segments = torch.ones_like(ids, dtype=torch.bool), torch.zeros_like(ids)
        targets, counted = ids.gather(1, positions), torch.ones_like(positions, dtype=torch.bool)
        inputs = (ids[:, 0], ids, mask, segments if encoder.has_segments else None)
        return LanguageBatch(*inputs, targets, counted, torch.ones(1), positions)

    def write(self, batch: LanguageBatch, beams: int = 1, *, limit: int | None = None) -> list[list[Written]]:
        """Up to ``beams`` texts that a denoising model writes for each of ``batch``, best first.

        They have at most ``limit`` tokens, by default those of a block.
        """
        assert isinstance(self.model, Denoiser)
        start, device = self.template.before[-1].id, device_of(self.model)
        with mixed(self.precision, device.type):
            return write(
                self.model,
                batch.to(device),
                start=start,
                end=self.template.after[0].id,
                limit=limit or self.config.features.max_length - 1,  # the start is a token, too
                # The first step has a single text to extend, and takes the best 2K of its extensions.
                beams=min(beams, len(self.tokenizer) // 2),
            )

    def attend(self, text: str) -> tuple[list[str], list[str], list[tuple[str, np.ndarray]]]:
        """Pieces that the encoder reads and that the decoder writes of ``text``, and the decoder's attention.

        Of each layer ``L``, from the lowest, ``L self`` (N, P, P) are probabilities over the pieces written
        before, the start in front of them, and ``L cross`` (N, P, T) over those read; the rows are the pieces
        written. Raises ConfigError for a model without a decoder.
        """
        model, device = self.model, device_of(self.model)
        if not isinstance(model, Denoiser):
            raise ConfigError("the model has no decoder; name a run of model=pretrain/denoising")
        batch = self.batch(text).to(device)
        ((best,),) = self.write(batch)
        # The finished text is read once more: the fused attention of writing gives no probabilities.
        prefix = torch.tensor([[self.template.before[-1].id, *best.ids[:-1]]], device=device)
        weights: list[np.ndarray] = []
        with ExitStack() as stack, torch.inference_mode(), mixed(self.precision, device.type):
            for module in model.decoder.modules():
                if isinstance(module, MultiHeadAttention):
                    hook = module.register_forward_hook(
                        lambda *call: weights.append(call[2][1][0].float().cpu().numpy())
                    )
                    stack.enter_context(hook)
            memory = model.encoder(batch.ids, batch.mask, batch.segments)
            model.decoder(prefix, memory, batch.mask, model.embedding.weight, fused=False)
        # Hooks fire in the order of the forward pass: self, then cross attention of each layer.
        names = [f"{1 + n // 2} {'cross' if n % 2 else 'self'}" for n in range(len(weights))]
        maps = list(zip(names, weights, strict=True))
        to_pieces = self.tokenizer.convert_ids_to_tokens
        return to_pieces(batch.ids[0].tolist()), to_pieces(best.ids), maps

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``, without special tokens."""
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def fill(self, text: str, top_k: int) -> list[list[tuple[str, float]]]:
        """The ``top_k`` most probable tokens with their probabilities (0 to 1) at each [MASK] of ``text``, in
        order; for a causal model, those of the token after ``text``.

        Raises ConfigError if a masked model gets no [MASK] or a causal model gets one, and if the text
        exceeds the model's maximum length.
        """
        tokenizer, model, device = self.tokenizer, self.model, device_of(self.model)
        causal = isinstance(model, CausalLM)
        if causal == (MASK in text):
            hint = "the model predicts what follows the text" if causal else "put it where a token is missing"
            raise ConfigError(f"the text has {'a' if causal else 'no'} {MASK}: {hint}")
        batch = self.batch(text, until_end=not causal)
        with torch.inference_mode(), mixed(self.precision, device.type):
            probabilities = model(batch.to(device)).tokens[0].float().softmax(-1)
        if causal:
            probabilities = probabilities[-1:]
        # An encoder may have more embeddings than its tokenizer has tokens.
        best = probabilities[:, : len(tokenizer)].topk(min(top_k, len(tokenizer)))
        return [
            list(zip(tokenizer.convert_ids_to_tokens(token_ids), values, strict=True))
            for token_ids, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]
