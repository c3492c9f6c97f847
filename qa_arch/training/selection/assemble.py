"""Everything a selection run trains on and with: sets, word vectors, tables, model."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from qa_arch.config.schema import Config, require_vectors
from qa_arch.config.target import TRUSTED
from qa_arch.data.prepared import load_splits
from qa_arch.data.question_types import CLASSES
from qa_arch.errors import ConfigError, RunError
from qa_arch.features.glove import WordVectors, read_vectors
from qa_arch.features.selection import (
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
    return load_splits(
        config.data, want="classes" if config.model["task"] == "classification" else "candidates"
    )


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
