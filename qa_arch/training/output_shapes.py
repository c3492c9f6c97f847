"""Check the output shapes of models and losses against those that their task expects.

Expected shapes are the annotations of the output's fields, ``Float[Tensor, "B T"]``, with the sizes of the
batch.
"""

from __future__ import annotations

import inspect
from dataclasses import fields, is_dataclass, replace
from typing import Any, get_args, get_type_hints

import torch
from torch import Tensor, nn

from qa_arch.config.target import source_line
from qa_arch.errors import QaArchError
from qa_arch.types.tensors import Batch


class OutputError(QaArchError):
    """Output of a model or a loss that its task does not accept; the message names file, line and field."""


def check_output(model: nn.Module, batch: Any, output: Any, expected_type: Any) -> None:
    """Raise OutputError unless ``output`` fits its type: a dataclass of tensors or a tensor of named axes."""
    place = f"{source_line(type(model).forward)}: {type(model).__name__}.forward"
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
        if number := int(value.isnan().sum()):
            raise OutputError(
                f"{place}: {field} is NaN in {number:,} of {value.numel():,} places; look for divisions by"
                " zero and rows that are masked completely"
            )


def check_losses(loss: Any, batch: Any, losses: Any) -> None:
    """Raise OutputError unless a loss returns one value per row of the batch."""
    if not isinstance(losses, Tensor) or losses.shape != (len(batch),):
        place = source_line(type(loss).__call__ if not inspect.isroutine(loss) else loss)
        raise OutputError(
            f"{place}: {type(loss).__name__} returns {_shown(losses)}, expected (B,) = ({len(batch)},):"
            " one loss per row, not reduced"
        )


def padding_effect(model: nn.Module, batch: Any) -> float | None:
    """Largest change of the scores of the batch's shortest row when the batch's padding is taken away,
    relative to its largest score, in fp32 without dropout; None without padding or windows."""
    if not isinstance(batch, Batch) or batch.mask.all():
        return None
    mask = batch.mask
    lengths = mask.sum(1)
    short, longest = int(lengths.argmin()), int(lengths.argmax())
    length = int(lengths[short])
    if not mask[short, :length].all():
        return None
    modes = {module: module.training for module in model.modules()}
    try:
        with torch.no_grad(), torch.autocast(mask.device.type, enabled=False):
            padded, alone = (
                _tensors(model.eval()(_rows(batch, rows, width)))
                for rows, width in (([short, longest], mask.shape[1]), ([short], length))
            )
    finally:
        for module, mode in modes.items():
            module.training = mode
    changes, largest = [0.0], [0.0]
    for before, after in zip(alone, padded, strict=True):
        again = after[0][tuple(map(slice, before[0].shape))]
        if (finite := before[0].isfinite() & again.isfinite()).any():
            changes.append(float((again - before[0])[finite].abs().max()))
            largest.append(float(before[0][finite].abs().max()))
    return max(changes) / (max(largest) or 1.0)


def _rows(batch: Any, rows: list[int], width: int) -> Any:
    """The ``rows`` of a batch, with ``width`` tokens."""
    parts = {f.name: getattr(batch, f.name) for f in fields(batch)}
    chosen = {name: part[rows] for name, part in parts.items() if isinstance(part, Tensor)}
    tokens = {name: part[:, :width] for name, part in chosen.items() if parts[name].shape == batch.mask.shape}
    return replace(batch, **{**chosen, **tokens})


def _tensors(output: Any) -> list[Tensor]:
    """The tensors of a model's output."""
    values = [getattr(output, f.name) for f in fields(output)] if is_dataclass(output) else [output]
    return [value for value in values if isinstance(value, Tensor)]


def _axes(hint: Any) -> tuple[str, ...] | None:
    """Axis names of ``Float[Tensor, "B T"]``, also of ``Float[...] | None``; None for other annotations."""
    for part in (hint, *get_args(hint)):
        if (axes := getattr(part, "dim_str", None)) is not None:
            return tuple(axes.split())
    return None


def _shown(value: Any) -> str:
    """Shape or axis names, formatted as a tuple without quotes; the type of a value without a shape."""
    if isinstance(value, Tensor):
        value = tuple(value.shape)
    if not isinstance(value, tuple):
        return f"a {type(value).__name__}"
    return f"({', '.join(map(str, value))}{',' if len(value) == 1 else ''})"
