"""A teacher's logits for every window of a table: computed once, then read from a memory-mapped file.

Training shows each window in every epoch, and a teacher without dropout answers the same each time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from qa_arch.features.cache import cache_file, read_or_build
from qa_arch.features.table import FeatureTable, array_names
from qa_arch.types.tensors import Batch, SpanLogits

TARGETS_VERSION = 1
"""Part of every key; raised when the same teacher and windows give another content."""
BY_TOKEN = ("start", "end")


class ContextTokens:
    """Places of the context tokens of all N windows in columns that hold them side by side, K in all."""

    def __init__(self, table: FeatureTable) -> None:
        lengths = torch.from_numpy(np.asarray(table.token_end - table.token_start, np.int64))
        self.begin = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        """(N + 1,) window n has the places ``[begin[n], begin[n + 1])``."""
        self.context_at = torch.from_numpy(table.context_at.astype(np.int64))

    def __len__(self) -> int:
        return int(self.begin[-1])

    def of(self, rows: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """(B, T) place of every token of these windows, 0 outside of the context; and whether it is in it."""
        offset = torch.arange(width) - self.context_at[rows, None]
        inside = (offset >= 0) & (offset < (self.begin[rows + 1] - self.begin[rows])[:, None])
        return (self.begin[rows, None] + offset).masked_fill(~inside, 0), inside


@dataclass(frozen=True)
class SoftTargets:
    """A teacher's logits for all windows of a table."""

    tokens: ContextTokens
    columns: Mapping[str, Tensor]
    """``start`` and ``end``, (K,), and ``null_start``, ``null_end`` and perhaps ``verifier``, (N,)."""
    verifier_weight: float = 1.0

    def __call__(self, batch: Batch) -> SpanLogits:
        """The logits for the windows of ``batch``, on its token axis and its device."""
        rows = batch.index.cpu()
        places, inside = self.tokens.of(rows, batch.ids.shape[1])
        spread = {
            name: column[places].masked_fill(~inside, -torch.inf)
            if name in ("start", "end")
            else column[rows]
            for name, column in self.columns.items()
        }
        return SpanLogits(**spread, verifier_weight=self.verifier_weight).to(batch.ids.device)


class TargetCollector:
    """Collects the logits of batches, in any order, as soft targets."""

    def __init__(self, table: FeatureTable) -> None:
        self.windows, self.tokens = len(table), ContextTokens(table)
        self.columns: dict[str, Tensor] = {}
        self.verifier_weight = 1.0

    def add(self, batch: Batch, output: SpanLogits) -> None:
        logits, rows = output.to("cpu"), batch.index.cpu()
        places, inside = self.tokens.of(rows, batch.ids.shape[1])
        for name in BY_TOKEN:
            self._column(name, len(self.tokens))[places[inside]] = getattr(logits, name)[inside].float()
        for name in ("null_start", "null_end", "verifier"):
            if (values := getattr(logits, name)) is not None:
                self._column(name, self.windows)[rows] = values.float()
        self.verifier_weight = logits.verifier_weight

    def _column(self, name: str, length: int) -> Tensor:
        if name not in self.columns:
            self.columns[name] = torch.full((length,), -torch.inf)
        return self.columns[name]

    def result(self) -> SoftTargets:
        return SoftTargets(self.tokens, self.columns, self.verifier_weight)


def cached_targets(
    folder: str | None, teacher: Mapping[str, str], table: FeatureTable, build: Callable[[], SoftTargets]
) -> SoftTargets:
    """The targets of ``build``, from ``folder`` where they are there already for this teacher and windows.

    ``teacher``: what its logits depend on. A damaged file is made anew; without ``folder`` nothing is stored.
    """
    if folder is None:
        return build()
    key = {**teacher, "windows": _content(table), "version": TARGETS_VERSION}
    return read_or_build(
        cache_file(folder, key, ".safetensors"),
        "teacher's logits",
        read=lambda path: _read(path, table),
        build=build,
        write=_write,
    )


def _content(table: FeatureTable) -> str:
    """SHA-256 over everything that the windows of a table are made of."""
    total = hashlib.sha256(json.dumps([asdict(table.template), table.vocabulary]).encode())
    for name in array_names():
        total.update(np.ascontiguousarray(getattr(table, name)).data)
    return total.hexdigest()


def _write(path: Path, targets: SoftTargets) -> None:
    try:
        save_file(dict(targets.columns), path, {"verifier_weight": str(targets.verifier_weight)})
    except SafetensorError as error:  # a full disk is no OSError to it
        raise OSError(str(error)) from error


def _read(path: Path, table: FeatureTable) -> SoftTargets:
    """The targets in ``path``; ValueError where they are not of these windows."""
    tokens = ContextTokens(table)
    with safe_open(path, framework="pt") as file:
        columns: dict[str, Any] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        weight = float(file.metadata()["verifier_weight"])
    for name, column in columns.items():
        if len(column) != (len(tokens) if name in BY_TOKEN else len(table)):
            raise ValueError(f"{name} has {len(column)} values")
    return SoftTargets(tokens, columns, weight)
