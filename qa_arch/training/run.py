"""A training run from config to record; ``run.json`` in its folder is current after every step.

``train`` -> ``task.assemble`` (data, features, model) -> ``fit`` -> ``evaluate_splits`` (scores) -> record.
"""

from __future__ import annotations

import logging
import shlex
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from qa_arch.config.files import write_atomic
from qa_arch.config.identity import ENCODER, config_hash
from qa_arch.config.schema import Config, require_trainable
from qa_arch.config.target import TRUSTED
from qa_arch.evaluation.scoring import evaluate_splits, load_references
from qa_arch.models import store
from qa_arch.nn.count import parameter_blocks
from qa_arch.results import provenance
from qa_arch.results.pretrained_runs import encoder_run
from qa_arch.results.record import MODEL, write_record
from qa_arch.tasks import task_of
from qa_arch.tasks.base import Parts
from qa_arch.training import machine, strategies
from qa_arch.training.checkpoint import LAST
from qa_arch.training.fitting import Fit, fit
from qa_arch.training.loggers import RunLogger, check_logger, open_logger
from qa_arch.training.outcome import Outcome
from qa_arch.training.ranks import other_ranks, world_size
from qa_arch.types.records import DEV, Epoch, Parameters, RunRecord, Seconds

log = logging.getLogger(__name__)
TRACEBACK = "traceback.txt"


@dataclass
class Run:
    """A run folder and the record in it, which is written anew after every step."""

    folder: Path
    record: RunRecord

    def note(self, **changes: Any) -> None:
        """Change fields of the record and write it."""
        self.record = replace(self.record, **changes)
        write_record(self.folder, self.record)


@dataclass(frozen=True)
class Start:
    """What a run begins with that does not make its own data, features and model."""

    parts: Parts
    config: Config
    """What it is trained and scored by; the record says the config that ``train`` is given."""
    callbacks: Sequence[pl.Callback] = ()
    notes: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the record."""


def train(
    config: Config,
    *,
    folder: Path,
    resume: bool = False,
    trusted: Sequence[str] = TRUSTED,
    start: Start | None = None,
) -> RunRecord:
    """Train, choose the epoch and the null threshold on calibration, score, and record all of it.

    The folder is left with a record that says ``ok``, ``oom``, ``failed`` or ``killed``; an
    out-of-memory is a result and returns, other errors are recorded and raised. A run that goes on with a
    trained model has a ``start``, and a single device.
    """
    if start is None:
        require_trainable(config)
    run = Run(folder, new_record(config))
    run.note(**(start.notes if start else {}))
    (folder / TRACEBACK).unlink(missing_ok=True)
    try:
        _train(start.config if start else config, run, resume, trusted, start)
    except BaseException as error:
        oom = machine.out_of_memory(error)
        status = "oom" if oom else "failed" if isinstance(error, Exception) else "killed"
        write_atomic(folder / TRACEBACK, traceback.format_exc())
        run.note(status=status, error=f"{type(error).__name__}: {error}".strip().splitlines()[0])
        if (folder / LAST).exists():  # of DeepSpeed a folder
            again = "the same command" if start else resume_command(folder, trusted)
            log.info("go on: %s", again)
        if not oom:
            raise
        log.error(
            "out of memory; a smaller trainer.batch_size with trainer.accumulate keeps the global batch"
        )
    return run.record


def resume_command(folder: Path, trusted: Sequence[str] = TRUSTED) -> str:
    """The command that goes on from the last checkpoint in a run folder."""
    trust = [word for prefix in trusted if prefix not in TRUSTED for word in ("--trust", prefix)]
    words = ["qa-arch", "train", "--config-from", str(folder), "--folder", str(folder), *trust]
    return shlex.join([*words, "--if-exists", "resume"])


def _train(
    config: Config, run: Run, resume: bool, trusted: Sequence[str], start: Start | None = None
) -> None:
    gpu = machine.uses_gpu(config.trainer)
    config = replace(config, trainer=machine.resolve(config.trainer, gpu=gpu))
    strategies.require(config.trainer, gpu=gpu)
    check_logger(config.logger, trusted)
    load_references(config, trusted)
    machine.reset_peak(gpu)
    machine.seed_everything(config.seed)
    begun = time.perf_counter()
    task = task_of(config.model)
    if config.encoder.init == "random" and config.encoder.layers:
        log.info("encoder: a new %(family)s, %(layers)s layers of width %(width)s", asdict(config.encoder))
    parts = start.parts if start else task.assemble(config, trusted)
    hashes = {split: questions.fingerprint for split, questions in parts.sets.items()}
    if parts.vectors is not None:
        hashes["glove"] = parts.vectors.fingerprint
    encoder = encoder_run(config.encoder.name)
    if encoder is not None:
        hashes[ENCODER] = encoder.config_hash
    teacher = parts.distiller.facts if parts.distiller is not None else None
    if teacher is not None:
        hashes["teacher"] = teacher.fingerprint
    world = world_size(config.trainer, gpu=gpu)
    run.note(
        config_hash=config_hash(run.record.config, hashes),
        data={
            split: task.facts(questions, parts.tables[split], titles=split != DEV)
            for split, questions in parts.sets.items()
        },
        encoder=encoder,
        device=machine.describe(gpu),
        strategy=strategies.name_of(config.trainer, world),
        precision=config.trainer.precision,
        optimizer_bits=config.trainer.optimizer_bits,
        parameters=Parameters(**asdict(parameter_blocks(parts.model))),
        teacher=teacher,
    )
    task.save(run.folder / MODEL, parts)
    with open_logger(config, run.folder, trusted) as logger:
        ranks = other_ranks(
            world,
            run.folder,
            resume=resume,
            trusted=trusted,
            spawn=config.trainer.strategy == "ddp_spawn",
        )
        _fit_and_score(
            config,
            run,
            parts,
            ranks,
            logger=logger,
            resume=resume,
            trusted=trusted,
            begun=begun,
            callbacks=start.callbacks if start else (),
        )
        if logger is not None:
            logger.log_outcome(Outcome(run.record, run.folder, parts.sets.get("dev")))


def _fit_and_score(
    config: Config,
    run: Run,
    parts: Parts,
    ranks: AbstractContextManager[None],
    *,
    logger: RunLogger | None,
    resume: bool,
    trusted: Sequence[str],
    begun: float,
    callbacks: Sequence[pl.Callback],
) -> None:
    """Train while ``ranks`` run, score with the best weights, and record the results."""
    gpu, task = machine.uses_gpu(config.trainer), task_of(config.model)
    prepared = time.perf_counter()
    with ranks:
        done: Fit = fit(
            config,
            parts,
            run.folder,
            gpu=gpu,
            resume=resume,
            publish=lambda epochs: run.note(epochs=_typed(epochs)),
            logger=logger,
            callbacks=callbacks,
        )
    store.load_weights(run.folder / MODEL, parts.model)
    task.finish(run.folder / MODEL, parts)
    parts.model.to("cuda" if gpu else "cpu")
    scored = evaluate_splits(task.predictor(config, parts), parts, run.folder, trusted)
    run.note(
        references=scored.references,
        status="ok",
        batch=done.batch,
        epochs=_typed(done.epochs),
        best_epoch=done.best_epoch,
        examples_per_second=done.examples_per_second,
        peak_memory_mb=machine.peak_memory_mb(gpu),
        seconds=Seconds(
            prepare=round(prepared - begun, 3),
            predict=round(scored.seconds, 3),
            **_seconds(done.epochs),
        ),
        **vars(scored.fits),
        scores=scored.scores,
        weights_bytes=store.weights_bytes(run.folder / MODEL),
    )


def _typed(epochs: Sequence[Mapping[str, Any]]) -> tuple[Epoch, ...]:
    return tuple(map(Epoch.from_flat, epochs))


def _seconds(epochs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Training seconds of all epochs, including those before a resume."""
    fit = sum(epoch["train_seconds"] for epoch in epochs)
    validation = sum(epoch.get("validation_seconds", 0.0) for epoch in epochs)
    return {"fit": round(fit, 3), "fit_with_validation": round(fit + validation, 3)}


def new_record(config: Config) -> RunRecord:
    """The record of a run that begins now."""
    commit, dirty = provenance.commit()
    return RunRecord(
        status="running",
        name=config.name,
        model=str(config.model.get("name", config.model["_target_"])),
        seed=config.seed,
        config=asdict(config),
        config_hash=config_hash(asdict(config)),
        commit=commit,
        dirty=dirty,
        created=provenance.now(),
        versions=provenance.versions(),
    )
