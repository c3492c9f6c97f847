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
    if fault := _fault(output, wanted, axes_of(batch)):
        raise OutputError(f"{source_line(type(model).forward)}: {type(model).__name__}.forward{fault}")


def check_losses(loss: Any, batch: Any, losses: Any) -> None:
    """Raise OutputError where a loss gives anything but a number for each row of the batch."""
    if not isinstance(losses, Tensor) or losses.shape != (len(batch),):
        place = source_line(type(loss).__call__ if not inspect.isroutine(loss) else loss)
        raise OutputError(
            f"{place}: {type(loss).__name__} returns {_shown(losses)}, expected (B,) = ({len(batch)},):"
            " the loss of each row, without a mean over them"
        )


def axes_of(batch: Any) -> dict[str, int]:
    """Size of each named axis of a batch: ``{"B": 4, "T": 96}``."""
    axes: dict[str, int] = {}
    for field, hint in get_type_hints(type(batch)).items():
        value, names = getattr(batch, field), _names(hint)
        if names and isinstance(value, Tensor):
            axes |= dict(zip(names, value.shape, strict=True))
    return axes


def source_line(function: Any) -> str:
    """``FILE:LINE`` of a function or method, from the current folder where it lies in there."""
    try:
        path = Path(inspect.getsourcefile(function) or "?")
        line = inspect.getsourcelines(function)[1]
    except (OSError, TypeError):
        return "?"
    return f"{short_path(path)}:{line}"


def short_path(path: Path) -> Path:
    """The path from the current folder, where it lies in there."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _fault(output: Any, wanted: Any, axes: dict[str, int]) -> str | None:
    """What is wrong with an output, to be read after the name of the method; None where nothing is."""
    if not is_dataclass(wanted):
        return _fault_of_field("the output", output, wanted, axes)
    name = wanted.__name__  # type: ignore[union-attr]
    if not isinstance(output, wanted):  # type: ignore[arg-type]
        return f" returns a {type(output).__name__}; a {name} is wanted"
    hints = get_type_hints(wanted).items()
    faults = (_fault_of_field(f"{name}.{key}", getattr(output, key), hint, axes) for key, hint in hints)
    return next(filter(None, faults), None)


def _fault_of_field(field: str, value: Any, hint: Any, axes: dict[str, int]) -> str | None:
    """Also adds the axes that only the output has to ``axes``, from the first field with them."""
    names = _names(hint)
    if names is None or (value is None and type(None) in get_args(hint)):
        return None
    if isinstance(value, Tensor) and value.ndim == len(names):
        for name, size in zip(names, value.shape, strict=True):
            axes.setdefault(name, size)
    expected = tuple(axes.get(name, "any") for name in names)
    if not isinstance(value, Tensor) or tuple(value.shape) != expected:
        return f": {field} is {_shown(value)}, expected {_axes(names)} = {_axes(expected)}"
    if not value.is_floating_point():
        return f": {field} holds {value.dtype}; scores are floating-point numbers"
    return None


def _names(hint: Any) -> list[str] | None:
    """Axes of ``Float[Tensor, "B T"]`` or ``Float[Tensor, "B T"] | None``; None for other annotations."""
    for part in (hint, *get_args(hint)):
        if (axes := getattr(part, "dim_str", None)) is not None:
            return axes.split()
    return None


def _shown(value: Any) -> str:
    return _axes(tuple(value.shape)) if isinstance(value, Tensor) else f"a {type(value).__name__}"


def _axes(values: Any) -> str:
    """As Python shows a tuple, names without quotes."""
    return f"({', '.join(map(str, values))}{',' if len(values) == 1 else ''})"
