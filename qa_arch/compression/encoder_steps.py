"""The steps that leave an encoder with fewer layers, heads or units, on the data of a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from qa_arch.compression.parents import ParentRun
from qa_arch.compression.structured import (
    Pruner,
    chosen_layers,
    head_count,
    importance,
    with_heads,
    with_layers,
    with_widths,
)
from qa_arch.config.compression_steps import Heads, Int8, Layers, Widths
from qa_arch.config.schema import Config
from qa_arch.errors import ConfigError
from qa_arch.export.graph import sample
from qa_arch.nn.encoder import Encoder
from qa_arch.tasks.base import device_of
from qa_arch.tasks.span import SpanParts, SpanTask
from qa_arch.training.datamodule import TrainingData
from qa_arch.types.tensors import Batch

EncoderStep = Layers | Heads | Widths


def check_encoder(parent: ParentRun, step: EncoderStep | Int8) -> None:
    """ConfigError where the model has no encoder, or less of it than the step is to leave."""
    model: Any = parent.predictor.model
    if not isinstance(model.encoder, Encoder):
        raise ConfigError(
            f"{parent.name.run}: reads words, and has no encoder that could become smaller; choose --method"
            " magnitude"
        )
    if isinstance(step, Layers):
        _require_fewer("layers", step.layers, model.encoder.depth)
    elif isinstance(step, Heads):
        _require_fewer("heads", step.heads, head_count(model.encoder))
    elif isinstance(step, Widths):
        _require_fewer("width", step.width, _pruner(parent).of("units")[0].linear.in_features)


def _require_fewer(option: str, wanted: int, there: int) -> None:
    if wanted >= there:
        raise ConfigError(f"{option}: {wanted} are no fewer than the {there} that there are")


def smaller_encoder(
    task: SpanTask, config: Config, parts: SpanParts, parent: ParentRun, step: EncoderStep
) -> Encoder:
    """The encoder of ``parts.model``, which is the parent's, with what the step leaves of it."""
    model: Any = parts.model
    if isinstance(step, Layers):
        chosen = chosen_layers(model.encoder.depth, step.layers, step.choose)
        return with_layers(model.encoder, chosen, sample(parent.predictor))
    pruner = _pruner(parent)
    of_heads = isinstance(step, Heads)
    maps = pruner.of("heads" if of_heads else "units")
    device = device_of(config)
    model.to(device)
    scores = importance(
        model,
        maps,
        maps[0].linear.in_features // head_count(model.encoder) if of_heads else 1,
        _training_batches(task, config, parts, step.windows, device),
        lambda batch: parts.loss(model(batch), task.labels(batch)) * task.weight(batch),
    )
    model.to("cpu")
    if isinstance(step, Heads):
        return with_heads(pruner, step.heads, scores)
    return with_widths(pruner, step.width, scores)


def _pruner(parent: ParentRun) -> Pruner:
    model: Any = parent.predictor.model
    return Pruner(model.encoder, sample(parent.predictor))


def _training_batches(
    task: SpanTask, config: Config, parts: SpanParts, windows: int, device: str
) -> Iterator[Batch]:
    """Batches of the first epoch, until that many windows were seen."""
    batches, seen = task.batches(config, parts), 0
    for rows in TrainingData.of(config, batches).sampler():
        yield batches.train(rows).to(device)
        seen += len(rows)
        if seen >= windows:
            return
