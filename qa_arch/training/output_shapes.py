"""Check the output shapes of models and losses against those that their task expects.

Expected shapes are the annotations of the output's fields, ``Float[Tensor, "B T"]``, with the sizes of the
batch.
"""

from __future__ import annotations

import inspect
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

from torch import Tensor, nn

from qa_arch.errors import QaArchError


class OutputError(QaArchError):
    """Output of a model or a loss that its task does not accept; the message names file, line and field."""


def check_output(model: nn.Module, batch: Any, output: Any, expected_type: Any) -> None:
    """Raise OutputError unless ``output`` fits its type: a dataclass of tensors or a tensor of named axes."""
    place = f"{_source_line(type(model).forward)}: {type(model).__name__}.forward"
    fields = [("the output", output, expected_type)]
    if is_dataclass(expected_type):
        name = getattr(expected_type, "__name__", "record")
        if not isinstance(output, expected_type):  # type: ignore[arg-type]
            raise OutputError(f"{place} returns a {type(output).__name__}, expected a {name}")
        hints = get_type_hints(expected_type).items()
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
                axes.setdefault(name, size)  # the first field sets axes that the batch lacks
        expected = tuple(axes.get(name, "any") for name in names)
        if not isinstance(value, Tensor) or tuple(value.shape) != expected:
            shapes = f"expected {_shown(names)} = {_shown(expected)}"
            raise OutputError(f"{place}: {field} is {_shown(value)}, {shapes}")
        if not value.is_floating_point():
            raise OutputError(f"{place}: {field} holds {value.dtype}; scores must be floating point")


def check_losses(loss: Any, batch: Any, losses: Any) -> None:
    """Raise OutputError unless a loss returns one value per row of the batch."""
    if not isinstance(losses, Tensor) or losses.shape != (len(batch),):
        place = _source_line(type(loss).__call__ if not inspect.isroutine(loss) else loss)
        raise OutputError(
            f"{place}: {type(loss).__name__} returns {_shown(losses)}, expected (B,) = ({len(batch)},):"
            " one loss per row, not reduced"
        )


def _axes(hint: Any) -> tuple[str, ...] | None:
    """Axis names of ``Float[Tensor, "B T"]``, also of ``Float[...] | None``; None for other annotations."""
    for part in (hint, *get_args(hint)):
        if (axes := getattr(part, "dim_str", None)) is not None:
            return tuple(axes.split())
    return None


def _source_line(function: Any) -> str:
    """``FILE:LINE`` of a function or method, relative to the current folder if inside it."""
    try:
        path = Path(inspect.getsourcefile(function) or "?")
        line = inspect.getsourcelines(function)[1]
    except (OSError, TypeError):
        return "?"
    return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{line}"


def _shown(value: Any) -> str:
    """Shape or axis names, formatted as a tuple without quotes; the type of a value without a shape."""
    if isinstance(value, Tensor):
        value = tuple(value.shape)
    if not isinstance(value, tuple):
        return f"a {type(value).__name__}"
    return f"({', '.join(map(str, value))}{',' if len(value) == 1 else ''})"
