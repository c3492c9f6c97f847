"""What ``compression=`` changes in a trained model.

Magnitude pruning: set the smallest weights to zero for good, at once or during training.

Structured pruning: remove attention heads, feed-forward units and layers from an encoder.

Every layer loses the same number, so that one configuration describes all sizes. The rows and columns of a
head or unit are found from the graph of a forward pass (torch-pruning; Fang et al. 2023, DepGraph), whatever
the model family calls them. The smaller encoder must compute the same as the whole with the removed parts at
zero: this is checked on a sample batch before it is returned.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytorch_lightning as pl
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from qa_arch.config.schema import Config
from qa_arch.config.target import require_packages
from qa_arch.errors import ConfigError
from qa_arch.extras.compression.manifest import Compression
from qa_arch.models import store
from qa_arch.nn.encoder import FEWER_HEADS, Encoder
from qa_arch.nn.features import WordFeatures
from qa_arch.nn.reading import run_device
from qa_arch.qa import task
from qa_arch.qa.task import SpanParts
from qa_arch.records import MODEL
from qa_arch.tensors import Batch
from qa_arch.training.module import TrainingData, TrainingModule

MAX_UPDATES = 100
"""Maximum number of mask updates while the sparsity ramps up: selecting the smallest weights is slow."""
Masks = dict[str, Tensor]
"""Parameter name -> mask, True for pruned weights."""
SAMPLE = 3
"""Training windows on which a smaller encoder is compared with the whole one."""


class Magnitude(NamedTuple):
    """What magnitude pruning reaches, with the fields of ``Compression``."""

    sparsity: float
    scope: Literal["global", "layer"]
    ramp: float


def check(step: Compression, config: Config) -> None:
    """Raise ConfigError for a model without an encoder, or not larger than it is to be, UnavailableError for
    a missing package; loads no weights."""
    if config.trainer.strategy == "fsdp":
        raise ConfigError("trainer.strategy: fsdp shards the weights that compression holds at zero; use ddp")
    if step.keep is None:
        return
    if step.method != "layers":
        require_packages("compress", f"compression={step.method}")
    with torch.device("meta"):
        encoder = store.load_encoder(Path(str(config.init_from)) / MODEL)
    if not isinstance(encoder, Encoder):
        raise ConfigError(f"{config.init_from}: has no transformer encoder; use compression=magnitude")
    widths = [width for name in WIDTHS if (width := getattr(encoder.config, name, None))]
    present = {"heads": head_count(encoder), "layers": encoder.depth, "widths": max(widths, default=None)}
    if (most := present[step.method]) is not None and step.keep >= most:
        raise ConfigError(f"compression.keep: {step.keep} is not less than the {most} the model has")


def change(step: Compression, config: Config, parts: SpanParts) -> SpanParts:
    """The parts with a smaller encoder; what is zero, or becomes zero, stays so in training."""
    target = None
    if step.method != "magnitude":
        name = next(name for name, module in parts.model.named_modules() if module is parts.encoder)
        parts = replace(parts, encoder=_smaller_encoder(step, config, parts))
        parts.model.set_submodule(name, parts.encoder)
    else:
        target = Magnitude(step.sparsity or 0.0, step.scope or "global", step.ramp or 0.0)
        if (present := sparsity_of(zeros(parts.model))) >= target.sparsity:
            raise ConfigError(
                f"compression.sparsity: {present:.1%} of the weights are zero already; give a larger share"
            )
        if not config.trainer.epochs:
            prune(parts.model, target)
    masks = zeros(parts.model)
    if target is None and not sparsity_of(masks):
        return parts
    return replace(parts, callbacks=lambda: [HoldZeros(masks, target)])


def _smaller_encoder(step: Compression, config: Config, parts: SpanParts) -> Encoder:
    """The encoder of ``parts.model`` after a structured step."""
    model, encoder = parts.model, parts.encoder
    assert isinstance(encoder, Encoder)
    loss: Any = parts.loss
    batches, keep = task.batches(config, parts), int(step.keep or 0)
    sample = batches.train(range(min(SAMPLE, len(batches.train.lengths))))
    if step.method == "layers":
        chosen = chosen_layers(encoder.depth, keep, step.choose or "every_other")
        return keep_layers(encoder, chosen, sample)
    pruner, device = Pruner(encoder, sample), run_device(config)
    kind: Kind = "heads" if step.method == "heads" else "units"

    def windows() -> Iterator[Batch]:
        """Batches of the first epoch, up to ``step.windows`` windows."""
        seen = 0
        for rows in TrainingData(batches, config.trainer, seed=config.seed).sampler():
            yield batches.train(rows).to(device)
            seen += len(rows)
            if seen >= (step.windows or 0):
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
    return keep_best(pruner, kind, keep, scores)


def prunable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Weights to prune: matrices with more than two rows, except lookup tables.

    Embeddings, word vectors and the one or two rows that score spans are excluded: pruning them saves little
    and costs accuracy (Gordon et al. 2020 leave both whole).
    """
    tables = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, nn.Embedding | WordFeatures)
        for parameter in module.parameters(recurse=False)
    }
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.ndim > 1 and len(parameter) > 2 and id(parameter) not in tables
    }


def zeros(model: nn.Module) -> Masks:
    """Masks of the prunable weights that are zero already."""
    return {name: weight.detach() == 0 for name, weight in prunable(model).items()}


def sparsity_of(masks: Masks) -> float:
    """Share of the prunable weights that is masked."""
    return sum(int(mask.sum()) for mask in masks.values()) / sum(mask.numel() for mask in masks.values())


def smallest(
    weights: Mapping[str, Tensor], sparsity: float, scope: Literal["global", "layer"], masked: Masks
) -> Masks:
    """Masks of the share ``sparsity`` of smallest magnitude, over all weights or per matrix.

    Weights ``masked`` already come first, so that masks only grow. The number is exact: ties go to the first.
    """
    scores = [
        # No magnitude is below 0: what is masked already sorts first.
        torch.where(masked[name], -1.0, weight.detach().abs()).flatten()
        for name, weight in weights.items()
    ]
    if scope == "global":
        masks = _smallest(torch.cat(scores), sparsity).split([len(values) for values in scores])
    else:
        masks = tuple(_smallest(values, sparsity) for values in scores)
    return {name: mask.view_as(weights[name]) for name, mask in zip(weights, masks, strict=True)}


def _smallest(values: Float[Tensor, "N"], sparsity: float) -> Bool[Tensor, "N"]:
    """Mask of the smallest values. Negative ones are always masked, even if they are a larger share, as in a
    matrix that an earlier step over all weights has pruned."""
    count, masked = round(sparsity * len(values)), values < 0
    if count <= masked.sum():
        return masked
    threshold = values.kthvalue(count).values
    mask = values < threshold
    ties = (values == threshold).nonzero()[:, 0]
    mask[ties[: count - int(mask.sum())]] = True
    return mask


def prune(model: nn.Module, target: Magnitude) -> None:
    """Set the smallest weights of ``model`` to zero, in place."""
    weights = prunable(model)
    apply_masks(weights, smallest(weights, target.sparsity, target.scope, zeros(model)))


@torch.no_grad()
def apply_masks(weights: Mapping[str, Tensor], masks: Masks) -> None:
    """Set masked weights to zero, in place."""
    for name, mask in masks.items():
        weights[name].masked_fill_(mask, 0.0)


def scheduled_sparsity(step: int, ramp: int, first: float, last: float) -> float:
    """Sparsity after ``step`` of ``ramp`` optimizer steps (Zhu & Gupta 2017, eq. 1)."""
    return last if step >= ramp else last + (first - last) * (1 - step / ramp) ** 3


class HoldZeros(pl.Callback):
    """Keeps ``masked`` weights at zero during training, and raises the sparsity to ``target``.

    Without a ``target`` the masks stay fixed. Must come before callbacks that save weights. Gradients of
    masked weights are zeroed too, so that they do not count toward the clipped norm.
    """

    def __init__(self, masked: Masks, target: Magnitude | None = None) -> None:
        self.masks, self.target = masked, target
        self.first = sparsity_of(masked)
        self.reached = -1
        """Optimizer step of the last mask update."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, TrainingModule)
        self.weights = prunable(pl_module.model)
        self.masks = {name: mask.to(self.weights[name].device) for name, mask in self.masks.items()}
        self.ramp = round(pl_module.total_steps * self.target.ramp) if self.target else 0
        if trainer.global_step == 0:  # a resumed run has the masks of its checkpoint
            self._hold(0)

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        gradients = {name: w.grad for name, w in self.weights.items() if w.grad is not None}
        apply_masks(gradients, {name: self.masks[name] for name in gradients})

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step != self.reached:  # else the batch only accumulated gradients
            self._hold(trainer.global_step)

    def _hold(self, step: int) -> None:
        """Update the masks to the sparsity after ``step`` if an update is due, and apply them."""
        # After the ramp once more, for the whole sparsity: its last step need not be a multiple.
        due = step % max(1, self.ramp // MAX_UPDATES) == 0 if step < self.ramp else self.reached < self.ramp
        if self.target and due:
            sparsity = scheduled_sparsity(step, self.ramp, self.first, self.target.sparsity)
            self.masks = smallest(self.weights, sparsity, self.target.scope, self.masks)
        apply_masks(self.weights, self.masks)
        self.reached = step

    def state_dict(self) -> dict[str, Any]:
        return {"masks": self.masks, "first": self.first, "reached": self.reached}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.masks, self.first, self.reached = (state_dict[key] for key in ("masks", "first", "reached"))


Kind = Literal["heads", "units"]
ROWS_PER_HEAD_COLUMN = 3
"""Rows coupled to an input column of the attention output map: one each of query, key and value."""
WIDTHS = ("intermediate_size", "hidden_dim")
"""Names of the feed-forward width in configurations."""
TOLERANCE = 1e-3
"""Maximum difference between pruned and zeroed encoder, relative to the largest value."""


@dataclass(frozen=True)
class InnerMap:
    """Output map of a layer's attention or feed-forward network, whose input columns can be removed."""

    name: str
    linear: nn.Linear
    kind: Kind


class Pruner:
    """Inner maps of ``encoder`` and the parameters coupled to their columns; ``batch`` is a sample input."""

    def __init__(self, encoder: Encoder, batch: Batch) -> None:
        import torch_pruning

        self.library, self.encoder, self.batch = torch_pruning, encoder, batch
        trainable = {name: p.requires_grad for name, p in encoder.named_parameters()}
        encoder.requires_grad_(True)  # the graph follows gradients
        self.graph = torch_pruning.DependencyGraph().build_dependency(
            encoder,
            example_inputs=(batch.ids, batch.mask, batch.segments),
            forward_fn=lambda model, inputs: model(*inputs),
        )
        for name, parameter in encoder.named_parameters():
            parameter.requires_grad_(trainable[name])
        self.maps = [inner for layer in encoder.layers() for inner in self._inner_maps(layer)]

    def of(self, kind: Kind) -> list[InnerMap]:
        """Maps of a kind, one per layer, in order. Raises ConfigError if a layer has none."""
        maps = [inner for inner in self.maps if inner.kind == kind]
        if len(maps) != self.encoder.depth or len({inner.linear.in_features for inner in maps}) != 1:
            raise ConfigError(
                f"{self.encoder.config.model_type}: {kind} can be removed in only {len(maps)} of its"
                f" {self.encoder.depth} layers; choose compression=magnitude or layers"
            )
        return maps

    def size(self, kind: Kind) -> int:
        """Number of columns per head or unit."""
        return 1 if kind == "units" else self.of(kind)[0].linear.in_features // head_count(self.encoder)

    def remove(self, linear: nn.Linear, columns: Sequence[int]) -> None:
        """Remove ``columns`` of a map, and the rows of other maps that produce them."""
        self._group(linear, columns).prune()

    def _group(self, linear: nn.Linear, columns: Sequence[int]) -> Any:
        prune = self.library.prune_linear_in_channels
        return self.graph.get_pruning_group(linear, prune, idxs=list(columns))

    def _inner_maps(self, layer: nn.Module) -> Iterator[InnerMap]:
        """Linear maps of ``layer`` that are the only readers of other linear maps in it."""
        names = {id(module): name for name, module in self.encoder.named_modules()}
        inside = {id(module) for module in layer.modules()}
        for linear in (module for module in layer.modules() if isinstance(module, nn.Linear)):
            members = [
                (dependency.target.module, rows)
                for dependency, rows in self._group(linear, [0])
                if any(True for _ in dependency.target.module.parameters(recurse=False))
            ]
            if not all(isinstance(m, nn.Linear) and id(m) in inside for m, _ in members):
                continue
            read = {module: set(rows) for module, rows in members if module is not linear}
            rows_of_a_column = sum(map(len, read.values()))
            # A fused query-key-value map is split in a way the graph does not see.
            if rows_of_a_column * linear.in_features == sum(m.out_features for m in read) > 0:
                kind: Kind = "heads" if rows_of_a_column == ROWS_PER_HEAD_COLUMN else "units"
                yield InnerMap(names[id(linear)], linear, kind)


def importance(
    model: nn.Module,
    maps: Sequence[InnerMap],
    size: int,
    batches: Iterable[Batch],
    losses: Callable[[Batch], Float[Tensor, "B"]],
) -> dict[str, Float[Tensor, "N"]]:
    """Importance of each map's units of ``size`` columns: mean over windows of |∂L / ∂m|.

    m = 1 is a mask variable that multiplies the unit's output: to first order, the change of a window's loss
    if the unit were removed (Michel et al. 2019, section 4.1; Molchanov et al. 2017, eq. 8). Dropout is off.
    """
    totals = {inner.name: torch.zeros(inner.linear.in_features // size) for inner in maps}
    windows = 0
    trainable = [parameter.requires_grad for parameter in model.parameters()]
    hooks = (
        inner.linear.register_forward_pre_hook(_accumulate_into(totals[inner.name], size)) for inner in maps
    )
    model.requires_grad_(True).eval()
    # cuDNN has no backward pass for recurrent layers in eval mode.
    with _temporary_hooks(hooks), torch.backends.cudnn.flags(enabled=False):
        for batch in batches:
            losses(batch).sum().backward()  # windows do not interact: each has its own gradient
            model.zero_grad(set_to_none=True)
            windows += len(batch)
    for parameter, before in zip(model.parameters(), trainable, strict=True):
        parameter.requires_grad_(before)
    return {name: total / windows for name, total in totals.items()}


def _accumulate_into(total: Tensor, size: int) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    def before(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        states = inputs[0]

        def add(gradient: Tensor) -> None:
            of_columns = (states.detach() * gradient).sum(1)  # over the tokens of a window
            total.add_(of_columns.unflatten(1, (-1, size)).sum(2).abs().sum(0).cpu())

        states.register_hook(add)

    return before


def keep_best(pruner: Pruner, kind: Kind, count: int, scores: Mapping[str, Tensor]) -> Encoder:
    """Keep the ``count`` heads or units of highest score in each layer; heads keep their size."""
    encoder, maps, size = pruner.encoder, pruner.of(kind), pruner.size(kind)
    columns = maps[0].linear.in_features
    linears = {n: m for n, m in encoder.backbone.named_modules() if isinstance(m, nn.Linear)}
    before = {name: linear.weight.shape for name, linear in linears.items()}
    removed = [(inner.linear, lowest(scores[inner.name], count, size)) for inner in maps]
    # A unit that always gives 0 is as good as removed: the smaller encoder has to reproduce these states.
    with _temporary_hooks(linear.register_forward_pre_hook(_zero(indices)) for linear, indices in removed):
        expected = _states(encoder, pruner.batch)
    for linear, indices in removed:
        pruner.remove(linear, indices)
    if kind == "units":
        smaller: dict[str, Any] = {
            name: count for name in WIDTHS if getattr(encoder.config, name, None) == columns
        }
    else:
        # No config of transformers can say "fewer heads of the same size", so the shapes of the maps are
        # noted beside it.
        earlier = encoder.fewer_heads.maps if encoder.fewer_heads else {}
        shapes = {
            name: list(linear.weight.shape)
            for name, linear in linears.items()
            if name in earlier or linear.weight.shape != before[name]
        }
        smaller = {FEWER_HEADS: {"heads": count, "maps": shapes}}
    return _rebuild(encoder.describe() | smaller, encoder.state_dict(), pruner.batch, expected)


def lowest(scores: Tensor, count: int, size: int) -> list[int]:
    """Columns of all units except the ``count`` of highest score; a unit has ``size`` columns."""
    units = scores.argsort(descending=True, stable=True)[count:].tolist()
    return sorted(unit * size + column for unit in units for column in range(size))


def keep_layers(encoder: Encoder, chosen: Sequence[int], batch: Batch) -> Encoder:
    """Keep only the layers of these indices, in order."""
    config, depth = encoder.config, encoder.depth
    if config.num_hidden_layers != depth:
        raise ConfigError(
            f"{config.model_type}: its {config.num_hidden_layers} layers share their weights, so fewer"
            " layers save nothing; choose compression=widths or magnitude"
        )
    new_index = {old: new for new, old in enumerate(chosen)}
    stack = re.compile(rf"(.*\b{re.escape(encoder.layer_prefix.removeprefix('backbone.'))}\.)(\d+)(\..*)")

    def renamed(name: str) -> str | None:
        """Name in the smaller encoder; None if its layer is removed."""
        match = stack.fullmatch(name)
        if match is None:
            return name
        new = new_index.get(int(match[2]))
        return None if new is None else f"{match[1]}{new}{match[3]}"

    description = {
        key: [value[i] for i in chosen] if isinstance(value, list) and len(value) == depth else value
        for key, value in encoder.describe().items()
    }
    # DistilBERT calls it n_layers.
    description[config.attribute_map.get("num_hidden_layers", "num_hidden_layers")] = len(chosen)
    if fewer := encoder.fewer_heads:
        maps = {new: shape for name, shape in fewer.maps.items() if (new := renamed(name))}
        description[FEWER_HEADS] = {"heads": fewer.heads, "maps": maps}
    state = {new: value for name, value in encoder.state_dict().items() if (new := renamed(name))}
    removed = [layer for i, layer in enumerate(encoder.layers()) if i not in chosen]
    # A layer that returns its input is as good as removed: the smaller encoder has to reproduce these states.
    with _temporary_hooks(layer.register_forward_hook(_pass_through) for layer in removed):
        expected = _states(encoder, batch)
    return _rebuild(description, state, batch, expected)


def chosen_layers(depth: int, count: int, choose: Literal["every_other", "first"]) -> list[int]:
    """Indices of ``count`` of ``depth`` layers: the first, or evenly spaced (0, 2, 4 of 6)."""
    return list(range(count)) if choose == "first" else [i * depth // count for i in range(count)]


def head_count(encoder: Encoder) -> int:
    """Number of attention heads per layer."""
    return encoder.fewer_heads.heads if encoder.fewer_heads else encoder.config.num_attention_heads


def _rebuild(
    description: dict[str, Any], state: Mapping[str, Tensor], batch: Batch, expected: Tensor
) -> Encoder:
    """Build the encoder from description and state; ConfigError if it does not compute ``expected``."""
    kind = description["model_type"]
    try:
        encoder = Encoder.from_description(description)
        encoder.load_state_dict(dict(state))
        error = (_states(encoder, batch) - expected).abs().max() / expected.abs().max()
    except (RuntimeError, ValueError) as failure:
        reason = str(failure).strip().splitlines()[-1].strip()
        raise ConfigError(f"{kind}: its classes do not support this size ({reason})") from failure
    if not error < TOLERANCE:  # also if it is NaN
        raise ConfigError(
            f"{kind}: the pruned encoder does not compute the same as the whole with the removed parts at"
            " zero, so nothing was removed; choose compression=magnitude"
        )
    return encoder


def _states(encoder: Encoder, batch: Batch) -> Tensor:
    """Hidden states of the real tokens of a batch, without dropout."""
    with torch.no_grad():
        return encoder.eval()(batch.ids, batch.mask, batch.segments)[batch.mask]


@contextmanager
def _temporary_hooks(handles: Iterable[Any]) -> Iterator[None]:
    """Remove the hooks on leaving the block."""
    with ExitStack() as stack:
        for handle in handles:
            stack.enter_context(handle)
        yield


def _zero(columns: Sequence[int]) -> Callable[[nn.Module, tuple[Tensor, ...]], tuple[Tensor, ...]]:
    def before(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        states = inputs[0].clone()
        states[..., columns] = 0.0
        return (states, *inputs[1:])

    return before


def _pass_through(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
    """Forward hook that replaces a layer's output by its input."""
    return (inputs[0], *output[1:]) if isinstance(output, tuple) else inputs[0]
