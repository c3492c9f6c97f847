"""Inference over a feature table: batches of rows sorted by length, without gradients."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import nn

from qa_arch.features.sampler import BucketBatchSampler
from qa_arch.nn.precision import Precision, mixed
from qa_arch.tasks.base import Collator, OutputCollector, Watch

C = TypeVar("C", bound=OutputCollector)


def read_table(
    model: nn.Module,
    collate: Collator,
    collector: C,
    *,
    batch_size: int,
    precision: Precision = "fp32",
    watch: Watch | None = None,
) -> Any:
    """The collector's result after every row of the collator's table went through ``model`` once.

    Under ``bf16`` and ``fp16`` the forward pass runs in autocast; ``cast_weights`` is what makes it fast.
    The model's training mode is restored afterwards.
    """
    device = device_of(model)
    batches = BucketBatchSampler(collate.lengths, batch_size=batch_size, seed=0, shuffle=False)
    was_training = model.training
    model.eval()
    done, total = 0, len(collate.lengths)
    with torch.inference_mode(), mixed(precision, device.type):
        for rows in batches:
            batch = collate(rows).to(device)
            collector.add(batch, model(batch))
            done += len(batch)
            if watch is not None:
                watch(done, total)
    model.train(was_training)
    return collector.result()


def device_of(model: nn.Module) -> torch.device:
    """Where a model reads: that of its parameters, the CPU where it has none."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
