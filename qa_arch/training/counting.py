"""Counting the parameters of a configured model on the meta device: no weights anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from qa_arch.config.schema import SELECTING, Config
from qa_arch.config.target import TRUSTED
from qa_arch.features.glove import WordVectors, read_vectors
from qa_arch.models.assemble import build_model
from qa_arch.nn.count import parameter_blocks
from qa_arch.training.assemble import load_sets, make_encoder, make_tokenizer
from qa_arch.training.selection.assemble import load_sets as load_selection_sets
from qa_arch.training.selection.assemble import make_vectors

GLOVE_DIM = 300
"""Width assumed where word vectors are wanted and no file is named: GloVe 840B 300d, the thesis's."""


def count(config: Config, trusted: Sequence[str] = TRUSTED) -> dict[str, Any]:
    """total, trainable, blocks and (apart) word_vectors of the model that ``config`` describes.

    ``word_vectors`` is None where they are wanted and no file is named that says how many there are.
    Raises DataError where the file that is named cannot be read: its width would be a guess.
    """
    if config.model["task"] in SELECTING:
        return _count_selection(config, trusted)
    tokenizer = None
    if (
        config.encoder.init == "random" and config.encoder.vocabulary
    ):  # its vocabulary is learned from the training texts
        tokenizer = make_tokenizer(config.encoder, load_sets(config.data)["train"])
    shape = _vector_shape(config)
    with torch.device("meta"):
        encoder = make_encoder(config, tokenizer)
        vectors = None if shape is None else torch.empty(max(1, shape[0]), shape[1])
        model = build_model(config.model, encoder, vectors, trusted)
    counts = asdict(parameter_blocks(model))
    if shape is not None and not shape[0]:
        counts["word_vectors"] = None
    return counts


def _count_selection(config: Config, trusted: Sequence[str]) -> dict[str, Any]:
    """Of trained vectors there are as many as the data and the file have words: these are read."""
    if config.glove.use and not config.glove.path:
        vectors = WordVectors((), np.zeros((1, config.glove.dim or GLOVE_DIM), np.float32))
    else:
        vectors = make_vectors(config, load_selection_sets(config))
    with torch.device("meta"):
        model = build_model(config.model, None, torch.empty(vectors.matrix.shape), trusted)
    return asdict(parameter_blocks(model))


def _vector_shape(config: Config) -> tuple[int, int] | None:
    """(words, width) of the vectors; no words where no file is named."""
    if not config.glove.use:
        return None
    if config.glove.path:
        matrix = read_vectors(config.glove.path, config.glove.dim, backend=config.glove.backend).matrix
        return matrix.shape[0], matrix.shape[1]
    return 0, config.glove.dim or GLOVE_DIM
