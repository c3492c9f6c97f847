"""A downloaded checkpoint as a predictor, with the record of a run that was never trained here."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import torch

from qa_arch.config.checkpoints import Settings, checkpoint_settings, run_config
from qa_arch.config.identity import config_hash
from qa_arch.models.checkpoint_files import CheckpointFiles, open_checkpoint
from qa_arch.models.span_checkpoint import SpanCheckpoint, load_span_checkpoint
from qa_arch.nn.count import parameter_blocks
from qa_arch.nn.precision import Precision, cast_weights
from qa_arch.results import provenance
from qa_arch.tasks.span_predictor import SpanPredictor
from qa_arch.types.records import Device, Parameters, RunRecord, Threshold


def checkpoint_predictor(
    source: str | Path,
    *,
    device: str | torch.device,
    precision: Precision,
    settings: Settings | None = None,
    record: RunRecord | None = None,
) -> SpanPredictor:
    """The checkpoint that ``source`` names, as ``record`` says that it was scored, or as one that is new.

    A new one has null threshold 0, which nothing was fitted on; ``settings`` change how its texts are cut and
    decoded. Raises RunError where the files are not those that were scored.
    """
    files = open_checkpoint(source, None if record is None else record.setting("model", "revision"))
    model, tokenizer, segments = load_span_checkpoint(files)
    if record is None:
        record = _new_record(files, model, precision, settings)
    record = replace(record, precision=precision, device=_device(torch.device(device)))
    return SpanPredictor(
        cast_weights(model.to(device), precision),
        tokenizer,
        None,
        run_config(record.config),
        segments=segments,
        null_threshold=record.null_threshold,
        temperature=record.temperature,
        record=record,
        precision=precision,
        vocab_size=model.vocab_size,
    )


def _new_record(
    files: CheckpointFiles, model: SpanCheckpoint, precision: Precision, changes: Settings | None
) -> RunRecord:
    """What can be said of a checkpoint before it is scored; neither training nor seed is known."""
    config = checkpoint_settings(
        files.source,
        name=files.name,
        revision=files.revision,
        precision=precision,
        max_tokens=model.max_tokens,
        changes=changes,
    )
    commit, dirty = provenance.commit()
    return RunRecord(
        status="ok",
        name=config["name"],
        model=files.name,
        seed=config["seed"],
        config=config,
        config_hash=config_hash(config, {}),
        commit=commit,
        dirty=dirty,
        created=provenance.now(),
        versions=provenance.versions(),
        parameters=Parameters(**asdict(parameter_blocks(model.model))),
        threshold=Threshold(value=0.0, fitted_on="nothing"),
    )


def _device(device: torch.device) -> Device:
    gpu = device.type == "cuda"
    return Device(
        kind=device.type, name=torch.cuda.get_device_name(device) if gpu else provenance.processor()
    )
