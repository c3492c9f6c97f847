"""Compress a finished run: ``compress`` creates a run that loads, scores, serves and exports like any other.

Recovery training goes through ``training.run``, with the settings and data of the parent run; threshold and
calibration are refitted on the calibration split. Dev is scored only if the config opens it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from qa_arch.config.schema import Config, Heads, Layers, Magnitude, Recovery, Step, Widths, validate
from qa_arch.config.target import TRUSTED
from qa_arch.data.sources import open_passages
from qa_arch.data.splits import load_splits
from qa_arch.errors import ConfigError, DataError, QaArchError, RunError
from qa_arch.evaluation import calibration_set, evaluate_splits
from qa_arch.export import sample
from qa_arch.extras.compression.pruning import (
    HoldZeros,
    Kind,
    Pruner,
    chosen_layers,
    head_count,
    importance,
    keep_best,
    keep_layers,
    prune,
    sparsity_of,
    zeros,
)
from qa_arch.models import store
from qa_arch.models.checkpoint_files import SETTING, names_checkpoint, require_teacher
from qa_arch.nn.encoder import Encoder
from qa_arch.nn.features import parameter_blocks
from qa_arch.nn.reading import run_device
from qa_arch.provenance import identify, inputs_of, new_record
from qa_arch.qa import task
from qa_arch.qa.loading import load_predictor
from qa_arch.qa.reader import Reader
from qa_arch.qa.task import SpanParts
from qa_arch.qa.teacher import Teacher, load_teacher, with_teacher
from qa_arch.records import (
    CALIBRATION,
    DEV,
    GRAPH,
    MODEL,
    TRAIN,
    Parent,
    RunRecord,
    changing,
    clear_run,
    read_record,
    write_record,
)
from qa_arch.tensors import Batch
from qa_arch.training.checkpoint import LAST
from qa_arch.training.fit import describe, require_machine
from qa_arch.training.module import TrainingData
from qa_arch.training.run import Start, train
from qa_arch.types import QuestionSet

UNFINISHED = ".compressing"
"""Suffix of the hidden sibling folder in which the run is created."""


@dataclass(frozen=True)
class ParentRun:
    """A run loaded in fp32 on the CPU, whose model may be modified."""

    predictor: Reader
    config: Config
    record: RunRecord
    name: Parent


def compress(source: Path, out: Path, step: Step, trust: Sequence[str] = ()) -> RunRecord:
    """Compress the run in ``source`` into the new run ``out`` and return its record.

    The folder appears once complete. A killed call leaves a hidden sibling folder, from which the same call
    resumes. Raises ConfigError, DataError or RunError before training if the step does not suit the run
    or the data differ from those the run was trained on.
    """
    work = out.with_name(f".{out.name}{UNFINISHED}")
    with changing(out, "compression", replaced=True):
        if out.exists():
            raise RunError(f"{out}: already exists; choose a new folder, or remove it first")
        parent = open_parent(source, trust)
        steps = [*(parent.config.compression or ()), step]
        config = validate(asdict(replace(parent.config, compression=steps)))
        _require_smaller(parent, step)
        record = _resumable_record(work, config, parent)
        if record is None:
            _discard(work)
        if record is None or record.parameters.nonzero is None:  # it is written last
            try:
                record = _make(config, parent, step, trust, work, resume=record is not None)
            except BaseException:
                if not (work / LAST).exists():  # nothing to resume from
                    _discard(work)
                raise
        work.replace(out)
    return record


def _make(
    config: Config, parent: ParentRun, step: Step, trust: Sequence[str], work: Path, *, resume: bool
) -> RunRecord:
    """Create the run in ``work``: datasets, smaller model, recovery training, scores and record."""
    trusted = (*TRUSTED, *trust)
    recovers = isinstance(step, Recovery) and step.epochs > 0
    teacher = _teacher(config, parent, trusted) if recovers else None
    sets = _open_sets(config, parent, train=recovers or isinstance(step, Heads | Widths))
    if teacher is not None:
        teacher.check(config, parent.predictor.tokenizer, sets)
    parts = task.reassemble(config, sets, parent.predictor, trusted)
    if isinstance(step, Layers | Heads | Widths):
        encoder = _smaller_encoder(config, parts, parent, step)
        parts.model.encoder = encoder
        parts = replace(parts, encoder=encoder)

    notes = {"parent": parent.name, "model": f"{parent.record.model}-{_label(step)}"}
    if isinstance(step, Recovery) and recovers:
        _make_trainable(parts, config)
        if teacher is not None:
            parts = with_teacher(config, parts, teacher)
        callbacks = _pruning_callbacks(parts.model, step, parent)
        start = Start(parts, _recovery_config(config, step, parent), callbacks, notes)
        require_machine(start.config.trainer)
        record = train(config, folder=work, resume=resume, trusted=trusted, start=start)
        if record.status != "ok":
            raise RunError(f"no run created: training ended as '{record.status}' ({record.error})")
    else:
        if isinstance(step, Magnitude):
            prune(parts.model, step)
        record = _store_untrained(config, parts, parent, step, trusted, work, notes)
    nonzero = store.count_nonzero(work / MODEL, dict(parts.model.named_parameters()))
    parameters = replace(record.parameters, nonzero=nonzero)
    record = replace(record, parameters=parameters, encoder=parent.record.encoder)
    write_record(work, record)
    return record


def _label(step: Step) -> str:
    """Suffix of the model's name for the step."""
    match step:
        case Magnitude():
            return f"sparse{100 * step.sparsity:g}"
        case Heads():
            return f"heads{step.heads}"
        case Widths():
            return f"ffn{step.width}"
        case Layers():
            return f"{'first' if step.choose == 'first' else ''}layers{step.layers}"


# The parent -----------------------------------------------------------------------------------------


def open_parent(source: Path, trust: Sequence[str] = ()) -> ParentRun:
    """Load the run in folder ``source``; RunError if its weights cannot be compressed."""
    if names_checkpoint(source):
        raise RunError(
            f"{source}: is not a run; train one from its encoder (qa-arch train"
            f" encoder.name={shlex.quote(str(source))}), or make a graph in int8 of it:"
            f" qa-arch export {shlex.quote(str(source))} --to onnx --precision int8 --out GRAPH"
        )
    if (source / GRAPH).exists():
        raise RunError(
            f"{source}: is an exported graph, which cannot be compressed; give the run it was exported from"
        )
    predictor = load_predictor(source, device="cpu", trust=trust)
    if not isinstance(predictor, Reader) or predictor.record is None:
        raise RunError(f"{source}: is not a span run; only span models can be compressed")
    name = Parent(run=source.resolve().name, run_hash=predictor.record.run_hash)
    return ParentRun(predictor, predictor.config, predictor.record, name)


def _require_smaller(parent: ParentRun, step: Step) -> None:
    """Raise ConfigError if the model has no encoder, or if the step would not make it smaller."""
    model: Any = parent.predictor.model
    if isinstance(step, Magnitude):
        sparsity = sparsity_of(zeros(model))
        if step.sparsity <= sparsity:
            raise ConfigError(
                f"sparsity: {sparsity:.1%} of the weights are zero already; give a larger share"
            )
        return
    if not isinstance(model.encoder, Encoder):
        raise ConfigError(f"{parent.name.run}: has no transformer encoder; use --method magnitude")
    match step:
        case Layers():
            option, count, present = "layers", step.layers, model.encoder.depth
        case Heads():
            option, count, present = "heads", step.heads, head_count(model.encoder)
        case Widths():
            units = Pruner(model.encoder, sample(parent.predictor)).of("units")
            option, count, present = "width", step.width, units[0].linear.in_features
    if count >= present:
        raise ConfigError(f"{option}: {count} is not less than the {present} the model has")


def _discard(work: Path) -> None:
    if work.is_dir():
        clear_run(work)
        work.rmdir()


def _resumable_record(work: Path, config: Config, parent: ParentRun) -> RunRecord | None:
    """Record left in ``work`` by a killed call with the same config and parent, else None."""
    try:
        record = read_record(work)
    except QaArchError:
        return None
    same = record.settings_hash == identify(asdict(config)).settings_hash
    return record if same and record.parent == parent.name else None


# Data ---------------------------------------------------------------------------------------------


def _teacher(config: Config, parent: ParentRun, trusted: Sequence[str]) -> Teacher | None:
    """Load the parent's teacher for recovery training; RunError if it has changed since."""
    require_teacher(config)  # which may have gone since
    teacher, recorded = load_teacher(config, trusted), parent.record.teacher
    if teacher and recorded and teacher.facts.fingerprint != recorded.fingerprint:
        raise RunError(
            f"{SETTING}: {config.distillation.teacher} is not the teacher that {parent.name.run} learned"
            f" from (hash {recorded.fingerprint[:12]}, now {teacher.facts.fingerprint[:12]}); restore it, or"
            " compress without training (--epochs 0)"
        )
    return teacher


def _open_sets(config: Config, parent: ParentRun, *, train: bool) -> dict[str, QuestionSet]:
    """Open the scored datasets and, with ``train``, the training set; DataError if one differs from the
    parent's."""
    data = config.data
    sets: dict[str, QuestionSet | None] = {}
    if train:
        sets = {**load_splits(data)}
    else:
        if data.calibration is not None or data.train:
            sets[CALIBRATION] = calibration_set(config)
        if data.dev is not None and data.open_dev:
            sets[DEV] = open_passages(
                data.dev, name=DEV, on_error=data.on_error, use="scoring", language=data.language
            )
    opened = {split: questions for split, questions in sets.items() if questions is not None}
    for split in {TRAIN, CALIBRATION} & opened.keys():
        recorded, actual = parent.record.fingerprint(split), opened[split].fingerprint
        if recorded and actual != recorded:
            raise DataError(
                f"data.{split}: differs from the questions that {parent.name.run} was made with (hash"
                f" {recorded[:12]}, now {actual[:12]}); restore them"
            )
    return opened


# Pruning and training -----------------------------------------------------------------------------


def _smaller_encoder(
    config: Config, parts: SpanParts, parent: ParentRun, step: Layers | Heads | Widths
) -> Encoder:
    """Apply a structured step to the encoder of ``parts.model``."""
    model: Any = parts.model
    loss: Any = parts.loss
    batch = sample(parent.predictor)
    if isinstance(step, Layers):
        return keep_layers(model.encoder, chosen_layers(model.encoder.depth, step.layers, step.choose), batch)
    pruner, device = Pruner(model.encoder, batch), run_device(config)
    kind: Kind = "heads" if isinstance(step, Heads) else "units"
    count = step.heads if isinstance(step, Heads) else step.width

    def windows() -> Iterator[Batch]:
        """Batches of the first epoch, up to ``step.windows`` windows."""
        batches, seen = task.batches(config, parts), 0
        for rows in TrainingData(batches, config.trainer, seed=config.seed).sampler():
            yield batches.train(rows).to(device)
            seen += len(rows)
            if seen >= step.windows:
                return

    model.to(device)
    scores = importance(
        model,
        pruner.of(kind),
        pruner.size(kind),
        windows(),
        lambda batch: loss(model(batch), batch.labels) * batch.weight,
    )
    model.to("cpu")
    return keep_best(pruner, kind, count, scores)


def _make_trainable(parts: SpanParts, config: Config) -> None:
    """Restore the parent's training mode: dropout, frozen layers and gradient checkpointing."""
    parts.model.train()
    if not isinstance(parts.encoder, Encoder):
        parts.encoder.freeze(config.encoder.freeze)
        return
    freeze = config.encoder.freeze
    parts.encoder.freeze(min(freeze, parts.encoder.depth) if isinstance(freeze, int) else freeze).train()
    if config.trainer.gradient_checkpointing:
        parts.encoder.checkpoint_activations()


def _recovery_config(config: Config, step: Recovery, parent: ParentRun) -> Config:
    """The parent's training settings with the step's epochs and learning rate.

    A single device accumulates the batches of several, so the global batch size is unchanged. With a rising
    sparsity only the last epoch has the final one, so its weights are selected.
    """
    trainer, optim = config.trainer, config.optim
    sizes = parent.record.batch
    if sizes.micro and sizes.accumulate and sizes.devices:
        passes = sizes.accumulate * sizes.devices
        trainer = replace(trainer, global_batch=None, batch_size=sizes.micro, accumulate=passes)
    trainer = replace(
        trainer,
        micro_batch=None,
        epochs=step.epochs,
        max_steps=-1,
        devices=1,
        strategy="auto",
    )
    if isinstance(step, Magnitude):
        trainer = replace(trainer, select="last", patience=0)
    if step.lr is not None:
        head = None if optim.head_lr is None else optim.head_lr * step.lr / optim.lr
        optim = replace(optim, lr=step.lr, head_lr=head)
    return replace(config, trainer=trainer, optim=optim)


def _pruning_callbacks(model: nn.Module, step: Step, parent: ParentRun) -> list[HoldZeros]:
    """Callback that keeps pruned weights of this and earlier steps at zero; none if there are none."""
    pruned = any(isinstance(earlier, Magnitude) for earlier in parent.config.compression or ())
    schedule = step if isinstance(step, Magnitude) else None
    if not pruned and schedule is None:
        return []
    masks = zeros(model)
    if not pruned:
        masks = {name: torch.zeros_like(mask) for name, mask in masks.items()}
    return [HoldZeros(masks, schedule)]


def _store_untrained(
    config: Config,
    parts: SpanParts,
    parent: ParentRun,
    step: Step,
    trusted: Sequence[str],
    work: Path,
    notes: Mapping[str, Any],
) -> RunRecord:
    """Store the model without recovery training and score it as stored."""
    model_folder = work / MODEL
    task.save(model_folder, parts)
    store.save_weights(model_folder, parts.model)
    device = run_device(config)
    precision: Any = parent.record.precision or "fp32"
    if precision == "fp16" and device == "cpu":
        precision = "fp32"
    data = {split: facts for split, facts in parent.record.data.items() if split == TRAIN} | {
        split: task.facts(questions, parts.tables[split], titles=split != DEV)
        for split, questions in parts.sets.items()
    }
    sets = {split: facts.fingerprint for split, facts in data.items()}
    vectors = None if parts.vectors is None else parts.vectors.fingerprint
    teacher = parent.record.teacher
    record = new_record(
        asdict(config),
        inputs_of(sets, vectors, parent.record.encoder, teacher),
        status="ok",
        data=data,
        device=describe(device),
        precision=precision,
        parameters=parameter_blocks(parts.model),
        weights_bytes=(model_folder / store.WEIGHTS).stat().st_size,
        teacher=teacher,
    )
    record = replace(record, **notes)
    write_record(work, record)  # so that the run can be loaded from its final files
    predictor = load_predictor(work, device=device, precision=precision, trust=trusted)
    return evaluate_splits(record, predictor, parts, work, trusted)
