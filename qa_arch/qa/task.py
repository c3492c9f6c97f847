"""Extractive question answering: the answer is a span of the passage or "no answer".

The steps of a question, in order::

    raw data -> Example           data.splits.load_splits
    -> FeatureTable, and the model    new_parts
    -> Batch                      batches
    -> logits                     the model
    -> ranked answers             qa.decoding, qa.ranking
    -> Scores                     fit_calibration, qa.files
    -> run.json                   training.run, evaluation

Models are in ``models``, losses in ``nn``. A model of the task ``sequence`` scores token sequences, which are
decoded greedily: ``decode.search`` has no effect.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from qa_arch.config.schema import Calibration, Config
from qa_arch.config.target import TRUSTED
from qa_arch.data.splits import load_splits
from qa_arch.errors import ConfigError
from qa_arch.features.batches import BucketBatchSampler, Collator, twin_windows
from qa_arch.features.cache import windows_of
from qa_arch.features.vectors import WordVectors, passage_vectors, vector_rows, vector_width
from qa_arch.features.windows import FeatureTable, check_ids, check_lengths, probe
from qa_arch.metrics.abstention import calibrated_threshold, fit_answerability
from qa_arch.metrics.squad import METRIC_VERSION, score
from qa_arch.models import store
from qa_arch.models.store import build_model, make_encoder, make_tokenizer
from qa_arch.nn.distillation import copy_layers
from qa_arch.nn.encoder import AnyEncoder, encoder_of
from qa_arch.nn.features import parameter_blocks
from qa_arch.nn.losses import Loss, build_loss
from qa_arch.nn.precision import cast_weights
from qa_arch.nn.reading import Batches
from qa_arch.qa.files import answerable_auroc, odds_and_truth, operating_points, question_rows
from qa_arch.qa.ranking import Ranking
from qa_arch.qa.reader import Reader
from qa_arch.records import (
    CALIBRATED,
    CALIBRATION,
    FORCED,
    THRESHOLD_0,
    TRAIN,
    Answerability,
    CalibrationFits,
    Confidence,
    Origin,
    Parameters,
    Point,
    RunRecord,
    SplitFacts,
    Threshold,
)
from qa_arch.tensors import Logits, SpanLogits, StepLogits
from qa_arch.terminal import counted
from qa_arch.types import QuestionSet

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SpanParts:
    """Data, features, model and loss of a run; ``sets`` and ``tables`` by split: train, calibration, dev."""

    sets: Mapping[str, QuestionSet]
    tables: Mapping[str, FeatureTable]
    """Tokenised windows of the passages."""
    vectors: WordVectors | None
    model: nn.Module
    loss: Loss | None
    """None for a loaded model, which is not trained."""
    tokenizer: PreTrainedTokenizerBase
    encoder: AnyEncoder
    distiller: Any = None
    """Computes the loss if there is a teacher."""
    origin: Origin | None = None
    """Where the weights come from, if the model is that of another run."""
    callbacks: Callable[[], Sequence[Any]] = tuple
    """Gives Lightning's callbacks that a change of the model needs while it is trained."""


def output_of(model: Mapping[str, Any]) -> type[Logits]:
    """Type of the output of the models of a config's ``model`` section."""
    return StepLogits if model["task"] == "sequence" else SpanLogits


def facts(questions: QuestionSet, table: FeatureTable, *, titles: bool) -> SplitFacts:
    """Facts of a set for the record; with its article titles if ``titles``, to detect later overlaps."""
    return replace(
        SplitFacts.of(questions),
        titles=tuple(sorted(questions.titles)) if titles else (),
        windows=len(table),
        truncated_questions=table.truncated_questions,
        lost_answers=table.lost_answers,
    )


def new_parts(config: Config, trusted: Sequence[str] = TRUSTED, teacher: Any = None) -> SpanParts:
    """Read the sets, cut windows, load vectors, build model and loss; cheap checks come first.

    A ``Teacher`` must fit the sets, and its layers may initialise the encoder (``qa.start.assemble``).
    """
    sets = load_splits(config.data)
    tokenizer = make_tokenizer(config.encoder, sets["train"], config.distillation.teachers)
    if teacher is not None:
        teacher.check(config, tokenizer, sets)
    windows = config.features
    specials = probe(tokenizer, segments=False).specials
    check_lengths(windows.max_length, windows.stride, windows.max_question, specials)
    encoder = make_encoder(config, tokenizer)
    tables = {}
    for split, questions in sets.items():
        tables[split] = windows_of(questions, tokenizer, windows, segments=encoder.has_segments)
        check_ids(tables[split], encoder.vocab_size, f"encoder.name: {config.encoder.name}")
    _log_sizes(config, sets, tables)
    vectors = passage_vectors(config, tables)
    model = build_model(config.model, encoder, vectors, trusted)
    parts = SpanParts(sets, tables, vectors, model, _loss(config, tables, trusted), tokenizer, encoder)
    if teacher is not None:
        copy_layers(teacher.encoder, encoder, config.distillation.layers)
    return parts


def continued_parts(
    config: Config,
    sets: Mapping[str, QuestionSet],
    predictor: Reader,
    trusted: Sequence[str] = TRUSTED,
) -> SpanParts:
    """Parts of a run that continues from a trained model, with new question sets."""
    tables = {split: predictor.table(questions) for split, questions in sets.items()}
    _log_sizes(config, sets, tables)
    model, loss = predictor.model, _loss(config, tables, trusted)
    encoder = encoder_of(model)
    assert isinstance(encoder, AnyEncoder)
    return SpanParts(sets, tables, predictor.vectors, model, loss, predictor.tokenizer, encoder)


def _log_sizes(config: Config, sets: Mapping[str, QuestionSet], tables: Mapping[str, FeatureTable]) -> None:
    most = config.decode.max_answer_tokens
    for split, table in tables.items():
        notes = {
            "questions truncated": table.truncated_questions,
            "answers in no window": table.lost_answers,
            f"answers longer than decode.max_answer_tokens={most}, which no prediction can be": (
                0 if output_of(config.model) is StepLogits else table.long_answers(most)
            ),
        }
        sizes = counted(len(sets[split]), "question"), counted(len(table), "window")
        log.info("%s: %s", split, ", ".join([*sizes, *(f"{n} {note}" for note, n in notes.items() if n)]))


def count_parameters(config: Config, trusted: Sequence[str] = TRUSTED) -> Parameters:
    """Counts on the meta device. ``word_vectors`` is None if there are any: a run chooses them by its data.

    Raises DataError if the vector file cannot be read, as its width is unknown.
    """
    tokenizer, teachers = None, config.distillation.teachers
    has_tokens = config.encoder.vocabulary or config.encoder.tokenizer or teachers  # else words alone
    if config.encoder.init == "random" and has_tokens:
        tokenizer = make_tokenizer(config.encoder, load_splits(config.data)["train"], teachers)
    width = vector_width(config.glove)
    with torch.device("meta"):
        encoder = make_encoder(config, tokenizer)
        vectors = None if width is None else torch.empty(1, width)
        model = build_model(config.model, encoder, vectors, trusted)
    counts = parameter_blocks(model)
    return counts if width is None else replace(counts, word_vectors=None)


def save(folder: Path, parts: SpanParts) -> None:
    """Write everything of the model but its weights."""
    store.save_encoder(folder, parts.encoder)
    store.save_tokenizer(folder, parts.tokenizer)
    if parts.vectors is not None:
        store.save_vectors(folder, parts.vectors)


def load(folder: Path, config: Config, trusted: Sequence[str]) -> SpanParts:
    """Load what ``save`` wrote, and build the model with random weights; no sets, tables or loss."""
    encoder, vectors = store.load_encoder(folder), store.load_vectors(folder)
    store.require_window(config, encoder)
    model = build_model(config.model, encoder, vectors, trusted)
    return SpanParts({}, {}, vectors, model, None, store.load_tokenizer(folder), encoder)


def predictor(
    config: Config, parts: SpanParts, record: RunRecord | None = None, precision: Any = None
) -> Reader:
    """Predictor of a trained model; casts its weights to ``precision`` (None: that of the run)."""
    precision = precision or config.trainer.precision
    return Reader(
        cast_weights(parts.model, precision),
        parts.tokenizer,
        parts.vectors,
        config,
        segments=parts.encoder.has_segments,
        record=record,
        precision=precision,
        vocab_size=parts.encoder.vocab_size,
    )


def batches(config: Config, parts: SpanParts) -> Batches:
    """Batches of train and calibration, and the sampler, which keeps twins together for their loss."""
    collators = {
        split: Collator(table, vector_rows(parts.vectors, table)) for split, table in parts.tables.items()
    }
    train, calibration = collators[TRAIN], collators.get(CALIBRATION)
    likeness = getattr(parts.loss, "twin_likeness", None)
    if likeness is None:
        return Batches(train, calibration)
    mates = twin_windows(parts.sets[TRAIN], train.table, likeness)
    twins = int((mates >= 0).sum()) // 2
    if not twins:
        raise ConfigError(
            "loss.twin_likeness: no two training questions of a passage, one answerable and one not, have"
            f" {likeness:g} of their words in common; lower it, or leave out loss=twins"
        )
    log.info("twins: %d pairs of an answerable and an unanswerable question", twins)
    sampler = partial(BucketBatchSampler, mates=mates)
    return Batches(replace(train, mates=mates), calibration, sampler, least=2)


MONITORED = tuple(
    f"calibration_{name}"
    for name in ("f1", "exact", "loss", "threshold_0_f1", "forced_f1", "auroc", "forced_auc")
)
"""Scores of an epoch that a callback can watch."""


def validation_scores(questions: QuestionSet, outputs: Ranking) -> dict[str, float]:
    """EM and F1 (percent) at the split's best threshold, at threshold 0 and with forced answers, and
    ``forced_auc``, which needs no threshold."""
    answers = outputs.best_predictions
    scored = operating_points(questions, answers, calibrated_threshold(questions, answers))
    spans = scored[FORCED]
    if questions.protocol == "1.1":
        scores = {"exact": spans.exact, "f1": spans.f1, "forced_auc": spans.f1}
    else:
        fitted, forced_f1 = scored[CALIBRATED], spans.metric("HasAns_f1")
        auroc = answerable_auroc(questions, answers)
        scores = {"exact": fitted.exact, "f1": fitted.f1, "threshold_0_f1": scored[THRESHOLD_0].f1}
        # A split with questions of a single kind lacks one of the two.
        scores |= {"forced_f1": forced_f1, "auroc": auroc, "forced_auc": (forced_f1 or 0.0) + (auroc or 0.0)}
    return {f"calibration_{name}": value for name, value in scores.items() if value is not None}


def fit_calibration(
    questions: QuestionSet, outputs: Ranking, settings: Calibration | None = None
) -> CalibrationFits:
    """Fit null threshold, answerability and the temperature at that threshold on a calibration split.

    Unanswerable questions are weighted to the share ``settings.prior`` if there are both kinds.
    """
    answers = outputs.best_predictions
    settings = settings or Calibration()
    prior, width = settings.prior, settings.width
    threshold = calibrated_threshold(questions, answers, prior, width)
    # Three fits of the same answers: when to abstain, how likely an answer exists, how sure the best one is.
    logistic = fit_answerability(*odds_and_truth(questions, answers), prior)
    # Confidence is about what is answered, so "right" is judged with the threshold applied.
    right = np.array(question_rows(questions, answers, threshold)["exact"]) > 0
    temperature = outputs.fit_temperature(right, threshold)
    value, fitted_on = threshold if math.isfinite(threshold) else None, CALIBRATION
    classes = {example.answerable for example in questions.examples}
    if len(classes) == 1:
        fitted_on += f", all {'answerable' if classes.pop() else 'unanswerable'}"
    if fitted_on != CALIBRATION and questions.protocol == "2.0":
        log.warning(
            "%s: the questions are %s, so the null threshold %.3g tells nothing about when to abstain;"
            " calibrate on a set with both (data.calibration), or always answer (null threshold inf)",
            questions.name,
            fitted_on.partition(", ")[2],
            threshold,
        )
    null = Threshold(
        value=value,
        fitted_on=fitted_on,
        prior=prior if logistic else None,
        width=None if value is None else width,
    )
    confidence = Confidence(method="temperature", value=temperature, fitted_on=CALIBRATION)
    if logistic is None:
        return CalibrationFits(null, confidence)
    slope, intercept = logistic
    answerability = Answerability(slope=slope, intercept=intercept, fitted_on=CALIBRATION, prior=prior)
    return CalibrationFits(null, confidence, answerability)


def reference_point(heuristic: Any, calibration: QuestionSet | None, questions: QuestionSet) -> Point:
    """Scores of a heuristic, fitted on ``calibration`` if there is one."""
    fitted = heuristic if calibration is None else heuristic.fit(calibration)
    scores = score(questions, fitted.predict(questions))
    return Point(protocol=scores.protocol, metric_version=METRIC_VERSION, metrics=scores.flat())


def _loss(config: Config, tables: Mapping[str, FeatureTable], trusted: Sequence[str]) -> Loss:
    """The configured loss, which may depend on the share of training windows without an answer."""
    null_share = float(1 - tables["train"].answerable.mean()) if "train" in tables else None
    return build_loss(config, trusted, null_share=null_share)
