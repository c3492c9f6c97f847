"""Answer selection, and classification, which selects a class, as a kind of task: see ``training.kinds``."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from qa_arch.config.schema import Config
from qa_arch.features.sampler import EpochBatchSampler
from qa_arch.features.selection import CandidateCollator, PairCollator
from qa_arch.predict import store
from qa_arch.predict.predictor import TYPES
from qa_arch.predict.selection import (
    question_columns,
    read_scores,
    score_points,
    set_facts,
    write_selections,
)
from qa_arch.predict.selection_references import reference_scores
from qa_arch.results.record import MODEL, write_questions
from qa_arch.training.datamodule import TrainingData
from qa_arch.training.final import Final
from qa_arch.training.losses import choice_loss, hinge_loss
from qa_arch.training.selection.assemble import SelectionParts, assemble
from qa_arch.training.selection.task import SelectionTask
from qa_arch.types.records import Point, SplitFacts

__all__ = ["assemble", "data", "facts", "save", "score", "task"]
log = logging.getLogger(__name__)


def facts(parts: SelectionParts) -> dict[str, SplitFacts]:
    """What the record says of each split."""
    return {split: set_facts(task, titles=split != "dev") for split, task in parts.sets.items()}


def save(folder: Path, parts: SelectionParts) -> None:
    """All of the model but its weights: words and vectors, and what gives questions their class."""
    store.save_vectors(folder, parts.vectors)
    if parts.types is not None:
        store.save_run(folder / TYPES, parts.types, model=MODEL)


def data(config: Config, parts: SelectionParts, *, pin: bool) -> TrainingData:
    """Pairs of question and right answer, wrong ones drawn anew each epoch; to validate, all candidates.

    A classifier sees all of the classes in training as well.
    """
    settings = config.trainer
    classifies = config.model["task"] == "classification"
    negatives = len(parts.sets["train"].answers) - 1 if classifies else config.selection.negatives
    calibration = parts.tables.get("calibration")
    return TrainingData(
        PairCollator(parts.tables["train"], negatives, config.seed),
        CandidateCollator(calibration) if calibration is not None else None,
        batch_size=settings.batch_size,
        token_budget=settings.token_budget,
        eval_batch_size=settings.eval_batch_size,
        accumulate=settings.accumulate,
        seed=config.seed,
        workers=settings.workers,
        pin=pin,
        sampler=EpochBatchSampler,
    )


def task(config: Config, parts: SelectionParts, *, total_steps: int) -> SelectionTask:
    """The model with its loss and its ranking of the calibration questions."""
    classifies = config.model["task"] == "classification"
    return SelectionTask(
        parts.model,
        config.optim,
        total_steps=total_steps,
        accumulate=config.trainer.accumulate,
        loss=choice_loss if classifies else partial(hinge_loss, margin=config.selection.margin),
        calibration=parts.sets.get("calibration"),
    )


def score(config: Config, parts: SelectionParts, folder: Path, *, gpu: bool, trusted: Sequence[str]) -> Final:
    """Calibration, and dev where the config opens it, with the weights that were kept."""
    parts.model.to("cuda" if gpu else "cpu")
    scores: dict[str, dict[str, Point]] = {}
    seconds = 0.0
    for split in ("calibration", "dev"):
        if split not in parts.sets:
            continue
        begun = time.perf_counter()
        read = read_scores(
            parts.model,
            parts.tables[split],
            batch_size=config.trainer.eval_batch_size,
            precision=config.trainer.precision,  # type: ignore[arg-type]
        )
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds = time.perf_counter() - begun
        scores[split] = score_points(parts.sets[split], read)
        if split == "dev":
            write_selections(folder, parts.sets[split], read)
            write_questions(folder, question_columns(parts.sets[split], read))
    references = {split: reference_scores(parts.sets[split]) for split in scores}
    return Final(threshold=None, scores=scores, seconds=seconds, references=references)
