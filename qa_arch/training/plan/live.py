"""How many bytes of tensors are alive after each operation: what an allocator would be asked for."""

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
FEW = 2
"""Rows of the smaller batch that is measured: with a single one torch spares some copies."""


class LiveBytes(TorchDispatchMode):
    """While entered, ``series`` gets the bytes of living tensors that were made inside, after each operation.

    A storage counts once, however many views it has, and until the last reference to it is gone. What a
    kernel takes and gives back within itself is not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.series: list[int] = []
        self.now = 0
        self._alive: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {storage._cdata for storage in _storages((args, kwargs))}
        for storage in _storages(out):
            if storage._cdata not in given and storage._cdata not in self._alive:
                self._meet(storage)
        self.series.append(self.now)
        return out

    def _meet(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        self.now += size
        self._alive[key] = weakref.ref(storage, lambda _: self._part(key, size))

    def _part(self, key: int, size: int) -> None:
        self.now -= size
        del self._alive[key]


def _storages(value: Any) -> Iterable[torch.UntypedStorage]:
    for leaf in tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            yield leaf.untyped_storage()


@dataclass(frozen=True)
class Lines:
    """The living bytes of one pass over a batch, operation by operation, as lines over the batch's rows.

    What an operation makes is either the same for every batch or proportional to its rows, so the bytes
    after each operation lie on a line, which two passes give: over ``FEW`` rows and over one more.
    """

    few: Series
    more: Series
    gradients: Series
    """Bytes of parameters' gradients, which stay, in the pass over ``FEW`` rows."""

    def peak(self, rows: int, *, accumulated: bool = False) -> int:
        """Most bytes at a time over ``rows`` rows, gradients included.

        ``accumulated``: the gradients are there from the beginning, left by an earlier part of the batch;
        then the peak is right to the size of one parameter.
        """
        live = self.few + (rows - FEW) * (self.more - self.few)
        if accumulated:
            live = live + self.gradients[-1] - self.gradients
        return int(live.max())


def lines(once: Callable[[int], Any], parameters: Iterable[torch.nn.Parameter] = ()) -> Lines:
    """What ``once(rows)`` takes. Before it is counted it is called once, as that may fill caches."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    once(1)
    (few, gradients), (more, _) = _run(once, FEW, trained), _run(once, FEW + 1, trained)
    if len(few) == len(more):
        return Lines(few, more, gradients)
    # Operations that depend on what is in the batch: only the peaks can be set against each other.
    return Lines(*(series.max(keepdims=True) for series in (few, more, gradients)))


def _run(
    once: Callable[[int], Any], rows: int, trained: Iterable[torch.nn.Parameter]
) -> tuple[Series, Series]:
    for parameter in trained:
        parameter.grad = None
    counter = LiveBytes()
    with _gradients(trained, counter) as sizes, counter:
        once(rows)
    counter.series.append(counter.now)
    made = np.zeros(len(counter.series), np.int64)
    for at, size in sizes:
        made[at:] += size
    return np.array(counter.series, np.int64), made


@contextmanager
def _gradients(trained: Iterable[torch.nn.Parameter], counter: LiveBytes) -> Iterator[list[tuple[int, int]]]:
    """By gradient: at which operation it was there, and its bytes."""
    sizes: list[tuple[int, int]] = []

    def note(parameter: torch.Tensor) -> None:
        sizes.append((len(counter.series), parameter.numel() * parameter.element_size()))

    handles = [parameter.register_post_accumulate_grad_hook(note) for parameter in trained]
    try:
        yield sizes
    finally:
        for handle in handles:
            handle.remove()
