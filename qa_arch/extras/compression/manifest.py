"""Manifest of the compression extra: ``compression=`` of ``qa-arch train init_from=RUN``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

from qa_arch.config.check import Range
from qa_arch.errors import ConfigError
from qa_arch.manifest import Extra, ModelChange

SETTINGS = {
    "magnitude": {"sparsity", "scope", "ramp"},
    "heads": {"keep", "windows"},
    "widths": {"keep", "windows"},
    "layers": {"keep", "choose"},
}
"""Method -> its settings."""
LABELS = {"heads": "heads", "widths": "ffn", "layers": "layers"}


@dataclass(frozen=True)
class Compression(ModelChange):
    """One step that makes a trained model smaller; of another method's settings none has a value."""

    method: Literal["magnitude", "heads", "widths", "layers"]
    """What is pruned: the smallest weights (Han et al. 2015), attention heads, feed-forward units, layers."""
    keep: Annotated[int, Range(1)] | None = None
    """Number of heads or units that remain in each layer, or of layers."""
    sparsity: Annotated[float, Range(0, 1, above=True, below=True)] | None = None
    """Share of zeros at the end among the weights in matrices, excluding lookup tables."""
    scope: Literal["global", "layer"] | None = None
    """Prune the smallest weights of the whole model, or the same share of each matrix."""
    ramp: Annotated[float, Range(0, 1)] | None = None
    """Share of the optimizer steps over which the sparsity rises; 0: immediately."""
    windows: Annotated[int, Range(1)] | None = None
    """Number of training windows to estimate the importance of heads and units on."""
    choose: Literal["every_other", "first"] | None = None
    """Evenly spaced layers, starting with the first, or the first layers."""

    def __post_init__(self) -> None:
        given = {item.name for item in fields(self) if getattr(self, item.name) is not None} - {"method"}
        for name in sorted(given ^ SETTINGS[self.method]):
            problem = "is not a setting" if name in given else "is missing, which is needed"
            raise ConfigError(f"compression.{name}: {problem} with compression={self.method}")

    @property
    def label(self) -> str:
        if self.method == "magnitude":
            return f"sparse{100 * (self.sparsity or 0):g}"
        return f"{'first' if self.choose == 'first' else ''}{LABELS[self.method]}{self.keep}"

    @property
    def settings(self) -> Mapping[str, Any]:
        """While the sparsity rises, only the last epoch has the final one."""
        return {"trainer.select": "last", "trainer.patience": 0} if self.method == "magnitude" else {}

    def check(self, config: Any) -> None:
        import_module(f"{__package__}.pruning").check(self, config)

    def change(self, config: Any, parts: Any) -> Any:
        return import_module(f"{__package__}.pruning").change(self, config, parts)


EXTRA = Extra("compression", sections={"compression": Compression}, conf=Path(__file__).parent / "conf")
