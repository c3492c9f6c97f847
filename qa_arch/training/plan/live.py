"""Bytes of live tensors after each operation, measured on two batch sizes and extrapolated."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Series = NDArray[np.int64]
SMALL_BATCH = 2
"""Rows of the smaller measured batch; with a single row torch avoids some copies."""


class LiveBytes(TorchDispatchMode):
    """Records in ``series`` the bytes of live tensors created in the ``with`` block, after each operation.

    A storage counts once for all its views, until its last reference is gone. Workspace inside a kernel is
    not measured.
    """

    def __init__(self) -> None:
        super().__init__()
        self.series: list[int] = []
        self.current = 0
        self._alive: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        inputs = {storage._cdata for storage in _storages((args, kwargs))}
        for storage in _storages(out):
            if storage._cdata not in inputs and storage._cdata not in self._alive:
                self._register(storage)
        self.series.append(self.current)
        return out

    def _register(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        self.current += size
        self._alive[key] = weakref.ref(storage, lambda _: self._release(key, size))

    def _release(self, key: int, size: int) -> None:
        self.current -= size
        del self._alive[key]


def _storages(value: Any) -> Iterable[torch.UntypedStorage]:
    for leaf in tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            yield leaf.untyped_storage()


@dataclass(frozen=True)
class LinearMemory:
    """Live bytes after each operation of a pass, as linear functions of the number of rows.

    The output of an operation has constant size or is proportional to the rows, so the bytes after each
    operation lie on a line, given by two passes: over ``SMALL_BATCH`` rows and over one more.
    """

    small: Series
    large: Series
    gradients: Series
    """Bytes of the parameters' gradients in the pass over ``SMALL_BATCH`` rows; these stay alive."""

    def peak(self, rows: int, *, accumulated: bool = False) -> int:
        """Peak of live bytes over ``rows`` rows, gradients included.

        ``accumulated``: the gradients exist from the start, left by an earlier part of the batch; then the
        peak is exact up to the size of one parameter.
        """
        live = self.small + (rows - SMALL_BATCH) * (self.large - self.small)
        if accumulated:
            live = live + self.gradients[-1] - self.gradients
        return int(live.max())


def measure_memory(
    run_pass: Callable[[int], Any], parameters: Iterable[torch.nn.Parameter] = ()
) -> LinearMemory:
    """Measure ``run_pass(rows)``, after an uncounted call that may fill caches."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    run_pass(1)
    (small, gradients), (large, _) = (
        _run(run_pass, SMALL_BATCH, trained),
        _run(run_pass, SMALL_BATCH + 1, trained),
    )
    if len(small) == len(large):
        return LinearMemory(small, large, gradients)
    # The operations depend on the content of the batch, so only the peaks are comparable.
    return LinearMemory(*(series.max(keepdims=True) for series in (small, large, gradients)))


def _run(
    run_pass: Callable[[int], Any], rows: int, trained: Iterable[torch.nn.Parameter]
) -> tuple[Series, Series]:
    for parameter in trained:
        parameter.grad = None
    counter = LiveBytes()
    with _gradients(trained, counter) as sizes, counter:
        run_pass(rows)
    counter.series.append(counter.current)
    gradient_bytes = np.zeros(len(counter.series), np.int64)
    for at, size in sizes:
        gradient_bytes[at:] += size
    return np.array(counter.series, np.int64), gradient_bytes


@contextmanager
def _gradients(trained: Iterable[torch.nn.Parameter], counter: LiveBytes) -> Iterator[list[tuple[int, int]]]:
    """For each gradient: the number of operations before it, and its bytes."""
    sizes: list[tuple[int, int]] = []

    def note(parameter: torch.Tensor) -> None:
        sizes.append((len(counter.series), parameter.numel() * parameter.element_size()))

    handles = [parameter.register_post_accumulate_grad_hook(note) for parameter in trained]
    try:
        yield sizes
    finally:
        for handle in handles:
            handle.remove()
