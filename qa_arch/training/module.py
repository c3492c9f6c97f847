"""LightningModule, LightningDataModule and optimizer, shared by spans and the recipes of extras.

On the first batch, the shapes of outputs and losses are checked against those that the task expects: the
annotations of the output's fields, ``Float[Tensor, "B T"]``, with the sizes of the batch.
"""

from __future__ import annotations

import inspect
import logging
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any, Literal, get_args, get_type_hints

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.strategies import DDPStrategy, ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset

from qa_arch.config.schema import Config, Trainer
from qa_arch.config.target import source_line
from qa_arch.errors import QaArchError, RunError
from qa_arch.features.batches import BucketBatchSampler
from qa_arch.nn.encoder import AnyEncoder, Encoder
from qa_arch.nn.losses import Loss
from qa_arch.nn.reading import Batches, Collate, Collector, evaluating
from qa_arch.process import die_with
from qa_arch.provenance import identify
from qa_arch.tensors import Batch, output_tensors
from qa_arch.training.checkpoint import random_state, restore_random_state

log = logging.getLogger(__name__)
PADDING_EFFECT = 1e-3
"""Relative change of scores by padding that cannot be rounding."""


@dataclass(frozen=True)
class Fitting:
    """What is fitted: a model and its loss, their batches, and how an epoch is validated."""

    model: nn.Module
    loss: Loss
    batches: Batches
    output: Any
    """Type of the model's output: a dataclass of tensors, or a tensor with named axes."""
    collector: Callable[[], Collector]
    """Gives an empty collector of the outputs on calibration."""
    scores: Callable[[Any], dict[str, float]]
    """What the collector has -> ``calibration_*`` scores of an epoch."""
    monitor: str | None = None
    """Calibration score that selects the best epoch; None: that of ``trainer.select``, and the loss of the
    calibration split is computed and recorded as well."""
    distiller: Any = None
    """Computes the loss if there is a teacher."""
    callbacks: Callable[[], Sequence[pl.Callback]] = tuple
    """Gives callbacks of the model's own, which run before those that save weights."""


class TrainingModule(pl.LightningModule):
    """Trains ``fitting.model`` on ``fitting.loss``; validates by reading every row of calibration once.

    The loss of an optimizer step is the mean over its windows on all ranks and in all accumulated batches,
    whatever their sizes: ``window_total`` of the sampler gives their number beforehand. Lightning divides
    by ``accumulate`` and DDP averages over ranks, so the loss is first multiplied by both. With a
    distiller, the loss is one term of the weighted sum that is minimised.
    """

    def __init__(self, config: Config, fitting: Fitting, *, total_steps: int) -> None:
        super().__init__()
        self.config = config
        self.optim = config.optim
        self.fitting = fitting
        self.model = fitting.model
        self.loss = fitting.loss
        self.distiller = fitting.distiller
        self.terms = fitting.distiller.terms if fitting.distiller is not None else ()
        self.total_steps = total_steps
        self.train_sums = torch.zeros(2, 2 + len(self.terms), dtype=torch.float64)
        """(2, 2 + terms) sums on this rank of losses, windows and each term of a distiller: over the epoch so
        far, and since its last log entry. Not a buffer: DDP would overwrite it with that of rank 0."""
        self.is_first = True
        """Whether the next training batch is the first."""
        self.seeks_padding = False
        """Whether training still looks for a batch with padding, to see whether it changes the scores."""
        self.gradient_norm: torch.Tensor | None = None
        """Gradient norm of the last step, before clipping."""
        self.random_states: list[dict[str, Any]] = []
        """Random state of each rank, from the checkpoint that is resumed."""
        self.begun = False
        """Whether a checkpoint, if there is one, has been restored."""

    def setup(self, stage: str) -> None:
        """Raise RunError, before the model is wrapped, if the ranks have different configs.

        A rank of another run that connects to this address would otherwise share gradients unnoticed.
        """
        hashes = self._gather_from_ranks(identify(asdict(self.config)).settings_hash)
        if len(set(hashes)) > 1:
            listed = ", ".join(f"rank {rank}: {value[:8]}" for rank, value in enumerate(hashes))
            raise RunError(f"the ranks of this run have different configs ({listed}); start it again")

    def configure_model(self) -> None:
        """Shard every parameter over the ranks (FSDP2) and gather it layer by layer when needed.

        Zhao et al. 2023, "PyTorch FSDP"; each encoder layer is a group, and the rest of the model the last.
        """
        if isinstance(self.trainer.strategy, ModelParallelStrategy):
            assert self.device_mesh is not None
            mesh, encoder = self.device_mesh["data_parallel"], getattr(self.model, "encoder", None)
            for layer in encoder.layers() if isinstance(encoder, Encoder) else ():
                fully_shard(layer, mesh=mesh)
            fully_shard(self.model, mesh=mesh)

    def configure_optimizers(self) -> Any:
        groups = parameter_groups(
            self.model, lr=self.optim.lr, head_lr=self.optim.head_lr, weight_decay=self.optim.weight_decay
        )
        # Fused takes a third of the time, even on a CPU, but unscales gradients itself: too late to clip.
        fused = self.trainer.precision != "16-mixed"
        bits: Any = self.config.trainer.optimizer_bits
        optimizer = make_optimizer(self.optim.name, groups, fused=fused, bits=bits)
        scheduler = schedule(optimizer, self.optim.schedule, steps=self.total_steps, warmup=self.optim.warmup)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["train_sums"] = self._sum_over_ranks(self.train_sums).tolist()
        checkpoint["random"] = self._gather_from_ranks(random_state())  # which Lightning leaves out

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        saved_world, world = len(checkpoint["random"]), self.trainer.world_size
        if saved_world != world:  # devices=auto on a machine with more or fewer devices
            raise RunError(
                f"a checkpoint of world size {saved_world} cannot be resumed with world size {world}:"
                " some windows would be trained on twice and others never; use as many devices as before,"
                " or --if-exists replace"
            )
        self.random_states = checkpoint["random"]
        if self.trainer.is_global_zero:  # sums over all ranks, which are added up again
            self.train_sums = torch.tensor(checkpoint["train_sums"], dtype=torch.float64)
        progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
        if not progress["is_last_batch"]:  # "completed" still lacks the batch after which it was saved
            self.trainer.datamodule.resume_at = progress["current"]["processed"]  # type: ignore[attr-defined]

    def on_train_start(self) -> None:
        wide = torch.float32 if self.device.type == "mps" else torch.float64  # which Apple's GPUs lack
        self.train_sums = self.train_sums.to(self.device, wide)
        if self.random_states:
            restore_random_state(self.random_states[self.trainer.global_rank])
        self.random_states, self.begun = [], True
        # Not where it would compile the model again, gather shards on one rank or disturb a distiller.
        sharded = isinstance(self.trainer.strategy, ModelParallelStrategy)
        unfit = self.config.trainer.compile or sharded or self.distiller is not None
        self.seeks_padding = self.trainer.is_global_zero and not unfit

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        if type(self.trainer.strategy) is DDPStrategy:  # DDP itself fails only at the next batch
            parameters = self.model.named_parameters()
            if unused := [name for name, p in parameters if p.requires_grad and p.grad is None]:
                raise QaArchError(
                    f"{', '.join(unused[:4])}: no gradient, but on several devices every parameter of a model"
                    f" needs one ({len(unused)} have none); use or remove them, then run qa-arch check-model"
                )
        if self.optim.clip:  # not Lightning's clipping, which needlessly refuses fused optimizers
            self.gradient_norm = torch.nn.utils.clip_grad_norm_(self.parameters(), self.optim.clip)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if batch_idx == 0:
            self.train_sums.zero_()

    def losses_and_terms(self, batch: Any) -> tuple[Tensor, list[Tensor]]:
        """(B,) loss of each row of a batch, and each term of a distiller."""
        if self.distiller is None:
            return self._checked_loss(batch, self.model(batch)), []
        values = self.distiller(self.model, batch, lambda logits: self._checked_loss(batch, logits))
        return values["loss"], [values[name] for name in self.terms]

    def _checked_loss(self, batch: Any, logits: Any) -> Tensor:
        """(B,) loss of each row; on the first batch, check the shapes of logits and losses."""
        first, self.is_first = self.is_first, False
        if first:
            check_output(self.model, batch, logits, self.fitting.output)
        if self.seeks_padding:
            self._warn_of_padding(batch)
        losses = self.loss(logits, batch.labels)
        if first:
            check_losses(self.loss, batch, losses)
        return losses

    def _warn_of_padding(self, batch: Any) -> None:
        effect = padding_effect(self.model, batch)
        self.seeks_padding = effect is None
        if effect is not None and effect > PADDING_EFFECT:
            log.warning(
                "padding changes the scores of a window by %.2g%%, so they depend on the batch that it is in;"
                " apply the batch's masks wherever tokens are mixed: qa-arch check-model shows details",
                100 * effect,
            )

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        losses, terms = self.losses_and_terms(batch)
        weight = batch.weight
        total = (losses * weight).sum()
        sums = [total, weight.sum(), *(term.mul(weight).sum() for term in terms)]
        self.train_sums += torch.stack([value.detach() for value in sums]).to(self.train_sums.dtype)
        windows = self.trainer.train_dataloader.sampler.window_total(batch_idx)  # type: ignore[union-attr]
        return total * (self.config.trainer.accumulate * self.trainer.world_size / windows)

    def on_validation_epoch_start(self) -> None:
        self.collector = self.fitting.collector()
        self.eval_sums = torch.zeros(2, dtype=self.train_sums.dtype, device=self.device)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        output = self.model(batch)
        self.collector.add(batch, output)
        if self.fitting.monitor is None:
            weight = batch.weight
            total = (self.loss(output, batch.labels) * weight).sum()
            self.eval_sums += torch.stack([total, weight.sum()]).to(self.eval_sums.dtype)

    def on_validation_epoch_end(self) -> None:
        scores = self.fitting.scores(gather(self.collector))
        if self.fitting.monitor is None:
            loss, windows = self._sum_over_ranks(self.eval_sums).tolist()
            scores["calibration_loss"] = loss / windows if windows else 0.0
            if math.isnan(loss):  # as after a last step that diverged, which no training loss shows
                raise QaArchError(self._not_finite("calibration loss", loss))
        # ``History`` passes them to the loggers, once per epoch.
        self.log_dict(scores, sync_dist=False, rank_zero_only=False, batch_size=1, logger=False)

    def mean_losses(self, *, since_entry: bool = False) -> tuple[dict[str, float], int]:
        """Mean ``loss`` and distiller terms per window, and the number of windows, over all ranks.

        Covers the epoch so far, or with ``since_entry`` the windows since the last such call.
        Raises QaArchError, on all ranks, for a mean that is NaN or infinite, except in fp16.
        """
        loss, windows, *terms = self._sum_over_ranks(self.train_sums[int(since_entry)]).tolist()
        if since_entry:
            self.train_sums[1].zero_()
        sums = dict(zip(("loss", *self.terms), (loss, *terms), strict=True))
        means = {name: total / windows if windows else 0.0 for name, total in sums.items()}
        for name, mean in means.items():
            if not math.isfinite(mean) and self.trainer.precision != "16-mixed":  # fp16 skips such steps
                raise QaArchError(self._not_finite(f"mean training {name}", mean))
        return means, round(windows)

    def _not_finite(self, name: str, value: float) -> str:
        return (
            f"epoch {self.current_epoch + 1}: the {name} is {value}; lower optim.lr, or look for divisions by"
            " zero and completely masked rows in the model and the loss"
        )

    def _sum_over_ranks(self, sums: Tensor) -> Tensor:
        return self.trainer.strategy.reduce(sums.clone(), reduce_op="sum")  # it reduces in place

    def _gather_from_ranks(self, value: Any) -> list[Any]:
        values = [value] * self.trainer.world_size
        if len(values) > 1:
            dist.all_gather_object(values, value)
        return values


def gather(collector: Collector) -> Any:
    """Outputs of all ranks, returned on every rank, so that all take the same decisions."""
    if dist.is_available() and dist.is_initialized():
        rank_parts: list[list[Any]] = [[] for _ in range(dist.get_world_size())]
        dist.all_gather_object(rank_parts, collector.parts)
        collector.parts = [part for parts in rank_parts for part in parts]
    return collector.result()


@dataclass(eq=False)
class BatchDataset(Dataset):
    """Dataset whose items are whole batches: the sampler yields lists of rows."""

    collator: Collate

    def __getitem__(self, rows: Any) -> Any:
        return self.collator(rows)


class TrainingData(pl.LightningDataModule):
    """Length-bucketed training batches and sorted calibration batches, each row once per epoch.

    With ``batch_size=None`` the loader does no batching of its own, and Lightning sets the epoch on our
    sampler, which also lets a resumed epoch continue where it stopped.
    """

    def __init__(self, batches: Batches, settings: Trainer, *, seed: int, pin: bool = False) -> None:
        super().__init__()
        self.train, self.calibration, self.new_sampler = batches.train, batches.calibration, batches.sampler
        self.settings, self.seed, self.pin = settings, seed, pin
        self.resume_at = 0

    def sampler(self, *, rank: int = 0, world: int = 1) -> BucketBatchSampler:
        """The training sampler of one rank."""
        return self.new_sampler(
            self.train.lengths,
            batch_size=self.settings.batch_size,
            seed=self.seed,
            shuffle=True,
            rank=rank,
            world=world,
            accumulate=self.settings.accumulate,
        )

    def epoch_batches(self, *, world: int) -> int:
        """Number of batches of an epoch on each rank; a limited epoch has no partial optimizer step."""
        batches, settings = len(self.sampler(world=world)), self.settings
        limit = settings.limit_train_batches
        if limit is None:
            return batches
        limit = math.ceil(limit * batches) if isinstance(limit, float) else limit
        return min(batches, -(-limit // settings.accumulate) * settings.accumulate)

    def total_steps(self, *, world: int) -> int:
        """Number of optimizer steps of a training; the last one of an epoch may be smaller."""
        batches, settings = self.epoch_batches(world=world), self.settings
        steps = -(-batches // settings.accumulate) * settings.epochs
        return steps if settings.max_steps < 0 else min(steps, settings.max_steps)

    def train_dataloader(self) -> DataLoader:
        assert self.trainer is not None
        sampler = self.sampler(rank=self.trainer.global_rank, world=self.trainer.world_size)
        # In this order: Lightning sets the epoch again, and another one would start from its beginning.
        sampler.set_epoch(self.trainer.current_epoch)
        sampler.start_at(self.resume_at)
        self.resume_at = 0
        return self._loader(self.train, sampler)

    def val_dataloader(self) -> DataLoader | list:
        if self.calibration is None:
            return []
        assert self.trainer is not None
        sampler = BucketBatchSampler(
            self.calibration.lengths,
            batch_size=self.settings.eval_batch_size,
            seed=0,
            shuffle=False,
            rank=self.trainer.global_rank,
            world=self.trainer.world_size,
        )
        return self._loader(self.calibration, sampler)

    def _loader(self, collator: Collate, sampler: BucketBatchSampler) -> DataLoader:
        return DataLoader(
            BatchDataset(collator),
            batch_size=None,
            sampler=sampler,
            num_workers=self.settings.workers,
            worker_init_fn=partial(_die_with_parent, os.getpid()),  # else they outlive a killed run
            generator=torch.Generator(),  # each pass draws a seed: not from the generator that dropout uses
            pin_memory=self.pin,
            persistent_workers=False,
        )


def _die_with_parent(parent: int, worker: int) -> None:
    die_with(parent)


Optimizer = Literal["adamw", "adamax"]


def parameter_groups(
    model: nn.Module, *, lr: float, head_lr: float | None, weight_decay: float
) -> list[dict]:
    """One group per (learning rate, weight decay) pair of the trainable parameters.

    Everything outside the encoder gets ``head_lr``, by default ``lr``; biases and norms (one axis) are not
    decayed. The ``name`` of a group lists the parts that share its rate: ``encoder``, ``head`` or
    both, such as ``encoder-head``.
    """
    encoder = getattr(model, "encoder", None)
    # A custom model may have another kind of attribute of that name.
    inside = {id(p) for p in encoder.parameters()} if isinstance(encoder, AnyEncoder) else ()
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    names: dict[float, list[str]] = {}
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        part, rate = ("encoder", lr) if id(parameter) in inside else ("head", head_lr or lr)
        decay = weight_decay if parameter.ndim > 1 else 0.0
        groups.setdefault((rate, decay), []).append(parameter)
        names.setdefault(rate, []).append(part)
    return [
        {"params": params, "lr": rate, "weight_decay": decay, "name": "-".join(dict.fromkeys(names[rate]))}
        for (rate, decay), params in groups.items()
    ]


def make_optimizer(
    name: Optimizer, groups: list[dict], *, fused: bool, bits: int = 32
) -> torch.optim.Optimizer:
    """Optimizer ``name`` over ``groups``; ``fused`` applies to AdamW.

    With ``bits=8``, AdamW stores its two moments in 8 bits (Dettmers et al. 2022).
    """
    if name == "adamax":  # Kingma & Ba 2015, section 7.1
        return torch.optim.Adamax(groups, foreach=True)
    if bits == 8:
        from bitsandbytes.optim import AdamW8bit  # type: ignore[import-not-found]

        return AdamW8bit(groups)
    return torch.optim.AdamW(groups, fused=fused)


def schedule(
    optimizer: torch.optim.Optimizer,
    kind: Literal["linear", "cosine", "constant"],
    *,
    steps: int,
    warmup: float,
) -> LambdaLR:
    """Linear warmup over the first ``warmup`` share of ``steps``, then decay to 0 (none if ``constant``)."""
    warmup_steps = round(steps * warmup)

    def factor(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / warmup_steps  # the first step has a rate, too
        progress = min(1.0, (step - warmup_steps) / max(1, steps - warmup_steps))
        if kind == "linear":
            return 1.0 - progress
        return 0.5 * (1.0 + math.cos(math.pi * progress)) if kind == "cosine" else 1.0

    return LambdaLR(optimizer, factor)


class OutputError(QaArchError):
    """Output of a model or a loss that its task does not accept; the message names file, line and field."""


def check_output(model: nn.Module, batch: Any, output: Any, expected_type: Any) -> None:
    """Raise OutputError unless ``output`` fits its type: a dataclass of tensors or a tensor of named axes."""
    place = f"{source_line(type(model).forward)}: {type(model).__name__}.forward"
    fields = [("the output", output, expected_type)]
    if is_dataclass(expected_type):
        name = getattr(expected_type, "__name__", "record")
        if not isinstance(output, expected_type):  # type: ignore[arg-type]
            raise OutputError(f"{place} returns a {type(output).__name__}, expected a {name}")
        hints = get_type_hints(expected_type).items()
        fields = [(f"{name}.{key}", getattr(output, key), hint) for key, hint in hints]
    axes: dict[str, int] = {}
    for key, hint in get_type_hints(type(batch)).items():
        value = getattr(batch, key)
        if (names := _axes(hint)) and isinstance(value, Tensor):
            axes |= dict(zip(names, value.shape, strict=True))
    for field, value, hint in fields:
        names = _axes(hint)
        if names is None or (value is None and type(None) in get_args(hint)):
            continue
        if isinstance(value, Tensor) and value.ndim == len(names):
            for name, size in zip(names, value.shape, strict=True):
                axes.setdefault(name, size)  # the first field sets axes that the batch lacks
        expected = tuple(axes.get(name, "any") for name in names)
        if not isinstance(value, Tensor) or tuple(value.shape) != expected:
            shapes = f"expected {_shown(names)} = {_shown(expected)}"
            raise OutputError(f"{place}: {field} is {_shown(value)}, {shapes}")
        if not value.is_floating_point():
            raise OutputError(f"{place}: {field} holds {value.dtype}; scores must be floating point")
        if number := int(value.isnan().sum()):
            raise OutputError(
                f"{place}: {field} is NaN in {number:,} of {value.numel():,} places; look for divisions by"
                " zero and rows that are masked completely"
            )


def check_losses(loss: Any, batch: Any, losses: Any) -> None:
    """Raise OutputError unless a loss returns one value per row of the batch."""
    if not isinstance(losses, Tensor) or losses.shape != (len(batch),):
        place = source_line(type(loss).__call__ if not inspect.isroutine(loss) else loss)
        raise OutputError(
            f"{place}: {type(loss).__name__} returns {_shown(losses)}, expected (B,) = ({len(batch)},):"
            " one loss per row, not reduced"
        )


def padding_effect(model: nn.Module, batch: Any) -> float | None:
    """Largest change of the scores of the batch's shortest row when the batch's padding is taken away,
    relative to its largest score, in fp32 without dropout; None without padding or windows."""
    if not isinstance(batch, Batch) or batch.mask.all():
        return None
    mask = batch.mask
    lengths = mask.sum(1)
    # The longest row comes along, as a model may cut a batch to its longest row and so drop the padding.
    short, longest = int(lengths.argmin()), int(lengths.argmax())
    length = int(lengths[short])
    if not mask[short, :length].all():  # padding is not at the end
        return None
    # In reduced precision a sum of other length alone would change the scores.
    with evaluating(model), torch.no_grad(), torch.autocast(mask.device.type, enabled=False):
        padded, alone = (
            output_tensors(model(_rows(batch, rows, width))).values()
            for rows, width in (([short, longest], mask.shape[1]), ([short], length))
        )
    changes, largest = [0.0], [0.0]
    for before, after in zip(alone, padded, strict=True):
        # Positions of padding have no counterpart in the row alone.
        again = after[0][tuple(map(slice, before[0].shape))]
        if (finite := before[0].isfinite() & again.isfinite()).any():
            changes.append(float((again - before[0])[finite].abs().max()))
            largest.append(float(before[0][finite].abs().max()))
    return max(changes) / (max(largest) or 1.0)


def _rows(batch: Any, rows: list[int], width: int) -> Any:
    """The ``rows`` of a batch, with ``width`` tokens."""
    parts = {f.name: getattr(batch, f.name) for f in fields(batch)}
    chosen = {name: part[rows] for name, part in parts.items() if isinstance(part, Tensor)}
    tokens = {name: part[:, :width] for name, part in chosen.items() if parts[name].shape == batch.mask.shape}
    return replace(batch, **{**chosen, **tokens})


def _axes(hint: Any) -> tuple[str, ...] | None:
    """Axis names of ``Float[Tensor, "B T"]``, also of ``Float[...] | None``; None for other annotations."""
    for part in (hint, *get_args(hint)):
        if (axes := getattr(part, "dim_str", None)) is not None:
            return tuple(axes.split())
    return None


def _shown(value: Any) -> str:
    """Shape or axis names, formatted as a tuple without quotes; the type of a value without a shape."""
    if isinstance(value, Tensor):
        value = tuple(value.shape)
    if not isinstance(value, tuple):
        return f"a {type(value).__name__}"
    return f"({', '.join(map(str, value))}{',' if len(value) == 1 else ''})"
