"""The model that a config's ``model`` section names, built with its encoder and word vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from qa_arch.config.schema import MODEL_INPUTS
from qa_arch.config.target import TRUSTED, accepts, arguments, locate
from qa_arch.errors import ConfigError
from qa_arch.features.glove import WordVectors
from qa_arch.nn.word_encoder import AnyEncoder


def check_model(
    section: Mapping[str, Any], trusted: Sequence[str] = TRUSTED, *, with_vectors: bool = False
) -> type[nn.Module]:
    """The class that ``section`` names, after its arguments were checked; loads no weights."""
    target = locate(section.get("_target_"), trusted, where="model")
    inputs = MODEL_INPUTS[section.get("task", "span")]
    if not issubclass(target, nn.Module) or not accepts(target, inputs[0]):
        raise ConfigError(
            f"model._target_: {target.__name__} is no model for task {section.get('task', 'span')}:"
            f" a torch module that takes {inputs[0]} is wanted"
        )
    arguments(target, section, inputs, trusted=trusted)
    if with_vectors and not accepts(target, "vectors"):
        raise ConfigError(f"glove: {target.__name__} takes no word vectors; use glove=none")
    return target


def build_model(
    section: Mapping[str, Any],
    encoder: AnyEncoder | None,
    vectors: Tensor | WordVectors | None = None,
    trusted: Sequence[str] = TRUSTED,
) -> nn.Module:
    """The model; ``vectors`` (V, d) are the word vectors, row 0 the unknown word, or None."""
    target = check_model(section, trusted, with_vectors=vectors is not None)
    if encoder is not None and encoder.out_dim == 0 and vectors is None:
        raise ConfigError(
            "encoder=words reads word vectors alone and there are none: give glove=file glove.path=..., or"
            " learn some with encoder.width and encoder.vocabulary"
        )
    inputs = MODEL_INPUTS[section.get("task", "span")]
    matrix = torch.from_numpy(vectors.matrix) if isinstance(vectors, WordVectors) else vectors
    offered = {"encoder": encoder, "vectors": matrix}
    given = {name: offered[name] for name in inputs if accepts(target, name)}
    return target(**given, **arguments(target, section, inputs, trusted=trusted))
