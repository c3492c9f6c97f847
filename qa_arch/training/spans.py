"""Span extraction, by spans or by sequences of tokens, as a kind of task: see ``kinds``."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from qa_arch.config.schema import Config
from qa_arch.decode.readout import Readout
from qa_arch.features.collate import Collator
from qa_arch.features.glove import vector_rows
from qa_arch.predict import store
from qa_arch.predict.scoring import set_facts
from qa_arch.training.assemble import Parts, assemble
from qa_arch.training.datamodule import TrainingData
from qa_arch.training.final import Final, score_splits
from qa_arch.training.module import SpanTask
from qa_arch.training.references import reference_scores
from qa_arch.types.records import SplitFacts

__all__ = ["assemble", "data", "facts", "save", "score", "task"]
log = logging.getLogger(__name__)


def facts(parts: Parts) -> dict[str, SplitFacts]:
    """What the record says of each split."""
    return {
        split: set_facts(questions, parts.tables[split], titles=split != "dev")
        for split, questions in parts.sets.items()
    }


def save(folder: Path, parts: Parts) -> None:
    """All of the model but its weights."""
    store.save_surroundings(folder, parts.encoder, parts.tokenizer, parts.vectors)


def data(config: Config, parts: Parts, *, pin: bool) -> TrainingData:
    """The windows of train and calibration, in batches."""
    settings = config.trainer
    collators = {
        split: Collator(table, vector_rows(parts.vectors, table)) for split, table in parts.tables.items()
    }
    data = TrainingData(
        collators["train"],
        collators.get("calibration"),
        batch_size=settings.batch_size,
        token_budget=settings.token_budget,
        eval_batch_size=settings.eval_batch_size,
        accumulate=settings.accumulate,
        seed=config.seed,
        workers=settings.workers,
        pin=pin,
    )
    log.info("padding: %.1f%% of the tokens computed", 100 * data.sampler().pad_share)
    return data


def task(config: Config, parts: Parts, *, total_steps: int) -> SpanTask:
    """The model with its loss and its reading of the calibration questions."""
    calibration = parts.sets.get("calibration")
    readout = None
    if calibration is not None:
        readout = partial(Readout, calibration, parts.tables["calibration"], config.decode)
    return SpanTask(
        parts.model,
        config.optim,
        total_steps=total_steps,
        accumulate=config.trainer.accumulate,
        calibration=calibration,
        readout=readout,
    )


def score(config: Config, parts: Parts, folder: Path, *, gpu: bool, trusted: Sequence[str]) -> Final:
    """The splits at the calibrated margin, beside the heuristics on the same questions."""
    scored = score_splits(config, parts, folder, gpu=gpu)
    calibration = parts.sets.get("calibration")
    references = {
        split: reference_scores(config.references, calibration, parts.sets[split], trusted)
        for split in scored.scores
    }
    return replace(scored, references=references)
