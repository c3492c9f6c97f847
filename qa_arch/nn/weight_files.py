"""Checks of weights and sizes of somebody else's model while it is loaded."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import nn
from torch.nn.modules import module as hooks

from qa_arch.files import read_json
from qa_arch.nn.encoder_configs import INDEX

WEIGHTS = "model.safetensors"
FLOATS = ("F16", "BF16", "F32", "F64")
VALUES_PER_BYTE, MORE_VALUES = 4, 2**20
"""Limit of ``bounded``: a float has two to eight bytes, but loading registers it several times."""


def require_floats(folder: Path) -> None:
    """Raise ValueError for weights that are not floating-point numbers: transformers would convert them.

    Only buffers (``*_ids``) are integers. Raises SafetensorError or OSError for a damaged file.
    """
    names = {WEIGHTS} if (folder / WEIGHTS).is_file() else set()
    if not names and (folder / INDEX).is_file():
        names = set(read_json(folder / INDEX, "fetch it again")["weight_map"].values())
    for path in (folder / name for name in names):
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118 (no mapping)
                kind = file.get_slice(name).get_dtype()
                if kind not in FLOATS and not name.endswith("_ids"):
                    raise ValueError(f"{name} holds {kind}, not {', '.join(FLOATS)}")


@contextmanager
def bounded(folder: Path) -> Iterator[None]:
    """Stop with a ValueError as soon as this thread makes modules with far more values than the files in
    ``folder`` can hold: a description of any size would be built for hours, or fill the memory."""
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    room, builder = VALUES_PER_BYTE * size + MORE_VALUES, threading.get_ident()

    def count(_: nn.Module, name: str, tensor: Any) -> None:
        nonlocal room
        if threading.get_ident() == builder and tensor is not None:
            room -= tensor.numel()
            if room < 0:
                raise ValueError(f"it describes a model far larger than its files ({size:,} bytes)")

    parameters = hooks.register_module_parameter_registration_hook(count)
    buffers = hooks.register_module_buffer_registration_hook(count)
    try:
        yield
    finally:
        parameters.remove()
        buffers.remove()
