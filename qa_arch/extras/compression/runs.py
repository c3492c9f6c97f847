"""A finished run made smaller: ``compress`` leaves a run that loads, scores, serves and exports as others do.

What is trained again is trained by ``training.run``, with the settings and the data of the run that was
begun with; what is fitted on the calibration split is fitted anew. Dev is scored only where the config leaves
it open.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from qa_arch.config.compression_steps import (
    Heads,
    Int8,
    Layers,
    Magnitude,
    Recovery,
    Step,
    Widths,
    is_sparse,
    stored_in_int8,
)
from qa_arch.config.identity import config_hash
from qa_arch.config.schema import Config, cut_batch, validate
from qa_arch.config.target import TRUSTED
from qa_arch.errors import ConfigError, DataError, QaArchError, RunError
from qa_arch.evaluation.runs import calibration_set
from qa_arch.evaluation.scoring import evaluate_splits
from qa_arch.export.onnx_folder import sample
from qa_arch.extras.compression.magnitude import HoldZeros, prune, sparsity_of, zeros
from qa_arch.extras.compression.structured import (
    Pruner,
    chosen_layers,
    head_count,
    importance,
    with_heads,
    with_layers,
    with_widths,
)
from qa_arch.models import store
from qa_arch.models.build import build_model
from qa_arch.models.checkpoint_files import linear_head_config, names_checkpoint, run_config
from qa_arch.models.onnx_model import GRAPH
from qa_arch.models.span_checkpoint import SpanCheckpoint
from qa_arch.models.teacher_files import SETTING
from qa_arch.nn.count import parameter_blocks
from qa_arch.nn.encoder import Encoder
from qa_arch.nn.precision import int8_state
from qa_arch.records import (
    CALIBRATION,
    DEV,
    MODEL,
    TRAIN,
    Parameters,
    Parent,
    RunRecord,
    Seconds,
    SplitFacts,
    read_record,
    write_record,
)
from qa_arch.spans.loading import load_predictor
from qa_arch.spans.predictor import SpanPredictor
from qa_arch.spans.task import TASK, SpanParts, SpanTask
from qa_arch.system.lock import hold
from qa_arch.tasks import task_of, wanted_device
from qa_arch.tasks.teacher import Teacher, load_teacher
from qa_arch.training import devices
from qa_arch.training.checkpoint import LAST, PREVIOUS
from qa_arch.training.module import TrainingData
from qa_arch.training.run import Start, new_record, train
from qa_arch.types.tensors import Batch
from qa_arch.types.text import QuestionSet

NEAR = 1e-5
"""The logits of a checkpoint and of the run that it becomes differ by no more."""


UNFINISHED = ".compressing"
"""Ending of the hidden folder beside the run's, in which it is made."""
EncoderStep = Layers | Heads | Widths


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


@dataclass(frozen=True)
class Request:
    """What ``qa-arch compress`` is to do."""

    source: str
    """A run folder, or a downloaded checkpoint."""
    out: Path
    step: Step
    train: Sequence[str] | None = None
    """Training data of a checkpoint, which names none."""
    calibration: Sequence[str] | None = None
    trust: Sequence[str] = ()

    @property
    def trusted(self) -> tuple[str, ...]:
        return (*TRUSTED, *self.trust)


def compress(request: Request) -> RunRecord:
    """Make the run ``request.out``, and return its record.

    The folder appears when it is whole. What a killed call leaves lies hidden beside it, and the same call
    goes on from there. Raises ConfigError, DataError or RunError before anything is trained where the step
    does not fit the run, or its data are not those that the run was trained on.
    """
    out = request.out
    _require_free(out)
    parent = open_parent(request.source, request.trust)
    config = _config(parent, request)
    _check_step(parent, request.step)
    work = out.with_name(f".{out.name}{UNFINISHED}")
    with hold(out.parent, "compression", name=f"{work.name}.lock"):
        _require_free(out)
        record = _begun(work, config, parent)
        if record is None:
            shutil.rmtree(work, ignore_errors=True)
        if record is None or record.parameters.nonzero is None:  # which is noted last
            try:
                record = _compress(config, parent, request, work, resume=record is not None)
            except BaseException:
                if not (work / LAST).exists():  # there is nothing to go on from
                    shutil.rmtree(work, ignore_errors=True)
                raise
        for name in (LAST, PREVIOUS):
            (work / name).unlink(missing_ok=True)
        work.replace(out)
    return record


def _compress(config: Config, parent: ParentRun, request: Request, work: Path, *, resume: bool) -> RunRecord:
    """The whole run, in ``work``."""
    task, step = task_of(config.model), request.step
    assert isinstance(task, SpanTask)
    trains = not isinstance(step, Int8) and step.epochs > 0
    teacher = _teacher(config, parent, request.trusted) if trains else None
    sets = _open_sets(task, config, parent, step)
    if teacher is not None:
        teacher.check(config, parent.predictor.tokenizer, sets)
    parts = task.reassemble(config, sets, parent.predictor, request.trusted)
    if isinstance(step, Layers | Heads | Widths):
        encoder = smaller_encoder(task, config, parts, parent, step)
        parts.model.encoder = encoder
        parts = replace(parts, encoder=encoder)
    notes = {"parent": parent.name, "model": f"{parent.record.model}-{step.label}"}
    if isinstance(step, Int8) or not step.epochs:
        if isinstance(step, Magnitude):
            prune(parts.model, step)
        record = _stored(config, parts, parent, request, work, notes)
    else:
        _make_trainable(parts, config)
        if teacher is not None:
            parts = task.taught(config, parts, teacher)
        held = _held_zeros(parts.model, step, parent)
        start = Start(parts, _recovery(config, step, parent), held, notes)
        record = train(config, folder=work, resume=resume, trusted=request.trusted, start=start)
        if record.status != "ok":
            raise RunError(
                f"{request.out}: was not made, its training ended with '{record.status}' ({record.error})"
            )
    nonzero = store.count_nonzero(work / MODEL, dict(parts.model.named_parameters()))
    record = replace(record, parameters=replace(record.parameters, nonzero=nonzero))
    write_record(work, record)
    return record


def _make_trainable(parts: SpanParts, config: Config) -> None:
    """The model as the parent's was when its training began: with dropout, frozen and recomputed alike."""
    parts.model.train()
    if not isinstance(parts.encoder, Encoder):
        parts.encoder.freeze(config.encoder.freeze)
        return
    freeze = config.encoder.freeze
    parts.encoder.freeze(min(freeze, parts.encoder.depth) if isinstance(freeze, int) else freeze).train()
    if config.trainer.gradient_checkpointing:
        parts.encoder.checkpoint_activations()


# Checks and settings ------------------------------------------------------------------------------


def _require_free(out: Path) -> None:
    if out.exists():
        raise RunError(f"{out}: is in the way; name a new folder, or remove it first")


def _config(parent: ParentRun, request: Request) -> Config:
    """The config of the run that is made: that of its parent, and the step."""
    data, given = parent.config.data, request.train or request.calibration
    if given and data.train:
        raise ConfigError(f"--train, --calibration: {parent.name.run} names its own data; leave them out")
    if request.train:
        data = replace(data, train=list(request.train))
    if request.calibration:
        data = replace(data, calibration=list(request.calibration))
    if _reads_training_data(request.step) and not data.train:
        raise ConfigError(f"--train: {parent.name.run} names no training data, which this needs; name some")
    steps = [*(parent.config.compression or ()), request.step]
    return validate(asdict(replace(parent.config, data=data, compression=steps)))


def _reads_training_data(step: Step) -> bool:
    return isinstance(step, Heads | Widths) or (not isinstance(step, Int8) and step.epochs > 0)


def _check_step(parent: ParentRun, step: Step) -> None:
    """ConfigError where the step asks for more than the model has."""
    if isinstance(step, Magnitude):
        before = sparsity_of(parent.predictor.model)
        if step.sparsity <= before:
            raise ConfigError(f"sparsity: {before:.1%} of the weights are zero already; name a larger share")
    else:
        check_encoder(parent, step)


def _begun(work: Path, config: Config, parent: ParentRun) -> RunRecord | None:
    """The record of what a killed call with this config and parent has left in ``work``; None without."""
    try:
        record = read_record(work)
        begun = config_hash(asdict(validate(record.config)))
    except QaArchError:
        return None
    same = begun == config_hash(asdict(config)) and record.parent == parent.name
    return record if same else None


def _recovery(config: Config, step: Recovery, parent: ParentRun) -> Config:
    """What is trained by: the first training's settings, with the step's epochs and rate.

    One device takes what several took together, so the global batch stays. Of a rising sparsity only the last
    epoch is at its end, so its weights are selected.
    """
    trainer, optim = config.trainer, config.optim
    devices = parent.record.batch.devices or 1
    if trainer.micro_batch == "auto":
        trainer = cut_batch(trainer, parent.record.batch.micro or trainer.batch_size)
    trainer = replace(
        trainer,
        micro_batch=None,
        epochs=step.epochs,
        max_steps=-1,
        devices=1,
        strategy="auto",
        accumulate=trainer.accumulate * devices,
    )
    if isinstance(step, Magnitude):
        trainer = replace(trainer, select="last", patience=0)
    if step.lr is not None:
        head = None if optim.head_lr is None else optim.head_lr * step.lr / optim.lr
        optim = replace(optim, lr=step.lr, head_lr=head)
    return replace(config, trainer=trainer, optim=optim)


def _held_zeros(model: nn.Module, step: Step, parent: ParentRun) -> list[HoldZeros]:
    """The callback that holds the zeros of this step and of earlier ones."""
    if not is_sparse((*(parent.config.compression or ()), step)):
        return []
    masks = zeros(model)
    if not is_sparse(parent.config.compression):
        masks = {name: torch.zeros_like(mask) for name, mask in masks.items()}
    return [HoldZeros(masks, step if isinstance(step, Magnitude) else None)]


# Data ---------------------------------------------------------------------------------------------


def _teacher(config: Config, parent: ParentRun, trusted: Sequence[str]) -> Teacher | None:
    """The teacher that the parent learned from, to go on with; RunError where it is another one by now."""
    teacher, recorded = load_teacher(config, trusted), parent.record.teacher
    if teacher and recorded and teacher.facts.fingerprint != recorded.fingerprint:
        raise RunError(
            f"{SETTING}: {config.distillation.teacher} is not the teacher that {parent.name.run} learned"
            f" from (hash {recorded.fingerprint[:12]}, this has {teacher.facts.fingerprint[:12]}); restore"
            " that, or compress without training (--epochs 0)"
        )
    return teacher


def _open_sets(task: SpanTask, config: Config, parent: ParentRun, step: Step) -> dict[str, QuestionSet]:
    """The sets that the step reads; DataError where one of them is not what the parent was made with."""
    data = config.data
    if _reads_training_data(step):
        sets = task.load_splits(data)
    else:
        sets = {}
        if data.calibration is not None or data.train:
            sets[CALIBRATION] = calibration_set(config)
        if data.dev is not None and data.open_dev:
            sets[DEV] = task.open(data.dev, name=DEV, on_error=data.on_error)
    sets = {split: questions for split, questions in sets.items() if questions is not None}
    for split in (TRAIN, CALIBRATION):
        recorded = parent.record.fingerprint(split)
        if recorded and split in sets and sets[split].fingerprint != recorded:
            raise DataError(
                f"data.{split}: not the questions that {parent.name.run} was made with (hash"
                f" {recorded[:12]}, this has {sets[split].fingerprint[:12]}); restore them"
            )
    return sets


# Making ------------------------------------------------------------------------------------------


def _stored(
    config: Config,
    parts: SpanParts,
    parent: ParentRun,
    request: Request,
    work: Path,
    notes: Mapping[str, Any],
) -> RunRecord:
    """A run that is not trained again, scored as it was stored."""
    step, model_folder = request.step, work / MODEL
    task_of(config.model).save(model_folder, parts)
    if isinstance(step, Int8):
        store.save_state(model_folder, int8_state(parts.model, embeddings=step.embeddings))
    else:
        store.save_weights(model_folder, parts.model)
    device = "cpu" if isinstance(step, Int8) else wanted_device(config)
    precision: Any = "int8" if isinstance(step, Int8) else parent.record.precision or "fp32"
    if precision == "fp16" and device == "cpu":
        precision = "fp32"
    data = _facts(parts, parent)
    hashes = {split: str(facts.fingerprint) for split, facts in data.items()}
    if parts.vectors is not None:
        hashes["glove"] = parts.vectors.fingerprint
    teacher = parent.record.teacher
    if teacher is not None:
        hashes["teacher"] = teacher.fingerprint
    record = replace(
        new_record(config),
        status="ok",
        config_hash=config_hash(asdict(config), hashes),
        data=data,
        device=devices.describe(device == "cuda"),
        precision=precision,
        parameters=Parameters(**asdict(parameter_blocks(parts.model))),
        weights_bytes=(model_folder / store.WEIGHTS).stat().st_size,
        teacher=teacher,
        **notes,
    )
    write_record(work, record)  # so that the run can be loaded as it will be
    predictor = load_predictor(work, device=device, precision=precision, trust=request.trust)
    scored = evaluate_splits(predictor, parts, work, request.trusted)
    return replace(
        record,
        references=scored.references,
        scores=scored.scores,
        seconds=Seconds(predict=round(scored.seconds, 3)),
        **vars(scored.fits),
    )


def _facts(parts: SpanParts, parent: ParentRun) -> dict[str, SplitFacts]:
    """What is known of the sets: of the training set that was not opened, what the parent knew."""
    opened = {
        split: TASK.facts(questions, parts.tables[split], titles=split != DEV)
        for split, questions in parts.sets.items()
    }
    return {split: facts for split, facts in parent.record.data.items() if split == TRAIN} | opened


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
    device = wanted_device(config)
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
    for rows in TrainingData(batches, config.trainer, seed=config.seed).sampler():
        yield batches.train(rows).to(device)
        seen += len(rows)
        if seen >= windows:
            return
