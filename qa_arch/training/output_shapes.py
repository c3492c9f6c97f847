"""Shapes of what a model or a loss gives, held against what their task wants of them.

What is wanted is the annotation of the record's fields, ``Float[Tensor, "B T"]``; the sizes of the axes are
those of the batch.
"""

from __future__ import annotations

import inspect
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

from torch import Tensor, nn

from qa_arch.errors import QaArchError


class OutputError(QaArchError):
    """A model or a loss gives something else than its task wants; the message names file, line and field."""


def check_output(model: nn.Module, batch: Any, output: Any, wanted: Any) -> None:
    """Raise OutputError where ``output`` is no ``wanted``: a record of tensors, or a tensor of named axes."""
    place = f"{_source_line(type(model).forward)}: {type(model).__name__}.forward"
    fields = [("the output", output, wanted)]
    if is_dataclass(wanted):
        name = getattr(wanted, "__name__", "record")
        if not isinstance(output, wanted):  # type: ignore[arg-type]
            raise OutputError(f"{place} returns a {type(output).__name__}; a {name} is wanted")
        hints = get_type_hints(wanted).items()
        fields = [(f"{name}.{key}", getattr(output, key), hint) for key, hint in hints]
    axes: dict[str, int] = {}
    for key, hint in get_type_hints(type(batch)).items():
        value = getattr(batch, key)
        if (names := _axes(hint)) and isinstance(value, Tensor):
            axes |= dict(zip(names, value.shape, strict=True))
    for field, value, hint in fields:
        names = _axes(hint)
        if names is None or (value is None and type(None) in get_args(hint)):
            continue
        if isinstance(value, Tensor) and value.ndim == len(names):
            for name, size in zip(names, value.shape, strict=True):
                axes.setdefault(name, size)  # an axis that only the output has is that of its first field
        expected = tuple(axes.get(name, "any") for name in names)
        if not isinstance(value, Tensor) or tuple(value.shape) != expected:
            shapes = f"expected {_shown(names)} = {_shown(expected)}"
            raise OutputError(f"{place}: {field} is {_shown(value)}, {shapes}")
        if not value.is_floating_point():
            raise OutputError(f"{place}: {field} holds {value.dtype}; scores are floating-point numbers")


def check_losses(loss: Any, batch: Any, losses: Any) -> None:
    """Raise OutputError where a loss gives anything but a number for each row of the batch."""
    if not isinstance(losses, Tensor) or losses.shape != (len(batch),):
        place = _source_line(type(loss).__call__ if not inspect.isroutine(loss) else loss)
        raise OutputError(
            f"{place}: {type(loss).__name__} returns {_shown(losses)}, expected (B,) = ({len(batch)},):"
            " the loss of each row, without a mean over them"
        )


def _axes(hint: Any) -> tuple[str, ...] | None:
    """Axes of ``Float[Tensor, "B T"]`` or ``Float[Tensor, "B T"] | None``; None for other annotations."""
    for part in (hint, *get_args(hint)):
        if (axes := getattr(part, "dim_str", None)) is not None:
            return tuple(axes.split())
    return None


def _source_line(function: Any) -> str:
    """``FILE:LINE`` of a function or method, from the current folder where it lies in there."""
    try:
        path = Path(inspect.getsourcefile(function) or "?")
        line = inspect.getsourcelines(function)[1]
    except (OSError, TypeError):
        return "?"
    return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{line}"


def _shown(value: Any) -> str:
    """A shape, or names of axes, as Python shows a tuple, names without quotes; the type of what has none."""
    if isinstance(value, Tensor):
        value = tuple(value.shape)
    if not isinstance(value, tuple):
        return f"a {type(value).__name__}"
    return f"({', '.join(map(str, value))}{',' if len(value) == 1 else ''})"
