"""Word vectors of a run: of the words in its data and of the most frequent words of the file.

They are saved with the run, which may be applied to words that its data does not contain.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

import numpy as np

from qa_arch.config.schema import Config, Glove, require_vectors
from qa_arch.errors import ConfigError, DataError
from qa_arch.features.glove import WordVectors, oov_rate, read_vectors
from qa_arch.features.packaged_vectors import PackagedVectors, packaged_files
from qa_arch.features.selection_features import RANDOM_DIM, random_vectors, with_buckets
from qa_arch.features.table import FeatureTable
from qa_arch.types.text import SelectionSet

log = logging.getLogger(__name__)
GLOVE_DIM = 300
"""Default width of word vectors where no file is named: that of GloVe 840B 300d, used in the thesis."""


def passage_vectors(config: Config, tables: Mapping[str, FeatureTable]) -> WordVectors | None:
    """Vectors of the words in ``tables``; None with ``glove.use=false``."""
    if not config.glove.use:
        return None
    require_vectors(config)
    words = {word for table in tables.values() for word in table.vocabulary}
    vectors = _restricted(_read(config.glove), config.glove, words)
    for split, table in tables.items():
        rate = oov_rate(table, vectors.rows(table.vocabulary))
        shares = f"{rate.question:.1%} of the question words, {rate.context:.1%} of the passage words"
        log.info("%s: %s have no vector", split, shares)
    return vectors


def candidate_vectors(config: Config, sets: Mapping[str, SelectionSet]) -> WordVectors:
    """Vectors of the words in ``sets``, random without a file, followed by those shared by unknown words."""
    if config.glove.use:
        require_vectors(config)
        words = {word for questions in sets.values() for word in _words(questions)}
        vectors = _restricted(_read(config.glove), config.glove, words)
        known = {word.lower() for word in vectors.words}
        unknown = sum(word.lower() not in known for word in words) / len(words)
        log.info("%.1f%% of the distinct words have no vector", 100 * unknown)
    elif config.model.get("train_vectors", True):
        vectors = random_vectors(_words(sets["train"]), config.glove.dim or RANDOM_DIM, config.seed)
    else:
        raise ConfigError(
            "model.train_vectors: without a file of word vectors (glove=none) they are random and must be"
            " trained; set it to true or name a file (glove=file glove.path=...)"
        )
    return with_buckets(vectors, config.selection.unknown_buckets, config.seed)


def assumed_shape(settings: Glove) -> tuple[int, int] | None:
    """(words, width) of a config's vectors; None with ``glove.use=false``, 0 words without a file.

    Raises DataError where the file cannot be read.
    """
    if not settings.use:
        return None
    if settings.path:
        vectors = _read(settings)
        return len(vectors.words) + 1, vectors.dim
    return 0, settings.dim or GLOVE_DIM


def assumed_vectors(settings: Glove, words: int) -> WordVectors:
    """``words`` vectors of zeros, for a config without a file."""
    return WordVectors((), np.zeros((1 + words, settings.dim or GLOVE_DIM), np.float32))


def _read(settings: Glove) -> WordVectors | PackagedVectors:
    files = packaged_files(str(settings.path))
    if files is None:
        return read_vectors(str(settings.path), dim=settings.dim, backend=settings.backend)
    vectors = PackagedVectors(files)
    if settings.dim not in (None, vectors.dim):
        raise DataError(f"{settings.path}: vectors of {vectors.dim} numbers, glove.dim says {settings.dim}")
    return vectors


def _restricted(vectors: WordVectors | PackagedVectors, settings: Glove, words: Iterable[str]) -> WordVectors:
    return vectors.only({*vectors.words[: settings.keep], *words})


def _words(questions: SelectionSet) -> Iterable[str]:
    for question in questions.questions:
        yield from question.question
    for answer in questions.answers:
        yield from answer
