"""Fitting a model: Lightning's Trainer with our module, data and callbacks."""

from __future__ import annotations

import copy
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.plugins.environments import LightningEnvironment

from qa_arch.config.identity import config_hash
from qa_arch.config.launched import launched
from qa_arch.config.schema import Config
from qa_arch.errors import RunError
from qa_arch.models import store
from qa_arch.records import CALIBRATION, MODEL
from qa_arch.tasks import Parts, task_of
from qa_arch.training import devices
from qa_arch.training.checkpoint import (
    LAST,
    BestWeights,
    DurableCheckpoints,
    Interrupt,
    KeepLast,
    Patience,
    RandomState,
    SameConfig,
    deferred,
    newest,
)
from qa_arch.training.devices import PRECISIONS
from qa_arch.training.loggers import RunLogger
from qa_arch.training.module import TrainingData, TrainingModule
from qa_arch.training.progress import History, StepMetrics, TrainingProgress

log = logging.getLogger(__name__)
FABRIC = "lightning_fabric.utilities.distributed"
KNOWN_WARNINGS = (
    "not have many workers",
    "litlogger",
    "than the logging interval",  # we log epochs
    "isinstance.treespec",
    "dataloader is not resumable",  # our sampler resumes where it stopped
    "across ranks is zero",  # no calibration split
    "sync_dist=True",  # every rank has the scores of all
    "broadcast_buffers",
)


@dataclass(frozen=True)
class Fit:
    """Epochs, best epoch and speed of a finished fit; the weights are in the run folder."""

    epochs: list[dict[str, Any]]
    best_epoch: int | None
    seconds: float
    """Of training in all epochs, including those before a resume."""
    validation_seconds: float
    examples_per_second: float | None


def fit(
    config: Config,
    parts: Parts,
    folder: Path,
    *,
    gpu: bool,
    resume: bool,
    publish: Callable[[list[dict[str, Any]]], Any],
    logger: RunLogger | None = None,
    callbacks: Sequence[pl.Callback] = (),
) -> Fit:
    """Train ``parts.model``; the best weights on calibration lie in the run folder afterwards.

    ``publish`` and ``logger`` are given every epoch. ``callbacks`` come before those that save weights.
    """
    _quiet()
    settings = config.trainer
    checkpoint = newest(folder) if resume else None
    if resume and checkpoint is None:
        log.info("no checkpoint in %s yet: training starts from the beginning", folder)
    task = task_of(config.model)
    data = TrainingData(task.batches(config, parts), settings, seed=config.seed, pin=gpu)
    if task.lengths_are_tokens:
        log.info("padding: %.1f%% of the tokens computed", 100 * data.sampler().pad_share)
    world = int(os.environ.get("WORLD_SIZE", 1))
    strategy = devices.strategy_name(settings, world)
    sharded = strategy in devices.SHARDED
    trained = copy.deepcopy(parts.model) if sharded else parts.model
    history = History(publish)
    best = BestWeights(
        partial(store.save_weights, folder / MODEL),
        settings.select,
        whole=parts.model if sharded else None,
    )
    interrupt = Interrupt()
    trainer = _trainer(
        config,
        folder,
        [*callbacks, *_callbacks(config, folder, history, best, interrupt)],
        strategy,
        world=world,
        gpu=gpu,
        logger=logger,
    )
    if settings.compile:
        trained.compile()  # in place: torch.compile(model) would rename every weight
    # Optimizer steps of the whole schedule; the last of every epoch may be a smaller one.
    steps = -(-len(data.sampler(world=trainer.world_size)) // settings.accumulate) * settings.epochs
    steps = steps if settings.max_steps < 0 else min(steps, settings.max_steps)
    module = training_module(config, replace(parts, model=trained), total_steps=steps)
    try:
        with deferred(interrupt, announce=trainer.is_global_zero), _interruptible():
            trainer.fit(module, datamodule=data, ckpt_path=checkpoint, weights_only=True)
    except UnpicklingError as error:
        raise RunError(
            f"{checkpoint}: holds more than tensors and plain values, and is not opened; --if-exists replace"
            " starts the run anew"
        ) from error
    except KeyboardInterrupt:
        if interrupt.step is not None and trainer.is_global_zero:
            log.info("%s: the checkpoint after step %d", folder / LAST, interrupt.step)
        raise
    epochs = history.epochs
    seconds = sum(epoch["train_seconds"] for epoch in epochs)
    validation = sum(epoch.get("validation_seconds", 0.0) for epoch in epochs)
    speed = round(sum(epoch["windows"] for epoch in epochs) / seconds, 3) if seconds else None
    return Fit(epochs, best.epoch, seconds, validation, speed)


def training_module(config: Config, parts: Parts, *, total_steps: int) -> TrainingModule:
    """The module that trains ``parts.model`` on the config's task."""
    task = task_of(config.model)
    module = TrainingModule(
        parts.model,
        config.optim,
        task,
        loss=parts.loss,
        total_steps=total_steps,
        accumulate=config.trainer.accumulate,
        calibration=parts.sets.get(CALIBRATION),
        collector=partial(task.collector, config, parts, CALIBRATION),
        distiller=parts.distiller,
    )
    module.optimizer_bits = config.trainer.optimizer_bits  # type: ignore[assignment]
    return module


def _trainer(
    config: Config,
    folder: Path,
    callbacks: list[pl.Callback],
    strategy: str,
    *,
    world: int,
    gpu: bool,
    logger: RunLogger | None,
) -> pl.Trainer:
    """Lightning's Trainer, with the features switched off that our callbacks and samplers replace."""
    settings, place = config.trainer, launched()
    return pl.Trainer(
        accelerator="gpu" if gpu else "cpu",
        devices=place.local_world if place else settings.devices,
        num_nodes=place.nodes if place else 1,
        strategy=devices.make_strategy(strategy, world=world),
        # DeepSpeed has the gradients in shards and clips them itself.
        gradient_clip_val=config.optim.clip or None if strategy == "deepspeed" else None,
        precision=PRECISIONS[settings.precision],  # type: ignore[arg-type]
        max_epochs=settings.epochs,
        max_steps=settings.max_steps,
        accumulate_grad_batches=settings.accumulate,
        logger=logger or False,
        callbacks=callbacks,
        plugins=_plugins(),
        num_sanity_val_steps=0,
        # Under a token budget epochs differ in length, which Lightning reads off a new loader.
        reload_dataloaders_every_n_epochs=int(settings.token_budget is not None),
        use_distributed_sampler=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=folder,
    )


def _plugins() -> list[Any]:
    """Our checkpoint writer, and ranks from environment variables, inside a SLURM job as well."""
    return [DurableCheckpoints(), LightningEnvironment()]


def _callbacks(
    config: Config, folder: Path, history: History, best: BestWeights, interrupt: Interrupt
) -> list[pl.Callback]:
    settings = config.trainer
    callbacks: list[pl.Callback] = [SameConfig(config_hash(asdict(config))), best, history, RandomState()]
    if settings.patience:
        callbacks.append(Patience(task_of(config.model), settings.select, settings.patience))
    if config.logger["_target_"] and settings.log_every:
        callbacks.append(StepMetrics(settings.log_every))
    label = f"{config.model.get('name', 'model')} seed {config.seed}"
    callbacks.append(TrainingProgress(label, live=settings.progress))
    callbacks.append(KeepLast(folder, settings.checkpoint_minutes, settings.accumulate, interrupt))
    return callbacks


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let an interrupt through, which Lightning turns into an exit."""
    try:
        yield
    except SystemExit as error:
        if not isinstance(error.__context__, KeyboardInterrupt):
            raise
        raise KeyboardInterrupt from error


def _quiet() -> None:
    """Silence Lightning's announcements, which repeat ours, and its advice that does not apply here."""
    for name in ("pytorch_lightning.utilities.rank_zero", "pytorch_lightning.accelerators.cuda", FABRIC):
        logging.getLogger(name).setLevel(logging.WARNING)
    for part in KNOWN_WARNINGS:
        warnings.filterwarnings("ignore", f".*{part}.*")
