"""Everything a selection run trains on and with: sets, word vectors, tables, model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import nn

from qa_arch.config.schema import Config, Data, require_vectors
from qa_arch.config.target import TRUSTED
from qa_arch.data.insuranceqa import PREFIX as INSURANCEQA
from qa_arch.data.question_types import CLASSES, hold_out_questions, open_types
from qa_arch.data.question_types import PREFIX as TYPES
from qa_arch.data.selection import from_squad, open_insuranceqa, selection_set
from qa_arch.errors import ConfigError, DataError, RunError
from qa_arch.features.glove import WordVectors, read_vectors
from qa_arch.features.selection_features import (
    RANDOM_DIM,
    SelectionTable,
    random_vectors,
    with_buckets,
    word_rows,
)
from qa_arch.models.assemble import build_model
from qa_arch.predict.predictor import load
from qa_arch.predict.question_types import with_types
from qa_arch.predict.selection import SelectionPredictor, table_of
from qa_arch.predict.store import vector_tensor
from qa_arch.training.assemble import load_sets as load_question_sets
from qa_arch.types.text import SelectionSet

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SelectionParts:
    """What a run is made of. ``sets`` and ``tables`` by split: train, calibration, dev."""

    sets: dict[str, SelectionSet]
    tables: dict[str, SelectionTable]
    vectors: WordVectors
    model: nn.Module
    types: Path | None = None
    """The run that gave questions their class."""


def assemble(config: Config, trusted: Sequence[str] = TRUSTED) -> SelectionParts:
    """Read the data, then build word vectors, tables and model."""
    _check_classes(config)
    sets = load_sets(config)
    if (classifier := _classifier(config, trusted)) is not None:
        sets = {split: with_types(task, classifier) for split, task in sets.items()}
    vectors = make_vectors(config, sets)
    row = word_rows(vectors, config.selection.unknown_buckets)
    tables = {split: table_of(task, row, config) for split, task in sets.items()}
    for split, task in sets.items():
        said = f"{task.left_out} left out" if task.left_out else "none left out"
        log.info("%s: %d questions, %d answers, %s", split, len(task), len(task.answers), said)
    model = build_model(config.model, None, vector_tensor(vectors), trusted)
    types = config.selection.types
    return SelectionParts(sets, tables, vectors, model, Path(types) if types else None)


def _check_classes(config: Config) -> None:
    """A classifier scores, and a class as a feature is one of, the classes of ``CLASSES``."""
    classes = config.model.get("classes", len(CLASSES))
    if classes != len(CLASSES):
        raise ConfigError(f"model.classes: {classes}; questions are of {len(CLASSES)} classes, leave it so")


def _classifier(config: Config, trusted: Sequence[str]) -> SelectionPredictor | None:
    """The run that gives questions their class, where the model reads it."""
    run = config.selection.types
    if bool(run) != bool(config.model.get("type_dim")):
        raise ConfigError(
            "selection.types, model.type_dim: a run that classifies questions and the width of what is"
            " learned of a class go together; set both or neither"
        )
    if not run:
        return None
    classifier = load(run, device="cpu", trust=trusted)
    if not isinstance(classifier, SelectionPredictor):
        raise RunError(f"selection.types: {run} finds spans; name a run of model=question_types")
    classifier.require("classification")
    return classifier


def load_sets(config: Config) -> dict[str, SelectionSet]:
    """Train, calibration and dev. SQuAD is split by article first, then its sentences are candidates.

    Raises DataError where the sources are not of the model's task.
    """
    data, classifies = config.data, config.model["task"] == "classification"
    if classifies != str(data.train).startswith(TYPES):
        told = (
            "holds no classes of questions" if classifies else "holds questions with classes and no answers"
        )
        use = "data=question_types or data=trec" if classifies else "model=question_types"
        raise DataError(f"data.train: {data.train} {told}; use {use}")
    if classifies:
        return _load_typed(data)
    if not str(data.train).startswith(INSURANCEQA):
        return {split: from_squad(questions) for split, questions in load_question_sets(data).items()}
    if data.calibration is None and (data.hold_out_articles or data.hold_out_share):
        raise ConfigError(
            "data.calibration: InsuranceQA has no articles to hold questions out by; name its own"
            " validation split (insuranceqa:FOLDER:dev)"
        )
    sets = _open_named(data, INSURANCEQA, "InsuranceQA", open_insuranceqa)
    return _at_most(sets, data)


def _load_typed(data: Data) -> dict[str, SelectionSet]:
    """Questions with classes have no articles: the share that is held out is one of the questions."""
    sets = _open_named(data, TYPES, "questions with classes", open_types)
    if data.calibration is None and data.hold_out_share:
        sets |= hold_out_questions(sets["train"], data.hold_out_share, data.split_seed)
    elif data.calibration is None and data.hold_out_articles:
        raise ConfigError(
            "data.hold_out_articles: questions with classes have no articles; set data.hold_out_share"
        )
    return _at_most(sets, data)


def _open_named(
    data: Data, prefix: str, of_what: str, opened: Callable[..., SelectionSet]
) -> dict[str, SelectionSet]:
    """The sets that the config names; all of them of the same data set."""
    named = {"train": data.train, "calibration": data.calibration, "dev": data.dev if data.open_dev else None}
    sets = {}
    for split, source in named.items():
        if source is not None:
            if not str(source).startswith(prefix):
                raise DataError(f"data.{split}: {source} is no split of {of_what}, as data.train is one")
            sets[split] = opened(str(source), name=split)
    return sets


def _at_most(sets: dict[str, SelectionSet], data: Data) -> dict[str, SelectionSet]:
    """At most ``train_questions`` of them to train on, a seeded sample."""
    if 0 < data.train_questions < len(sets["train"]):
        sets["train"] = _sample(sets["train"], data.train_questions, data.split_seed)
    return sets


def _sample(task: SelectionSet, count: int, seed: int) -> SelectionSet:
    drawn = np.random.default_rng(seed).choice(len(task), count, replace=False)
    kept = [task.questions[row] for row in sorted(drawn.tolist())]
    return selection_set(task.name, task.answers, kept, task.left_out, main=task.main)


def make_vectors(config: Config, sets: dict[str, SelectionSet]) -> WordVectors:
    """The vectors of the data's words and of the file's most frequent; random ones without a file."""
    if config.glove.use:
        require_vectors(config)
        everything = read_vectors(str(config.glove.path), dim=config.glove.dim, backend=config.glove.backend)
        met = {word for task in sets.values() for word in _words(task)}
        vectors = everything.only({*everything.words[: config.glove.keep], *met})
        known = {word.lower() for word in vectors.words}
        unknown = sum(word.lower() not in known for word in met) / len(met)
        log.info("%.1f%% of the distinct words have no vector", 100 * unknown)
    elif config.model.get("train_vectors", True):
        vectors = random_vectors(_words(sets["train"]), config.glove.dim or RANDOM_DIM, config.seed)
    else:
        raise ConfigError(
            "model.train_vectors: without a file of word vectors (glove=none) they are random, so they"
            " must be trained; set it to true or name a file (glove=file glove.path=...)"
        )
    return with_buckets(vectors, config.selection.unknown_buckets, config.seed)


def _words(task: SelectionSet) -> Iterable[str]:
    for question in task.questions:
        yield from question.question
    for answer in task.answers:
        yield from answer
