"""Check a model section before anything heavy is imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from qa_arch.config.target import TRUSTED, accepts, arguments, locate, source_line
from qa_arch.errors import ConfigError

INPUTS = ("encoder", "vectors")
"""Arguments of span models that are built from other sections of the config."""


def check_model(
    section: Mapping[str, Any],
    trusted: Sequence[str] = TRUSTED,
    *,
    inputs: Sequence[str] = INPUTS,
    with_vectors: bool = False,
) -> type[nn.Module]:
    """Return the class that ``section`` names, its arguments checked; loads no weights.

    It must have the first of the arguments ``inputs``, which the section may not set.
    """
    target = locate(section.get("_target_"), trusted, where="model")
    if not issubclass(target, nn.Module) or not accepts(target, inputs[0]):
        place = source_line(target.__init__)  # type: ignore[misc]
        raise ConfigError(
            f"model._target_: {target.__name__} is not a model for task {section.get('task')}, which"
            f" needs a torch module with an argument named {inputs[0]} ({place})"
        )
    arguments(target, section, inputs, trusted=trusted)
    if with_vectors and not accepts(target, "vectors"):
        raise ConfigError(f"glove: {target.__name__} takes no word vectors; use glove=none")
    return target
