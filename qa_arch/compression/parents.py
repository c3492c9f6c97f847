"""The run that a smaller one is made of: a finished span run, or a downloaded checkpoint as such a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from qa_arch.config.checkpoints import linear_head_config, run_config
from qa_arch.config.compression_steps import stored_in_int8
from qa_arch.config.schema import Config
from qa_arch.errors import ConfigError, RunError
from qa_arch.export.graph import sample
from qa_arch.models.build import build_model
from qa_arch.models.checkpoint_files import names_checkpoint
from qa_arch.models.onnx_model import GRAPH
from qa_arch.models.span_checkpoint import SpanCheckpoint
from qa_arch.nn.encoder import Encoder
from qa_arch.results.record import read_record
from qa_arch.tasks.loading import load_predictor
from qa_arch.tasks.span_predictor import SpanPredictor
from qa_arch.types.records import Parent, RunRecord

NEAR = 1e-5
"""The logits of a checkpoint and of the run that it becomes differ by no more."""


@dataclass(frozen=True)
class ParentRun:
    """A run in fp32 on the CPU, whose model may be changed."""

    predictor: SpanPredictor
    config: Config
    record: RunRecord
    name: Parent


def open_parent(source: str, trust: Sequence[str] = ()) -> ParentRun:
    """The run of the folder ``source``, or the checkpoint of that folder or hub id.

    Raises RunError for what has no weights of a span model that could become smaller.
    """
    if not names_checkpoint(source):
        _check(source, read_record(source))
    predictor = load_predictor(source, device="cpu", trust=trust)
    if not isinstance(predictor, SpanPredictor) or predictor.record is None:
        raise RunError(f"{source}: this run finds no spans; only models of spans are made smaller")
    record = predictor.record
    if isinstance(predictor.model, SpanCheckpoint):
        revision = str(record.setting("model", "revision"))
        predictor = _linear_run(source, predictor)
        name = Parent(run=record.model, config_hash=record.config_hash, revision=revision)
    else:
        name = Parent(run=Path(source).resolve().name, config_hash=record.config_hash)
    return ParentRun(predictor, predictor.config, record, name)


def _check(source: str, record: RunRecord) -> None:
    """RunError for what can be told from the record alone."""
    if record.selects:
        raise RunError(f"{source}: this run selects answers; only models that find spans are made smaller")
    if (Path(source) / GRAPH).exists():
        raise RunError(f"{source}: a graph cannot become smaller; name the run that it was exported from")
    if stored_in_int8(run_config(record.config).compression):
        raise RunError(
            f"{source}: is stored in int8, which is the last step; name the run that it was made of"
        )


def _linear_run(source: str, predictor: SpanPredictor) -> SpanPredictor:
    """The checkpoint's encoder and linear map as a model of ours, which trains, prunes and exports.

    ConfigError for a checkpoint that is made of something else.
    """
    checkpoint, config = predictor.model, linear_head_config(predictor.record.config)  # type: ignore[union-attr]
    assert isinstance(checkpoint, SpanCheckpoint)
    head = getattr(checkpoint.model, "qa_outputs", None)
    encoder = Encoder.from_description(checkpoint.config.to_dict())
    model: Any = build_model(config.model, encoder)
    try:
        encoder.backbone.load_state_dict(checkpoint.backbone.state_dict())
        model.span.load_state_dict(head.state_dict() if isinstance(head, nn.Linear) else {})
    except RuntimeError as error:
        raise _other_model(source, checkpoint) from error
    linear = SpanPredictor(
        model,
        predictor.tokenizer,
        None,
        config,
        segments=predictor.segments,
        null_threshold=predictor.null_threshold,
        temperature=predictor.temperature,
        record=predictor.record,
    )
    if encoder.has_segments != predictor.segments or not _same_logits(predictor, linear):
        raise _other_model(source, checkpoint)
    return linear


def _same_logits(first: SpanPredictor, second: SpanPredictor) -> bool:
    batch = sample(first)
    with torch.inference_mode():
        pair = [predictor.model(batch) for predictor in (first, second)]
    scores = [(torch.cat([p.start, p.end], 1)[p.start.isfinite().repeat(1, 2)], p.null) for p in pair]
    return all(torch.allclose(a, b, rtol=0, atol=NEAR) for a, b in zip(*scores, strict=True))


def _other_model(source: str, checkpoint: SpanCheckpoint) -> ConfigError:
    return ConfigError(
        f"{source}: {type(checkpoint.model).__name__} is more than an encoder with a linear span head that"
        ' scores "no answer" at the first token; train such a model from its encoder:'
        f" qa-arch train encoder.name={source}"
    )
