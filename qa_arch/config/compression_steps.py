"""Steps that made a finished run smaller: the section ``compression`` of its config.

The other sections are those of the original run, so that the config describes how the weights were made.
``qa_arch.extras.compression`` executes the steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from qa_arch.config.check import Range


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """Training after a step, with the original settings except for these."""

    epochs: Annotated[int, Range(0)] = 0
    """0: no training."""
    lr: Annotated[float, Range(0, above=True)] | None = None
    """Learning rate; the rate outside the encoder changes in proportion. None: the original one."""


@dataclass(frozen=True, kw_only=True)
class Magnitude(Recovery):
    """Set the smallest weights to zero and keep them there (Han et al. 2015)."""

    method: Literal["magnitude"] = "magnitude"
    sparsity: Annotated[float, Range(0, 1, above=True, below=True)]
    """Share of zeros at the end among the weights in matrices, excluding lookup tables."""
    scope: Literal["global", "layer"] = "global"
    """Prune the smallest weights of the whole model, or the same share of each matrix."""
    ramp: Annotated[float, Range(0, 1)] = 0.5
    """Share of the recovery's optimizer steps over which the sparsity rises; 0: immediately."""


@dataclass(frozen=True, kw_only=True)
class Heads(Recovery):
    """Keep the most important attention heads, the same number in each layer."""

    method: Literal["heads"] = "heads"
    heads: Annotated[int, Range(1)]
    windows: Annotated[int, Range(1)] = 1024
    """Number of training windows to estimate importance on."""


@dataclass(frozen=True, kw_only=True)
class Widths(Recovery):
    """Keep the most important feed-forward units, the same number in each layer."""

    method: Literal["widths"] = "widths"
    width: Annotated[int, Range(1)]
    windows: Annotated[int, Range(1)] = 1024
    """Number of training windows to estimate importance on."""


@dataclass(frozen=True, kw_only=True)
class Layers(Recovery):
    """Keep some layers of the encoder, unchanged."""

    method: Literal["layers"] = "layers"
    layers: Annotated[int, Range(1)]
    choose: Literal["every_other", "first"] = "every_other"
    """Evenly spaced layers, starting with the first, or the first layers."""


Step = Magnitude | Heads | Widths | Layers
METHODS: dict[str, type[Step]] = {schema.method: schema for schema in get_args(Step)}
