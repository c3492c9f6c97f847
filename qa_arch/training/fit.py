"""Fit a model with Lightning's Trainer, on the devices of this machine."""

from __future__ import annotations

import copy
import gc
import importlib.util
import logging
import math
import os
import random
import resource
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning import profilers
from pytorch_lightning.loggers import Logger
from pytorch_lightning.plugins.environments import LightningEnvironment
from pytorch_lightning.strategies import DDPStrategy, ModelParallelStrategy

from qa_arch.config.check import suggest
from qa_arch.config.machine import has_logger
from qa_arch.config.schema import Config, Trainer, divide_batch, recipe_of
from qa_arch.config.target import CALLBACKS, TRUSTED, arguments, locate
from qa_arch.errors import ConfigError, UnavailableError, one_line
from qa_arch.models import store
from qa_arch.nn.features import forward_flops
from qa_arch.nn.precision import bf16_is_faster
from qa_arch.process import launched
from qa_arch.provenance import processor
from qa_arch.qa import task
from qa_arch.qa.decoding import SpanCollector
from qa_arch.qa.start import assemble
from qa_arch.records import CALIBRATION, MODEL, Device
from qa_arch.training.checkpoint import BestWeights, DurableCheckpoints, KeepLast, naming, newest, require_own
from qa_arch.training.module import Fitting, TrainingData, TrainingModule
from qa_arch.training.progress import History, TrainingProgress

log = logging.getLogger(__name__)
BF16 = (8, 0)
"""Compute capability of the first GPUs with bf16 (Ampere)."""
TRAINING_PASSES = 3
"""Forward and backward pass, which has two products for each one (Kaplan et al. 2020, section 2.1)."""
PRECISIONS = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}
FLAGS = ("deterministic", "benchmark", "sync_batchnorm", "inference_mode", "detect_anomaly")
"""Settings that are Lightning's own, under its names."""
ANNOUNCING = (
    "pytorch_lightning.utilities.rank_zero",
    "pytorch_lightning.accelerators.cuda",
    "lightning_fabric.utilities.distributed",
)
"""Lightning's loggers whose messages repeat ours."""
KNOWN_WARNINGS = (
    "not have many workers",
    "litlogger",
    "isinstance.treespec",
    "dataloader is not resumable",  # our sampler resumes where it stopped
    "across ranks is zero",  # no calibration split
    "sync_dist=True",  # every rank has the scores of all
    "broadcast_buffers",
    "`srun` command is available",  # on a login node, or for a run that starts its own ranks
)
PROFILERS: Mapping[str, Any] = {
    "simple": profilers.SimpleProfiler,
    "advanced": profilers.AdvancedProfiler,
    "pytorch": profilers.PyTorchProfiler,
}
NO_CALLBACKS = {
    "Checkpoint": "a run keeps its best and its last weights itself; see trainer.select",
    "ProgressBar": "a run has its own; see trainer.progress",
    "GradientAccumulationScheduler": "use trainer.accumulate",
    "BatchSizeFinder": "use trainer.micro_batch=auto",
    "LearningRateFinder": "sweep optim.lr",
    "LearningRateMonitor": "a run logs the rates of its groups itself, as step/lr",
    "StochasticWeightAveraging": "the weights that are kept would not be those that were validated",
    "WeightAveraging": "the weights that are kept would not be those that were validated",
    "ModelPruning": "the weights would be saved under other names",
    "SpikeDetection": "it writes outside of the run folder; a loss that is not finite ends a run anyway",
}
"""Lightning's callbacks that a config may not name -> why, or what to use."""
Fitted = tuple[list[dict[str, Any]], int | None]
"""Records of the epochs, and the number of the best one."""


def require_machine(config: Config) -> None:
    """Raise ConfigError or UnavailableError if this machine lacks what the settings need; loads nothing."""
    settings = config.trainer
    available = torch.cuda.is_available()
    if settings.accelerator == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("trainer.accelerator: mps, but torch sees no Apple GPU; use trainer=cpu")
    if settings.accelerator == "gpu" and not available:
        raise ConfigError("trainer.accelerator: gpu, but torch sees no CUDA device; use trainer=cpu")
    if settings.precision == "fp16" and not available:
        raise ConfigError("trainer.precision: fp16 needs a GPU; use bf16 or fp32 on a CPU")
    used = resolve(settings)
    gpu = used.accelerator == "gpu"
    if used.accelerator == "mps" and (used.devices, used.precision) != (1, "fp32"):
        raise ConfigError(
            "trainer.accelerator: mps trains on one device in fp32; leave out trainer.devices and"
            " trainer.precision, or use trainer=cpu"
        )
    if settings.optimizer_bits == 8 and not gpu:
        raise ConfigError("trainer.optimizer_bits: 8 bits need a GPU; use 32, or auto")
    # Under torchrun and srun the devices are those of all machines.
    count = max(1, torch.cuda.device_count()) if gpu and launched() is None else None
    if count is not None and isinstance(settings.devices, int) and settings.devices > count:
        raise ConfigError(
            f"trainer.devices: {settings.devices}, but {count} GPU{'s are' if count > 1 else ' is'} visible"
            " here; request at most that many, or trainer.devices=auto"
        )
    if settings.strategy == "fsdp" and not gpu:
        raise ConfigError(
            "trainer.strategy: fsdp shards a model across GPUs, and none is available; use trainer=ddp, or"
            " trainer=cpu"
        )
    if settings.strategy == "fsdp" and used.precision == "fp16":
        raise ConfigError("trainer.precision: fsdp has no gradient scaler for fp16; use bf16 or fp32")
    own = str(config.model["_target_"]).startswith(TRUSTED)  # other classes mean what they like
    if own and config.model.get("kernel") == "fused" and not gpu:
        raise UnavailableError("model.kernel=fused: needs a GPU; use model.kernel=auto or plain")


def resolve(settings: Trainer) -> Trainer:
    """The settings on this machine: accelerator, devices, precision and optimizer bits are no longer
    ``auto``, and the batch is that of one device."""
    gpu = torch.cuda.is_available() and settings.accelerator in ("auto", "gpu")
    accelerator = "mps" if settings.accelerator == "mps" else "gpu" if gpu else "cpu"
    precision, bits, devices = settings.precision, settings.optimizer_bits, settings.devices
    if precision == "auto":
        precision = "fp32" if not gpu else "bf16" if torch.cuda.get_device_capability() >= BF16 else "fp16"
    if bits == "auto":
        bits = 8 if gpu and importlib.util.find_spec("bitsandbytes") else 32
    if devices == "auto":
        devices = torch.cuda.device_count() if gpu else 1
    here: Any = {"accelerator": accelerator, "precision": precision, "optimizer_bits": bits}
    return divide_batch(replace(settings, devices=devices, **here), devices)


def start_process(config: Config) -> Config:
    """Free the memory of a process that trains, seed it, and return ``config`` with ``resolve``d settings."""
    reset_peak_memory()
    seed_everything(config.seed)
    is_new = config.encoder.init == "random" and not config.init_from
    if is_new and config.encoder.layers and config.has_encoder:
        log.info("encoder: %s", config.encoder.title)
    settings = resolve(config.trainer)
    if config.optim.name != "adamw":  # the only one with 8-bit states
        settings = replace(settings, optimizer_bits=32)
    if (settings.accelerator, settings.precision) == ("cpu", "bf16") and not bf16_is_faster():
        log.warning("trainer.precision: this processor only emulates bf16; trainer.precision=fp32 is faster")
    world = int(settings.devices)
    log.info(
        "batch: %d windows per optimizer step (batch_size %d x accumulate %d x devices %d)",
        settings.batch_size * settings.accumulate * world,
        settings.batch_size,
        settings.accumulate,
        world,
    )
    return replace(config, trainer=settings)


def span_fitting(config: Config, parts: task.SpanParts) -> Fitting:
    """What is fitted of a span model."""
    assert parts.loss is not None
    return Fitting(
        model=parts.model,
        loss=parts.loss,
        batches=task.batches(config, parts),
        output=task.output_of(config.model),
        # Both are called only where there is a calibration split.
        collector=lambda: SpanCollector(parts.sets[CALIBRATION], parts.tables[CALIBRATION], config.decode),
        scores=lambda outputs: task.validation_scores(parts.sets[CALIBRATION], outputs),
        distiller=parts.distiller,
        callbacks=parts.callbacks,
    )


def fitting_of(config: Config, trusted: Sequence[str]) -> Fitting:
    """What a run of ``config`` fits: every rank of it reads the data and builds the model."""
    if (recipe := recipe_of(config.model)) is not None:
        module = recipe.load()
        return module.fitting(config, module.assemble(config, trusted))
    return span_fitting(config, assemble(config, trusted))


def fit(
    config: Config,
    fitting: Fitting,
    folder: Path,
    *,
    resume: bool = False,
    trusted: Sequence[str] = TRUSTED,
    publish: Callable[[list[dict[str, Any]]], Any] = lambda epochs: None,
    loggers: Sequence[Logger] = (),
) -> Fitted:
    """Train ``fitting.model``; return its epochs and the best one, whose weights are then in the run folder.

    ``publish`` and ``loggers`` receive every epoch. With ``trainer.epochs=0`` the weights stay as
    they are, and are saved.
    """
    _silence_lightning()
    flops = window_flops(fitting)
    checkpoint, loaded = (newest(folder) if resume else None) or (None, None)
    if resume and checkpoint is None:
        log.info("no checkpoint in %s yet: training starts from the beginning", folder)
    world, pin = int(config.trainer.devices), config.trainer.accelerator == "gpu"
    data = TrainingData(fitting.batches, config.trainer, seed=config.seed, pin=pin)
    settings = data.settings = within_flops(data, flops, world=world)
    # Sharding takes a model apart; the best weights are gathered into the whole one.
    sharded = strategy_name(settings) == "fsdp"
    trained = copy.deepcopy(fitting.model) if sharded else fitting.model
    save = partial(_save_best, fitting.model, folder, sharded=sharded)
    best = BestWeights(save, settings.select, settings.patience)
    history = History(publish, settings.log_every, flops)
    label = f"{config.model.get('name', 'model')} seed {config.seed}"
    bar = TrainingProgress(label, history, live=settings.progress)
    keep = KeepLast(folder, settings.checkpoint_minutes, settings.accumulate)
    # In this order: the bar reads the history, and the last one's checkpoint holds the state of all.
    callbacks = [*fitting.callbacks(), *build_callbacks(config, trusted)]
    callbacks += [best, history, bar, MaxSteps(settings.max_steps), keep]
    trainer = _trainer(data, folder, callbacks=callbacks, logger=loggers or False, loaded=loaded)
    if settings.compile:
        trained.compile()  # in place: torch.compile(model) would rename every weight
    steps = data.total_steps(world=world)
    module = TrainingModule(config, replace(fitting, model=trained), total_steps=steps)
    if checkpoint is not None:
        require_own(checkpoint, loaded, module)
    stops = keep.interruptible(announce=trainer.is_global_zero)
    with naming(checkpoint, lambda: module.begun), _reporting_stops(keep, trainer), stops:
        trainer.fit(module, datamodule=data, ckpt_path=checkpoint, weights_only=True)
    if not settings.epochs:  # no epoch has saved it, but the run loads what is saved
        save(trainer)
    return history.epochs, best.epoch


def _trainer(data: TrainingData, folder: Path, *, loaded: Any, **given: Any) -> pl.Trainer:
    """Lightning's Trainer for the settings of ``data``, on all ranks; ``loaded``: a checkpoint as read."""
    settings, launch, world = data.settings, launched(), int(data.settings.devices)
    limited, profiler = settings.limit_train_batches is not None, settings.profiler
    return pl.Trainer(
        accelerator=settings.accelerator,
        devices=launch.local_world if launch else settings.devices,  # per machine, as Lightning counts them
        num_nodes=launch.nodes if launch else 1,
        strategy=make_strategy(strategy_name(settings), world=world),
        precision=PRECISIONS[settings.precision],  # type: ignore[arg-type]
        max_epochs=settings.epochs,
        accumulate_grad_batches=settings.accumulate,
        log_every_n_steps=1,
        limit_train_batches=data.epoch_batches(world=world) if limited else None,
        **{name: getattr(settings, name) for name in FLAGS},
        profiler=profiler and PROFILERS[profiler](dirpath=folder, filename="profile"),
        # Ranks come from environment variables, even inside a SLURM job.
        plugins=[DurableCheckpoints(loaded), LightningEnvironment()],
        # Replaced by our callbacks and samplers.
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **given,
    )


def window_flops(fitting: Fitting) -> float:
    """Mean FLOPs of training on a window: counted for two, in proportion to their tokens."""
    lengths = np.asarray(fitting.batches.train.lengths)
    batch = next(iter(fitting.batches.sampler(lengths, batch_size=2)))
    rows = batch[1] if isinstance(batch, tuple) else batch  # (epoch, rows) of data that is drawn anew
    flops = TRAINING_PASSES * forward_flops(fitting.model, fitting.batches.train(batch))
    return flops * lengths.mean() / lengths[rows].sum()


def within_flops(data: TrainingData, flops: float, *, world: int) -> Trainer:
    """Settings of ``data`` with as many steps as ``max_flops`` pays for, at ``flops`` for each window.

    Raises ConfigError, with the number of epochs needed, if ``trainer.epochs`` is too small to spend them.
    """
    settings, windows = data.settings, len(data.train.lengths)
    if settings.max_flops is None:
        return settings
    # A step costs what it costs on average over all windows, also where epochs are limited.
    every = math.ceil(windows / (settings.batch_size * settings.accumulate * world))
    steps = settings.max_flops / (flops * windows) * every
    epochs = steps * settings.accumulate / data.epoch_batches(world=world)
    if epochs > settings.epochs:
        raise ConfigError(
            f"trainer.max_flops: {settings.max_flops:g} are {epochs:.2f} epochs of this model, more than"
            f" trainer.epochs={settings.epochs}; set trainer.epochs={math.ceil(epochs)}"
        )
    whole = max(1, round(steps))
    log.info("trainer.max_flops: %d optimizer steps, %.2f epochs", whole, epochs)
    return replace(settings, max_steps=whole)


def build_callbacks(config: Config, trusted: Sequence[str]) -> list[pl.Callback]:
    """New callbacks of the section ``callbacks``, which run before ours.

    Raises ConfigError for a class that is no callback or one of ``NO_CALLBACKS``, for wrong arguments, and
    for a callback that needs a calibration split or a logger where there is none.
    """
    built, missing = [], {}
    if not config.data.has_calibration:
        remedy = "set data.calibration, data.hold_out_articles or data.hold_out_share, or leave it out"
        missing["EarlyStopping"] = f"a calibration split and there is none; {remedy}"
    if not has_logger({"logger": config.logger}):
        remedy = "choose one, such as logger=csv, or leave it out"
        missing["DeviceStatsMonitor"] = f"a logger and there is none; {remedy}"
    for name, section in config.callbacks.items():
        where = f"callbacks.{name}"
        target = locate(section.get("_target_"), (*trusted, CALLBACKS), where)
        if not issubclass(target, pl.Callback):
            raise ConfigError(
                f"{where}._target_: {target.__name__} is not a subclass of Lightning's Callback"
            )
        for base in target.__mro__:  # a subclass does the same
            if base.__name__ in NO_CALLBACKS:
                raise ConfigError(f"{where}: {target.__name__}: {NO_CALLBACKS[base.__name__]}")
            if base.__name__ in missing:
                raise ConfigError(f"{where}: {target.__name__} needs {missing[base.__name__]}")
        settings = arguments(target, section, (), where=where, descriptive=("_target_",))
        try:
            built.append(target(**settings))
        except Exception as error:  # whatever a constructor of the user's raises
            raise ConfigError(f"{where}: {target.__name__}: {one_line(error)}") from error
        watched = built[-1].monitor if isinstance(built[-1], pl.callbacks.EarlyStopping) else None
        if watched is not None and recipe_of(config.model) is None and watched not in task.MONITORED:
            raise ConfigError(f"{where}.monitor: no score {watched!r}{suggest(watched, task.MONITORED)}")
    return built


@dataclass(eq=False)
class MaxSteps(pl.Callback):
    """Ends training after ``steps`` optimizer steps; -1: never.

    Lightning's own ``max_steps`` would repeat, without batches, the epoch that a checkpoint ended.
    """

    steps: int

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # A run that is resumed may be at its end already.
        trainer.should_stop = trainer.should_stop or 0 <= self.steps <= trainer.global_step

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        self.on_train_start(trainer, pl_module)


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


@contextmanager
def _reporting_stops(keep: KeepLast, trainer: pl.Trainer) -> Iterator[None]:
    """Raise KeyboardInterrupt, after naming the last checkpoint, where Lightning exits because of one."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as error:
        # Lightning calls sys.exit while it handles the interrupt, which is then the context.
        if not any(isinstance(cause, KeyboardInterrupt) for cause in (error, error.__context__)):
            raise
        if keep.stopped_after is not None and trainer.is_global_zero:
            log.info("%s: the checkpoint after step %d", keep.path, keep.stopped_after)
        raise KeyboardInterrupt from error


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch, without Lightning's environment variable, which leaks into later runs."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def strategy_name(settings: Trainer) -> str:
    """Strategy of resolved settings for the record; ``single`` for one process."""
    if settings.devices == 1 and settings.strategy != "fsdp":
        return "single"
    return "ddp" if settings.strategy == "auto" else settings.strategy


def make_strategy(name: str, *, world: int) -> Any:
    """Strategy argument of ``pl.Trainer``."""
    if name == "fsdp":
        # Not distributed, so that a checkpoint is one file, written and read like any other.
        return ModelParallelStrategy(
            data_parallel_size=world, tensor_parallel_size=1, save_distributed_checkpoint=False
        )
    # Our only buffers are frozen word vectors, which need no broadcast.
    return "auto" if name == "single" else DDPStrategy(broadcast_buffers=False)


def device_facts(kind: str) -> Device:
    """Device kind and name, CPU cores, torch threads and GPU memory."""
    gpu = kind == "cuda"
    memory = round(torch.cuda.get_device_properties(0).total_memory / 2**30, 1) if gpu else None
    return Device(
        kind=kind,
        name=torch.cuda.get_device_name() if gpu else processor(),
        cores=os.cpu_count(),
        threads=torch.get_num_threads(),
        memory_gb=memory,
    )


def reset_peak_memory() -> None:
    """Free unused memory and reset its peak, which may stem from an earlier run in this process."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):  # not Linux, or sandboxed: the peak stays that of the whole process
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # proc(5): resets VmHWM


def peak_memory_mb(gpu: bool) -> float:
    """Peak allocated GPU memory, or peak resident memory of the process, in MiB."""
    if gpu:
        return round(torch.cuda.max_memory_allocated() / 2**20, 1)
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="ascii", errors="replace").splitlines() if status.exists() else ()
    for line in lines:
        if line.startswith("VmHWM:"):
            return round(int(line.split()[1]) / 2**10, 1)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)  # bytes on macOS, else KiB
