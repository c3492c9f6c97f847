"""Steps by which a finished run was made smaller: the section ``compression`` of its config.

The other sections stay those of the run that was begun with, so that the whole says how the weights came
about. ``qa_arch.extras.compression`` takes the steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from qa_arch.config.check import Range


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """Training behind the step, with the settings of the first training but these."""

    epochs: Annotated[int, Range(0)] = 0
    """0: nothing is trained."""
    lr: Annotated[float, Range(0, above=True)] | None = None
    """Learning rate, that outside the encoder in proportion; None: as before."""


@dataclass(frozen=True, kw_only=True)
class Magnitude(Recovery):
    """The smallest weights become zero and stay it (Han et al. 2015)."""

    method: Literal["magnitude"] = "magnitude"
    sparsity: Annotated[float, Range(0, 1, above=True, below=True)]
    """Share of the weights in matrices, lookup tables aside, that are zero at the end."""
    scope: Literal["global", "layer"] = "global"
    """Whether weights compete in the whole model, or each matrix loses the same share."""
    ramp: Annotated[float, Range(0, 1)] = 0.5
    """Share of the recovery's optimizer steps over which the sparsity rises; 0: at once."""


@dataclass(frozen=True, kw_only=True)
class Heads(Recovery):
    """The most important attention heads of each layer stay, as many in each."""

    method: Literal["heads"] = "heads"
    heads: Annotated[int, Range(1)]
    windows: Annotated[int, Range(1)] = 1024
    """Training windows that importance is estimated on."""


@dataclass(frozen=True, kw_only=True)
class Widths(Recovery):
    """The most important units between the two feed-forward maps of each layer stay, as many in each."""

    method: Literal["widths"] = "widths"
    width: Annotated[int, Range(1)]
    windows: Annotated[int, Range(1)] = 1024
    """Training windows that importance is estimated on."""


@dataclass(frozen=True, kw_only=True)
class Layers(Recovery):
    """Some layers of the encoder stay whole."""

    method: Literal["layers"] = "layers"
    layers: Annotated[int, Range(1)]
    choose: Literal["every_other", "first"] = "every_other"
    """Layers at equal distances from the first on, or the first ones."""


@dataclass(frozen=True, kw_only=True)
class Int8:
    """The encoder's linear maps are stored in int8, and read so (``nn.precision``)."""

    method: Literal["int8"] = "int8"
    embeddings: bool = False
    """The encoder's lookup tables too."""


Step = Magnitude | Heads | Widths | Layers | Int8
METHODS: dict[str, type[Step]] = {schema.method: schema for schema in get_args(Step)}


def stored_in_int8(steps: Iterable[Step] | None) -> bool:
    """Whether the weights are those of a run that was stored in int8, which is the last step."""
    return any(isinstance(step, Int8) for step in steps or ())
