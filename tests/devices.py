"""A simulated device: it computes on the CPU, and refuses operations on tensors of two devices, like a GPU.

Models, losses, readers and whole trainings run on it with the results that they have on the CPU, so that code
which forgets a device fails in tests without a GPU.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

import pytorch_lightning as pl
import torch
from pytorch_lightning.accelerators import Accelerator
from pytorch_lightning.strategies import SingleDeviceStrategy
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as trees
from torch.utils import backend_registration as registration
from torch.utils._python_dispatch import TorchDispatchMode

NAME = "simulated"
MOVING = ("aten::_to_copy", "aten::copy_", "aten::_local_scalar_dense")
INDEXING = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
"""Operations in which a GPU's tensor may be indexed by one of the CPU."""


class OnDevice(Tensor):
    """A tensor of the device, and ``held``, its values on the CPU."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "OnDevice":
        of: Any = {"strides": held.stride(), "storage_offset": held.storage_offset(), "dtype": held.dtype}
        made = Tensor._make_wrapper_subclass(cls, held.shape, device=torch.device(NAME, 0), **of)
        made.held = held
        return made

    def __repr__(self) -> str:
        return f"OnDevice({self.held})"

    def __reduce_ex__(self, protocol: Any) -> Any:  # in a checkpoint
        return self.held.__reduce_ex__(protocol)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(func, args, kwargs or {})


class _Operations(TorchDispatchMode):
    """Those without a tensor of the device, such as ``torch.zeros(2, device=...)``."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(func, args, kwargs or {})


class _Functions(TorchFunctionMode):
    """Functions that make or read tensors without an operation; an index may be a list."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.tensor and _is_ours(kwargs.get("device")):
            return func(*args, **{**kwargs, "device": "cpu"}).to(kwargs["device"])
        if func is Tensor.__getitem__ and isinstance(args[1], list):
            args = (args[0], torch.tensor(args[1]))
        if func is Tensor.tolist and isinstance(args[0], OnDevice):
            return args[0].held.tolist()
        return func(*args, **kwargs)


class _Simulated(Accelerator):
    """The device, for Lightning's Trainer."""

    def setup_device(self, device: torch.device) -> None:
        pass

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        return {}

    def teardown(self) -> None:
        pass

    @staticmethod
    def parse_devices(devices: Any) -> list[int]:
        return [0]

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        return [torch.device(NAME, 0)]

    @staticmethod
    def auto_device_count() -> int:
        return 1

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def name() -> str:
        return NAME


@contextmanager
def simulated() -> Iterator[torch.device]:
    """Have the device, on which Lightning's Trainer then trains. Inference mode is only ``no_grad``, as its
    tensors cannot be wrapped."""
    _register()
    device, trainer = torch.device(NAME, 0), pl.Trainer
    there = {"accelerator": _Simulated(), "devices": 1, "strategy": SingleDeviceStrategy(device)}
    training = patch.object(pl, "Trainer", lambda **settings: trainer(**{**settings, **there}))
    # Autograd's own threads for a device begin with the first gradients of a process, and are for others.
    one_thread = torch.autograd.set_multithreading_enabled(False)
    with training, patch("torch.inference_mode", torch.no_grad), one_thread, _Operations(), _Functions():
        yield device


@cache
def _register() -> None:
    """Make the name known to torch; other tests must not take the device for one that is available."""

    class Module(registration._DummyBackendModule):
        def is_available(self) -> bool:
            return False

        def get_amp_supported_dtype(self) -> list[torch.dtype]:
            return [torch.bfloat16, torch.float16]

    class Hook(registration._DummyPrivateUse1Hook):
        def is_available(self) -> bool:
            return False

    registration._setup_privateuseone_for_python_backend(NAME, backend_module=Module(), hook=Hook())


def _is_ours(device: Any) -> bool:
    return device is not None and torch.device(device).type == NAME


def _compute(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Compute an operation on the CPU, unless it mixes devices."""
    name = func._schema.name
    tensors = [leaf for leaf in trees.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    ours = [tensor for tensor in tensors if isinstance(tensor, OnDevice)]
    _require_one_device(name, args, [x for x in tensors if x.dim() and not isinstance(x, OnDevice)], ours)
    device = kwargs.get("device")
    result_is_ours = _is_ours(device) if device is not None else bool(ours)
    if name == "aten::copy_":
        result_is_ours = isinstance(args[0], OnDevice)
    if _is_ours(device):
        kwargs = {**kwargs, "device": torch.device("cpu")}
    given = trees.tree_map_only(OnDevice, lambda tensor: tensor.held, (args, kwargs))
    result = CELL.get(name, func)(*given[0], **given[1])
    changed = {id(tensor.held): tensor for tensor in ours}  # in place, or given back

    def wrapped(value: Tensor) -> Tensor:
        return changed[id(value)] if id(value) in changed else OnDevice(value)

    return trees.tree_map_only(Tensor, wrapped, result) if result_is_ours else result


def _require_one_device(name: str, args: Any, others: list[Tensor], ours: list[OnDevice]) -> None:
    """Raise RuntimeError where a GPU would; numbers of the CPU may take part everywhere."""
    if not ours or not others or name in MOVING:
        return
    indices = args[1] if name in INDEXING and isinstance(args[0], OnDevice) else ()
    if not all(any(other is index for index in indices) for other in others):
        raise RuntimeError(f"{name}: Expected all tensors to be on the same device")


def _cell(x: Tensor, h: Tensor, c: Tensor, x_bias: Any = None, h_bias: Any = None) -> tuple[Tensor, ...]:
    """An LSTM cell, for which torch has a kernel on every device but the CPU."""
    gates = x + h + (0 if x_bias is None else x_bias + h_bias)
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    state = f * c + i * g
    return o * state.tanh(), state, torch.cat([i, f, g, o], 1)


def _cell_backward(
    grad_h: Any, grad_c: Any, c: Tensor, state: Tensor, gates: Tensor, bias: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    i, f, g, o = gates.chunk(4, 1)
    grad_h = torch.zeros_like(c) if grad_h is None else grad_h
    grad = grad_h * o * (1 - state.tanh() ** 2) + (0 if grad_c is None else grad_c)
    inner = [grad * g * i * (1 - i), grad * c * f * (1 - f), grad * i * (1 - g**2)]
    grads = torch.cat([*inner, grad_h * state.tanh() * o * (1 - o)], 1)
    return grads, grad * f, grads.sum(0) if bias else None


CELL: Mapping[str, Any] = {
    "aten::_thnn_fused_lstm_cell": _cell,
    "aten::_thnn_fused_lstm_cell_backward_impl": _cell_backward,
}
