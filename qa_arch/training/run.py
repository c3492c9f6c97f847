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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from torch import nn

from qa_arch.config.files import write_atomic
from qa_arch.config.identity import config_hash
from qa_arch.config.schema import OOM_REMEDY, Config, cut_batch
from qa_arch.config.target import TRUSTED
from qa_arch.errors import QaArchError, RunError, out_of_memory
from qa_arch.evaluation.scoring import evaluate_splits
from qa_arch.models import store
from qa_arch.nn.count import parameter_blocks
from qa_arch.records import (
    DEV,
    MODEL,
    RECORD,
    BatchSizes,
    Epoch,
    InitialWeights,
    RunRecord,
    Status,
    read_record,
    write_end,
    write_record,
)
from qa_arch.results import provenance
from qa_arch.results.pretrained_runs import encoder_run
from qa_arch.tasks import Parts, task_of
from qa_arch.training import inputs
from qa_arch.training.checkpoint import LAST, discard, random_state, restore_random_state
from qa_arch.training.fit import (
    Fitted,
    describe,
    fit,
    peak_memory_mb,
    reset_peak_memory,
    start_process,
    strategy_name,
)
from qa_arch.training.loggers import Outcome, open_logger
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

    def begin(self, *, resume: bool, notes: Mapping[str, Any]) -> None:
        """Write the record with ``notes``, further fields, and with ``resume`` what is known of the run."""
        if resume and (self.folder / RECORD).is_file():
            earlier = read_record(self.folder)
            self.read = inputs.recorded(self.folder, earlier)
            known = ("epochs", "batch", "data", "encoder", "teacher")
            self.record = replace(self.record, **{name: getattr(earlier, name) for name in known})
        self.update(**notes)
        (self.folder / TRACEBACK).unlink(missing_ok=True)

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

    @contextmanager
    def ending(self, command: str) -> Iterator[None]:
        """Record how the body ends, and say which ``command`` resumes it; out of memory is a result."""
        try:
            yield
        except BaseException as error:
            self.require_in_place()
            oom = out_of_memory(error)
            status: Status = "oom" if oom else "failed" if isinstance(error, Exception) else "killed"
            reason = f"{type(error).__name__}: {error}".strip().splitlines()[0]
            self.record = replace(self.record, status=status, error=reason)
            write_end(self.folder, self.record)
            with suppress(QaArchError):  # a disk that is still full must not hide the error
                write_atomic(self.folder / TRACEBACK, traceback.format_exc())
            if (self.folder / LAST).exists():
                log.info("resume: %s", command)
            if not oom:
                raise
            log.error("out of memory; try %s", OOM_REMEDY)
        else:
            discard(self.folder)


@dataclass(frozen=True)
class Start:
    """Starting point of a run that does not build its own data, features and model, on a single device."""

    parts: Parts
    config: Config
    """Config for training and scoring; the record has the one passed to ``train``."""
    callbacks: Sequence[pl.Callback] = ()
    notes: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the record."""


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

    The config was checked where the run was planned (``training.jobs``). The status of the record ends as
    ``ok``, ``oom``, ``failed`` or ``killed``. Errors are recorded and raised, except for running out of
    memory, which is a result. A run that continues from a trained model has a ``start``. The command that
    resumes an interrupted run ends with ``options``.
    """
    run, model_folder = Run(folder, provenance.new_record(asdict(config), status="running")), folder / MODEL
    run.begin(resume=resume, notes=start.notes if start else {})
    again = ["qa-arch", "train", "--config-from", str(folder), "--folder", str(folder), *options]
    again += ["--if-exists", "resume"]
    with run.ending("the same command" if start else shlex.join(again)):
        config, task = start_process(start.config if start else config), task_of(config.model)
        began = time.perf_counter()
        parts = start.parts if start else task.assemble(config, trusted)
        facts = _facts(config, parts, run)
        run.update(**facts)
        task.save(model_folder, parts)
        with open_logger(config, folder, trusted) as logger:
            prepared = time.perf_counter()
            callbacks = start.callbacks if start else ()
            fitted = _fit(
                config, parts, run, resume=resume, trusted=trusted, logger=logger, callbacks=callbacks
            )
            store.load_weights(model_folder, parts.model)
            task.finish(model_folder, parts)
            parts.model.to(run.record.device.kind)
            predictor = task.predictor(config, parts)
            run.record = evaluate_splits(run.record, predictor, parts, folder, trusted)
            run.update(status="ok", **_costs(fitted, run, prepare=prepared - began))
            if logger is not None:
                logger.log_outcome(Outcome(run.record, folder, parts.sets.get(DEV)))
    return run.record


def _facts(config: Config, parts: Parts, run: Run) -> dict[str, Any]:
    """Fields of the record about data, features, model and machine; RunError if a resumed run had read other
    data."""
    task, settings = task_of(config.model), config.trainer
    encoder = encoder_run(config.encoder.name)
    teacher = parts.distiller.facts if parts.distiller is not None else None
    hashes = inputs.fingerprints(parts.sets, parts.vectors, encoder, teacher)
    inputs.require_unchanged(run.folder, config, run.read, hashes)
    return {
        "config_hash": config_hash(run.record.config, hashes),
        "encoder": encoder,
        "teacher": teacher,
        "data": {
            split: task.facts(questions, parts.tables[split], titles=split != DEV)
            for split, questions in parts.sets.items()
        },
        "initial": _initial_weights(config, parts),
        "parameters": parameter_blocks(parts.model),
        "precision": settings.precision,
        "optimizer_bits": settings.optimizer_bits,
        "device": describe(settings.accelerator == "gpu"),
        "strategy": strategy_name(settings),
    }


def _initial_weights(config: Config, parts: Parts) -> InitialWeights | None:
    """Hash and commit of the weights of a pretrained encoder before training."""
    encoder = getattr(parts, "encoder", None)
    if config.encoder.init != "pretrained" or not isinstance(encoder, nn.Module):
        return None
    total = hashlib.sha256()
    for name, value in sorted(encoder.state_dict().items()):
        total.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    return InitialWeights(weights=total.hexdigest(), commit=getattr(encoder, "commit", None))


def _fit(
    config: Config, parts: Parts, run: Run, *, resume: bool, trusted: Sequence[str], **options: Any
) -> Fitted:
    """Run ``fit`` on all ranks, with ``trainer.micro_batch=auto`` at the largest micro batch that fits into
    memory.

    It is halved each time the first epoch runs out of memory, and training starts over as if that size had
    been configured. A whole epoch shows that a size fits, so later epochs are never discarded.
    """
    auto, micro, again = config.trainer.micro_batch == "auto", config.trainer.batch_size, False
    if auto:
        micro = run.record.batch.micro or micro  # as before a resume
        weights = {name: value.detach().clone() for name, value in parts.model.state_dict().items()}
        generators = random_state()
    while True:
        settings = cut_batch(config.trainer, micro)
        micro, accumulate, world = settings.batch_size, settings.accumulate, int(settings.devices)
        total = micro * accumulate * world
        if again:
            message = "out of memory: training starts over with trainer.micro_batch=%d, accumulated %d times"
            log.warning(message, micro, accumulate)
        run.update(batch=BatchSizes(micro=micro, accumulate=accumulate, devices=world, global_size=total))
        try:
            with other_ranks(world, run.folder, resume=resume, trusted=trusted):
                return fit(
                    replace(config, trainer=settings),
                    parts,
                    run.folder,
                    resume=resume,
                    publish=lambda epochs: run.update(epochs=tuple(map(Epoch.from_flat, epochs))),
                    **options,
                )
        except Exception as error:
            can_halve = auto and micro > 1 and not run.record.epochs
            if not (can_halve and out_of_memory(error)):
                raise
        # Outside the except block: the error would keep every tensor of the step alive.
        micro, again = micro // 2, True
        parts.model.zero_grad(set_to_none=True)
        parts.model.load_state_dict(weights)
        restore_random_state(generators)
        reset_peak_memory()
        discard(run.folder)


def _costs(fitted: Fitted, run: Run, *, prepare: float) -> dict[str, Any]:
    """Fields of the record about the epochs, the best one, time and memory."""
    epochs, best = fitted
    fitting = sum(epoch["train_seconds"] for epoch in epochs)  # including those before a resume
    validation = sum(epoch.get("validation_seconds", 0.0) for epoch in epochs)
    trained = sum(epoch["windows"] for epoch in epochs)
    return {
        "epochs": tuple(map(Epoch.from_flat, epochs)),
        "best_epoch": best,
        "examples_per_second": round(trained / fitting, 3) if fitting else None,
        "peak_memory_mb": peak_memory_mb(run.record.device.kind == "cuda"),
        "seconds": replace(
            run.record.seconds,
            prepare=round(prepare, 3),
            fit=round(fitting, 3),
            fit_with_validation=round(fitting + validation, 3),
        ),
        "weights_bytes": (run.folder / MODEL / store.WEIGHTS).stat().st_size,
    }
