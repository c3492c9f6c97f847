"""How several devices train together: which of Lightning's strategies, and what each needs."""

from __future__ import annotations

from typing import Any

import torch
from pytorch_lightning.strategies import DDPStrategy, ModelParallelStrategy
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from qa_arch.config import extras
from qa_arch.config.launched import launched
from qa_arch.config.schema import Trainer
from qa_arch.errors import ConfigError
from qa_arch.nn.encoder import Encoder

SHARDED = ("fsdp", "deepspeed")
"""Strategies under which no rank holds the whole of the optimizer's state."""


def name_of(settings: Trainer, world: int) -> str:
    """The strategy as recorded; ``single`` for one process."""
    if settings.strategy in SHARDED:
        return settings.strategy
    return "single" if world == 1 else "ddp" if settings.strategy == "auto" else settings.strategy


def require(settings: Trainer, *, gpu: bool) -> None:
    """Raise ConfigError or UnavailableError where the strategy cannot work here; nothing is loaded yet."""
    count = max(1, torch.cuda.device_count()) if gpu and launched() is None else None
    if count is not None and isinstance(settings.devices, int) and settings.devices > count:
        raise ConfigError(
            f"trainer.devices: {settings.devices}, but {count} GPU{'s are' if count > 1 else ' is'} to be"
            " seen here; ask for no more, or trainer.devices=auto"
        )
    if settings.strategy not in SHARDED:
        return
    if not gpu:
        raise ConfigError(
            f"trainer.strategy: {settings.strategy} shards what GPUs hold, and there is none here;"
            " use trainer=ddp, or trainer=cpu"
        )
    if settings.strategy == "fsdp" and settings.precision == "fp16":
        raise ConfigError("trainer.precision: fsdp has no scaler for fp16; use bf16 or fp32")
    if settings.strategy == "deepspeed":
        # Lightning and DeepSpeed would both divide by it, and an epoch's last few batches would be no step.
        if settings.accumulate > 1:
            raise ConfigError(
                f"trainer.accumulate: {settings.accumulate}, but deepspeed takes a step each batch; use"
                " trainer=fsdp, or trainer.accumulate=1 and trainer.micro_batch=null"
            )
        extras.require("deepspeed", "trainer.strategy", ", or use trainer=fsdp")


def build(name: str, *, world: int) -> Any:
    """The strategy that ``pl.Trainer`` takes."""
    if name == "fsdp":
        return ModelParallelStrategy(
            data_parallel_size=world, tensor_parallel_size=1, save_distributed_checkpoint=False
        )
    if name == "deepspeed":
        from pytorch_lightning.strategies import DeepSpeedStrategy

        return DeepSpeedStrategy(stage=2)
    # Our only buffers are fixed word vectors: they are not sent about.
    return "auto" if name == "single" else DDPStrategy(broadcast_buffers=False)


def shard(model: nn.Module, mesh: DeviceMesh) -> None:
    """Give each rank its share of every parameter (FSDP2), gathered layer by layer as it is needed.

    Zhao et al. 2023, "PyTorch FSDP"; each layer of the encoder is a group, and the rest is the last.
    """
    encoder = getattr(model, "encoder", None)
    for layer in encoder.layers() if isinstance(encoder, Encoder) else ():
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def whole_weights(strategy: Any) -> dict[str, torch.Tensor]:
    """The trained model's weights on rank 0, gathered from all ranks, each of which has to call this."""
    state = strategy.lightning_module_state_dict()
    return {name.removeprefix("model."): value for name, value in state.items() if name.startswith("model.")}
