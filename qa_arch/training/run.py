"""A training run from config to record; ``run.json`` in its folder is updated after every step.

``train`` -> ``task.assemble`` (data, features, model) -> ``fit`` -> ``evaluate_splits`` (scores) -> record.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shlex
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from torch import nn

from qa_arch import provenance
from qa_arch.config.files import write_atomic
from qa_arch.config.schema import OOM_REMEDY, Config, cut_batch, require_trainable
from qa_arch.config.target import TRUSTED
from qa_arch.errors import QaArchError, RunError, out_of_memory
from qa_arch.evaluation.scoring import evaluate_splits, load_references
from qa_arch.models import store
from qa_arch.models.check import check_model
from qa_arch.nn import encoder_configs
from qa_arch.nn.count import parameter_blocks
from qa_arch.nn.losses import build_loss
from qa_arch.records import (
    DEV,
    MODEL,
    RECORD,
    BatchSizes,
    Epoch,
    InitialWeights,
    RunRecord,
    read_record,
    write_end,
    write_record,
)
from qa_arch.results.pretrained_runs import encoder_run
from qa_arch.system.hub import commit_of, split_revision
from qa_arch.tasks import Parts, task_of
from qa_arch.training import devices, inputs
from qa_arch.training.checkpoint import LAST, discard, random_state, restore_random_state
from qa_arch.training.loggers import Outcome, check_logger, open_logger
from qa_arch.training.loop import Fitted, fit
from qa_arch.training.ranks import other_ranks

log = logging.getLogger(__name__)
TRACEBACK = "traceback.txt"


@dataclass
class Run:
    """A run folder and its record, which is rewritten after every step."""

    folder: Path
    record: RunRecord
    written: os.stat_result | None = None
    """The file of the record as this run wrote it last."""
    read: Mapping[str, str | None] = field(default_factory=dict)
    """Hashes of what a resumed run has read before."""

    def update(self, **changes: Any) -> None:
        """Change fields of the record and write it; RunError if it is no longer in its place."""
        self.require_in_place()
        self.record = replace(self.record, **changes)
        self.written = write_record(self.folder, self.record).stat()

    def require_in_place(self) -> None:
        """Raise RunError if the folder was renamed, removed or replaced since the record was written."""
        if self.written is None:
            return
        with suppress(FileNotFoundError):
            if os.path.samestat(self.written, (self.folder / RECORD).stat()):
                return
        raise RunError(
            f"{self.folder}: was renamed, replaced or removed while the run trained in it, so the run ended;"
            " resume it in its new place with --config-from NEW --folder NEW --resume"
        )


@dataclass(frozen=True)
class Start:
    """Starting point of a run that does not build its own data, features and model."""

    parts: Parts
    config: Config
    """Config for training and scoring; the record has the one passed to ``train``."""
    callbacks: Sequence[pl.Callback] = ()
    notes: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the record."""


def check_components(config: Config, trusted: Sequence[str] = TRUSTED) -> None:
    """Raise ConfigError for the first of model, loss, logger and heuristics that cannot be built.

    Reads no data and loads no weights.
    """
    check_model(config.model, trusted, with_vectors=config.glove.use)
    build_loss(config, trusted)
    check_logger(config.logger, trusted)
    load_references(config, trusted)


def train(
    config: Config,
    *,
    folder: Path,
    resume: bool = False,
    trusted: Sequence[str] = TRUSTED,
    options: Sequence[str] = (),
    start: Start | None = None,
) -> RunRecord:
    """Train, choose epoch and null threshold on calibration, score, and record everything.

    The status of the record ends as ``ok``, ``oom``, ``failed`` or ``killed``. Errors are recorded and
    raised, except for running out of memory, which is a result. A run that continues from a trained model
    has a ``start`` and a single device. The command that resumes an interrupted run ends with ``options``.
    """
    if start is None:
        require_trainable(config)
    run = Run(folder, provenance.new_record(asdict(config), status="running"))
    if resume and (folder / RECORD).is_file():
        earlier = read_record(folder)
        run.read = inputs.recorded(folder, earlier)
        known = ("epochs", "batch", "data", "encoder", "teacher")
        run.record = replace(run.record, **{name: getattr(earlier, name) for name in known})
    run.update(**(start.notes if start else {}))
    (folder / TRACEBACK).unlink(missing_ok=True)
    try:
        _train(start.config if start else config, run, resume, trusted, start)
    except BaseException as error:
        run.require_in_place()
        oom = out_of_memory(error)
        status = "oom" if oom else "failed" if isinstance(error, Exception) else "killed"
        reason = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        ended: Any = {"status": status, "error": reason}
        run.record = replace(run.record, **ended)
        write_end(folder, run.record)
        with suppress(QaArchError):  # a disk that is still full must not hide the error
            write_atomic(folder / TRACEBACK, traceback.format_exc())
        if (folder / LAST).exists():
            command = ["qa-arch", "train", "--config-from", str(folder), "--folder", str(folder)]
            command += [*options, "--if-exists", "resume"]
            log.info("resume: %s", "the same command" if start else shlex.join(command))
        if not oom:
            raise
        log.error("out of memory; try %s", OOM_REMEDY)
    else:
        discard(folder)
    return run.record


def _train(config: Config, run: Run, resume: bool, trusted: Sequence[str], start: Start | None) -> None:
    """Check, assemble, fit, load the best weights, score, record."""
    settings, gpu = devices.require(config.trainer)
    config = replace(config, trainer=settings)
    world = devices.world_size(settings, gpu=gpu)
    log.info(
        "batch: %d windows per optimizer step (batch_size %d x accumulate %d x devices %d)",
        settings.batch_size * settings.accumulate * world,
        settings.batch_size,
        settings.accumulate,
        world,
    )
    check_components(config, trusted)
    task, model_folder = task_of(config.model), run.folder / MODEL

    devices.reset_peak_memory(gpu)
    devices.seed_everything(config.seed)
    started = time.perf_counter()
    if config.encoder.init == "random" and config.encoder.layers:
        log.info("encoder: %s", config.encoder.title)
    parts = start.parts if start else task.assemble(config, trusted)
    encoder = encoder_run(config.encoder.name)
    teacher = parts.distiller.facts if parts.distiller is not None else None
    sets = {split: str(questions.fingerprint) for split, questions in parts.sets.items()}
    vectors = None if parts.vectors is None else parts.vectors.fingerprint
    hashes = provenance.inputs_of(sets, vectors, encoder, teacher)
    inputs.require_unchanged(run.folder, config, run.read, hashes)
    run.update(
        **_record_fields(config, parts),
        run_hash=provenance.identify(run.record.config, hashes).run_hash,
        encoder=encoder,
        teacher=teacher,
        device=devices.describe(gpu),
        strategy=devices.strategy_name(settings, world),
    )
    task.save(model_folder, parts)

    with open_logger(config, run.folder, trusted) as logger:
        prepared = time.perf_counter()
        with other_ranks(world, run.folder, resume=resume, trusted=trusted):
            epochs, best_epoch = _fit(
                config,
                parts,
                run,
                world=world,
                gpu=gpu,
                resume=resume,
                publish=lambda done: run.update(epochs=tuple(map(Epoch.from_flat, done))),
                logger=logger,
                callbacks=start.callbacks if start else (),
            )

        store.load_weights(model_folder, parts.model)
        task.finish(model_folder, parts)
        parts.model.to("cuda" if gpu else "cpu")
        predictor = task.predictor(config, parts)
        run.record = evaluate_splits(run.record, predictor, parts, run.folder, trusted)
        seconds = sum(epoch["train_seconds"] for epoch in epochs)  # including those before a resume
        validation = sum(epoch.get("validation_seconds", 0.0) for epoch in epochs)
        trained = sum(epoch["windows"] for epoch in epochs)
        run.update(
            status="ok",
            epochs=tuple(map(Epoch.from_flat, epochs)),
            best_epoch=best_epoch,
            examples_per_second=round(trained / seconds, 3) if seconds else None,
            peak_memory_mb=devices.peak_memory_mb(gpu),
            seconds=replace(
                run.record.seconds,
                prepare=round(prepared - started, 3),
                fit=round(seconds, 3),
                fit_with_validation=round(seconds + validation, 3),
            ),
            weights_bytes=(model_folder / store.WEIGHTS).stat().st_size,
        )
        if logger is not None:
            logger.log_outcome(Outcome(run.record, run.folder, parts.sets.get(DEV)))


def _fit(config: Config, parts: Parts, run: Run, *, world: int, gpu: bool, **options: Any) -> Fitted:
    """Run ``fit``, with ``trainer.micro_batch=auto`` at the largest micro batch that fits into memory.

    It is halved each time the first epoch runs out of memory, and training starts over as if that size had
    been configured. A whole epoch shows that a size fits, so later epochs are never discarded.
    """
    settings, auto = config.trainer, config.trainer.micro_batch == "auto"
    if auto:
        settings = cut_batch(settings, run.record.batch.micro or settings.batch_size)  # as before a resume
        weights = {name: value.detach().clone() for name, value in parts.model.state_dict().items()}
        generators = random_state()
    while True:
        sizes = BatchSizes(
            micro=settings.batch_size,
            accumulate=settings.accumulate,
            devices=world,
            global_size=settings.batch_size * settings.accumulate * world,
        )
        run.update(batch=sizes)
        try:
            return fit(replace(config, trainer=settings), parts, run.folder, gpu=gpu, **options)
        except Exception as error:
            can_halve = auto and settings.batch_size > 1 and not run.record.epochs
            if not (can_halve and out_of_memory(error)):
                raise
        # Outside the except block: the error would keep every tensor of the step alive.
        settings = cut_batch(settings, settings.batch_size // 2)
        message = "out of memory: training starts over with trainer.micro_batch=%d, accumulated %d times"
        log.warning(message, settings.batch_size, settings.accumulate)
        parts.model.zero_grad(set_to_none=True)
        parts.model.load_state_dict(weights)
        restore_random_state(generators)
        devices.reset_peak_memory(gpu)
        discard(run.folder)


def _initial_weights(config: Config, parts: Parts) -> InitialWeights | None:
    """Hash and commit of the weights of a pretrained encoder before training."""
    encoder = getattr(parts, "encoder", None)
    if config.encoder.init != "pretrained" or not isinstance(encoder, nn.Module):
        return None
    total = hashlib.sha256()
    for name, value in sorted(encoder.state_dict().items()):
        total.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    source, revision = split_revision(encoder_configs.resolve(str(config.encoder.name)))
    commit = None if Path(source).is_dir() else commit_of("models", source, revision)
    return InitialWeights(weights=total.hexdigest(), commit=commit)


def _record_fields(config: Config, parts: Parts) -> dict[str, Any]:
    """Fields of the record about data, features and model."""
    task, settings = task_of(config.model), config.trainer
    return {
        "data": {
            split: task.facts(questions, parts.tables[split], titles=split != DEV)
            for split, questions in parts.sets.items()
        },
        "initial": _initial_weights(config, parts),
        "precision": settings.precision,
        "optimizer_bits": settings.optimizer_bits,
        "parameters": parameter_blocks(parts.model),
    }
