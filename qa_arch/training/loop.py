"""Fit a model: Lightning's Trainer with our module, data and callbacks."""

from __future__ import annotations

import copy
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.environments import LightningEnvironment

from qa_arch.config.launched import launched
from qa_arch.config.schema import Config, Trainer, recipe_of
from qa_arch.models import store
from qa_arch.records import CALIBRATION, MODEL
from qa_arch.spans import task
from qa_arch.spans.search import SpanCollector
from qa_arch.spans.teacher import assemble
from qa_arch.training import devices
from qa_arch.training.checkpoint import BestWeights, DurableCheckpoints, KeepLast, newest
from qa_arch.training.loggers import RunLogger
from qa_arch.training.module import Fitting, TrainingData, TrainingModule
from qa_arch.training.progress import History, TrainingProgress

log = logging.getLogger(__name__)
ANNOUNCING = (
    "pytorch_lightning.utilities.rank_zero",
    "pytorch_lightning.accelerators.cuda",
    "lightning_fabric.utilities.distributed",
)
"""Lightning's loggers whose messages repeat ours."""
KNOWN_WARNINGS = (
    "not have many workers",
    "litlogger",
    "than the logging interval",  # we log epochs
    "isinstance.treespec",
    "dataloader is not resumable",  # our sampler resumes where it stopped
    "across ranks is zero",  # no calibration split
    "sync_dist=True",  # every rank has the scores of all
    "broadcast_buffers",
    "`srun` command is available",  # on a login node, or for a run that starts its own ranks
)
Fitted = tuple[list[dict[str, Any]], int | None]
"""Records of the epochs, and the number of the best one."""


def span_fitting(config: Config, parts: task.SpanParts) -> Fitting:
    """What is fitted of a span model."""
    assert parts.loss is not None
    return Fitting(
        parts.model,
        parts.loss,
        task.batches(config, parts),
        task.output_of(config.model),
        lambda: SpanCollector(parts.sets[CALIBRATION], parts.tables[CALIBRATION], config.decode),
        lambda outputs: task.validation_scores(parts.sets[CALIBRATION], outputs),
        distiller=parts.distiller,
    )


def fitting_of(config: Config, trusted: Sequence[str]) -> Fitting:
    """What a run of ``config`` fits: every rank of it reads the data and builds the model."""
    if (recipe := recipe_of(config.model)) is not None:
        return recipe.load().fitting(config, trusted)
    return span_fitting(config, assemble(config, trusted))


def fit(
    config: Config,
    parts: Fitting,
    folder: Path,
    *,
    gpu: bool,
    resume: bool,
    publish: Callable[[list[dict[str, Any]]], Any],
    logger: RunLogger | None = None,
    callbacks: Sequence[pl.Callback] = (),
) -> Fitted:
    """Train ``parts.model``; return its epochs and the best one, whose weights are then in the run folder.

    ``publish`` and ``logger`` receive every epoch. ``callbacks`` run before those that save weights.
    """
    _silence_lightning()
    settings = config.trainer
    checkpoint, loaded = (newest(folder) if resume else None) or (None, None)
    if resume and checkpoint is None:
        log.info("no checkpoint in %s yet: training starts from the beginning", folder)
    data = TrainingData(parts.batches, settings, seed=config.seed, pin=gpu)
    world = int(os.environ.get("WORLD_SIZE", 1))
    strategy = devices.strategy_name(settings, world)
    sharded = strategy == "fsdp"
    trained = copy.deepcopy(parts.model) if sharded else parts.model
    save = partial(_save_best, parts.model, folder, sharded=sharded)
    best = BestWeights(save, settings.select, settings.patience)
    history = History(publish, settings.log_every)
    label = f"{config.model.get('name', 'model')} seed {config.seed}"
    keep = KeepLast(folder, settings.checkpoint_minutes, settings.accumulate)
    launch = launched()
    trainer = pl.Trainer(
        accelerator="gpu" if gpu else "cpu",
        devices=launch.local_world if launch else settings.devices,
        num_nodes=launch.nodes if launch else 1,
        strategy=devices.make_strategy(strategy, world=world),
        precision=devices.PRECISIONS[settings.precision],  # type: ignore[arg-type]
        max_epochs=settings.epochs,
        max_steps=settings.max_steps,
        accumulate_grad_batches=settings.accumulate,
        logger=logger or False,
        callbacks=[*callbacks, best, history, TrainingProgress(label, history, live=settings.progress), keep],
        # Ranks come from environment variables, even inside a SLURM job.
        plugins=[DurableCheckpoints(loaded), LightningEnvironment()],
        # Replaced by our callbacks and samplers.
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=folder,
    )
    # With max_steps Lightning would repeat, without batches, the epoch at whose end a checkpoint was saved.
    trainer.fit_loop._iteration_based_training = lambda: False  # type: ignore[method-assign]
    if settings.compile:
        trained.compile()  # in place: torch.compile(model) would rename every weight
    steps = _total_steps(settings, batches=len(data.sampler(world=trainer.world_size)))
    module = TrainingModule(config, replace(parts, model=trained), total_steps=steps)
    with _reporting_stops(keep, trainer), keep.interruptible(announce=trainer.is_global_zero):
        trainer.fit(module, datamodule=data, ckpt_path=checkpoint, weights_only=True)
    return history.epochs, best.epoch


def _silence_lightning() -> None:
    """Hide the messages of Lightning that repeat ours, and warnings about what is meant."""
    for name in ANNOUNCING:
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in KNOWN_WARNINGS:
        warnings.filterwarnings("ignore", f".*{message}.*")


def _save_best(model: torch.nn.Module, folder: Path, trainer: pl.Trainer, *, sharded: bool) -> None:
    """Save the weights of ``model``; sharded ones are first gathered into it, for which every rank calls."""
    if sharded:
        state = trainer.strategy.lightning_module_state_dict()
        if trainer.is_global_zero:
            prefix = "model."
            weights = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
            model.load_state_dict(weights)
    if trainer.is_global_zero:
        store.save_weights(folder / MODEL, model)


def _total_steps(settings: Trainer, *, batches: int) -> int:
    """Number of optimizer steps at ``batches`` an epoch; the last step of an epoch may be smaller."""
    steps = -(-batches // settings.accumulate) * settings.epochs
    return steps if settings.max_steps < 0 else min(steps, settings.max_steps)


@contextmanager
def _reporting_stops(keep: KeepLast, trainer: pl.Trainer) -> Iterator[None]:
    """Raise KeyboardInterrupt, after naming the last checkpoint, where Lightning exits because of one."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as error:
        if not any(isinstance(cause, KeyboardInterrupt) for cause in (error, error.__context__)):
            raise
        if keep.stopped_after is not None and trainer.is_global_zero:
            log.info("%s: the checkpoint after step %d", keep.path, keep.stopped_after)
        raise KeyboardInterrupt from error
