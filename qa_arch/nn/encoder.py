"""The encoder seam: ``(ids, mask, segments) -> (B, T, H)``, around any Hugging Face encoder or of words.

Models name ``Encoder`` in their signatures, and a sweep checks these for all its points: so transformers
is imported, for seconds, only where a backbone is made.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from qa_arch.errors import ConfigError
from qa_arch.manifest import offered

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

Freeze = Literal["none", "all"] | int
FEWER_HEADS = "fewer_heads"
"""The key of a description that says which heads were removed, beside the configuration."""
WORDS = "words"
"""The family, and the ``model_type`` of a saved description."""
HEAD_COUNTS = ("num_attention_heads", "num_heads", "n_heads", "heads")
"""Attributes in which attention modules hold how many heads they have."""


@dataclass(frozen=True)
class FewerHeads:
    """Attention with fewer heads than the width holds, which no configuration of BERT's kin can say.

    The classes of transformers derive the size of a head from the width and the number of heads, so an
    encoder that lost heads and keeps their size is described by its configuration and by what is here: the
    heads that each layer has left, and the linear maps that are smaller for it.
    """

    heads: int
    maps: Mapping[str, Sequence[int]]
    """Name in the backbone -> rows and columns."""

    def apply(self, backbone: nn.Module) -> None:
        """Give ``backbone``, in place, maps of these sizes with random weights."""
        for name, (rows, columns) in self.maps.items():
            linear = backbone.get_submodule(name)
            assert isinstance(linear, nn.Linear)
            backbone.set_submodule(name, nn.Linear(columns, rows, bias=linear.bias is not None))
        self.count(backbone)

    def count(self, backbone: nn.Module) -> None:
        """Set the number of heads that the modules around the maps hold."""
        for name in {name.rpartition(".")[0] for name in self.maps}:
            owner = backbone.get_submodule(name)
            for attribute in HEAD_COUNTS:
                if isinstance(getattr(owner, attribute, None), int):
                    setattr(owner, attribute, self.heads)


class WithBackbone(nn.Module):
    """Facts about a transformers backbone, whatever head is on it."""

    backbone: PreTrainedModel

    @property
    def config(self) -> PretrainedConfig:
        return self.backbone.config

    @property
    def has_segments(self) -> bool:
        """Whether the encoder tells question from context by segment ids."""
        return (getattr(self.config, "type_vocab_size", 0) or 0) > 1

    @property
    def vocab_size(self) -> int:
        """Number of token embeddings: every id of a window is below it."""
        return int(self.backbone.get_input_embeddings().num_embeddings)

    @property
    def max_tokens(self) -> int | None:
        """The longest window the encoder can read; None where it states no limit."""
        positions = getattr(self.config, "max_position_embeddings", None)
        table = getattr(getattr(self.backbone, "embeddings", None), "position_embeddings", None)
        # RoBERTa's positions begin behind the padding index, so two of its rows are never used.
        padding = getattr(table, "padding_idx", None)
        return positions if positions is None or padding is None else positions - padding - 1

    def layers(self) -> nn.ModuleList:
        """The stack of layers, from the embeddings upwards."""
        stack = self.get_submodule(_layer_prefix(self.backbone))
        assert isinstance(stack, nn.ModuleList)
        return stack

    def cast(self, dtype: torch.dtype) -> Self:
        """Hold the backbone's weights in ``dtype``, for reading alone; what is read off it stays fp32."""
        self.backbone.to(dtype)
        return self


class Encoder(WithBackbone):
    """A backbone without pooler (it would be an unused parameter to DDP), read at its last layer.

    ``fewer_heads`` is what is left of its attention where heads were removed.
    """

    has_cls: Literal[True] = True
    """Whether a window's first token represents all of it."""

    def __init__(self, backbone: PreTrainedModel, fewer_heads: FewerHeads | None = None) -> None:
        from qa_arch.nn.sdpa import use_fused

        super().__init__()
        use_fused(backbone)
        if fewer_heads is not None:
            fewer_heads.apply(backbone)
        self.backbone, self.fewer_heads = backbone, fewer_heads
        self.out_dim: int = backbone.config.hidden_size
        self.layer_prefix = _layer_prefix(backbone)
        """The name of the stack of layers in this module."""

    def forward(
        self,
        ids: Int[Tensor, "B T"],
        mask: Bool[Tensor, "B T"] | Bool[Tensor, "B 1 T T"],
        segments: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T H"]:
        """``mask`` is True on real tokens, or for each token on those that it may read."""
        if self.has_segments == (segments is None):  # else silently all zero (huggingface/transformers#48128)
            wanted = "needs" if self.has_segments else "has no"
            raise ValueError(f"{self.config.model_type} {wanted} segment ids")
        given = {} if segments is None else {"token_type_ids": segments}
        if self.backbone.dtype == torch.float32:
            return self.backbone(input_ids=ids, attention_mask=mask, **given).last_hidden_state
        with torch.autocast(ids.device.type, enabled=False):  # it would sum and normalise in fp32 after all
            return self.backbone(input_ids=ids, attention_mask=mask, **given).last_hidden_state.float()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A pickled encoder names its attention, which is known only once that module is imported."""
        import qa_arch.nn.sdpa  # noqa: F401

        super().__setstate__(state)

    @property
    def depth(self) -> int:
        """Number of layers with parameters of their own (1 for ALBERT, whose layers share them)."""
        return len(self.layers())

    def depth_of(self, parameter: str) -> int:
        """0 for the embeddings and what follows them directly, 1 ... ``depth`` for the layers.

        ``parameter`` is a name as ``named_parameters`` of this module gives it. What follows the
        layers (a final norm) belongs to the last.
        """
        if parameter.startswith(f"{self.layer_prefix}."):
            return 1 + int(parameter[len(self.layer_prefix) + 1 :].split(".")[0])
        names = [name for name, _ in self.named_parameters()]
        first_layer = next(i for i, name in enumerate(names) if name.startswith(f"{self.layer_prefix}."))
        return 0 if "embed" in parameter or names.index(parameter) < first_layer else self.depth

    def freeze(self, what: Freeze) -> Encoder:
        """Hold ``"all"`` or ``"none"`` of the parameters fixed; a number trains that many top layers."""
        top = self.depth + 1 if what == "none" else 0 if what == "all" else what
        if not isinstance(top, int) or not (what == "none" or 0 <= top <= self.depth):
            raise ConfigError(
                f"encoder.freeze={what}: none, all, or how many top layers to train (0-{self.depth})"
            )
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(self.depth_of(name) > self.depth - top)
        return self

    def checkpoint_activations(self) -> Encoder:
        """Recompute the layers in the backward pass in place of keeping their activations."""
        if not self.backbone.supports_gradient_checkpointing:
            raise ConfigError(f"{self.config.model_type} has no gradient checkpointing: set it to false")
        # The library renamed the method within version 5.
        enable = getattr(self.backbone, "activation_checkpointing_enable", None)
        (enable or self.backbone.gradient_checkpointing_enable)({"use_reentrant": False})
        return self

    def train(self, mode: bool = True) -> Encoder:
        """A wholly frozen encoder stays in evaluation mode: its dropout would only add noise."""
        super().train(mode)
        if not any(parameter.requires_grad for parameter in self.parameters()):
            self.backbone.eval()
        return self

    def describe(self) -> dict[str, Any]:
        """The backbone's configuration as plain values: all that ``from_description`` needs."""
        removed = {} if self.fewer_heads is None else {FEWER_HEADS: asdict(self.fewer_heads)}
        return self.config.to_dict() | removed

    @classmethod
    def from_description(cls, description: dict[str, Any]) -> Encoder:
        """The same architecture with fresh weights, without the hub; weights are loaded into it."""
        from transformers import AutoConfig

        register(description["model_type"])
        values = {k: v for k, v in description.items() if k not in ("model_type", FEWER_HEADS)}
        backbone = new_backbone(AutoConfig.for_model(description["model_type"], **values))
        removed = description.get(FEWER_HEADS)
        return cls(backbone, None if removed is None else FewerHeads(**removed))


class WordEncoder(nn.Module):
    """The encoder seam for words: ``out_dim`` is ``width``, and 0 where no vectors are learned.

    With it a model of the time before pre-trained encoders takes the same windows, cache and decoding as
    the others: the tokenizer gives one piece a word, and GloVe comes in by ``WordFeatures`` as anywhere.
    ``std`` is that of the learned vectors at the start; 1/sqrt(width) where it is not given.
    """

    has_segments = False
    has_cls: Literal[False] = False
    max_tokens = None
    depth = 0

    def __init__(self, vocab_size: int, width: int = 0, *, std: float | None = None) -> None:
        super().__init__()
        self.vocab_size, self.out_dim = vocab_size, width
        self.register_buffer(
            "nothing", torch.empty(0), persistent=False
        )  # has the model's device and precision
        self.nothing: Tensor
        self.embedding = nn.Embedding(vocab_size, width, padding_idx=0) if width else None
        if self.embedding is not None:
            nn.init.normal_(self.embedding.weight[1:], std=std or width**-0.5)

    def forward(
        self,
        ids: Int[Tensor, "B T"],
        mask: Bool[Tensor, "B T"],
        segments: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T H"]:
        if segments is not None:
            raise ValueError("words has no segment ids")
        if self.embedding is None:
            return self.nothing.new_zeros((*ids.shape, 0))
        return self.embedding(ids)

    def depth_of(self, parameter: str) -> int:
        """0: there are no layers above the embeddings."""
        return 0

    def freeze(self, what: Freeze) -> WordEncoder:
        """Hold ``"all"`` or ``"none"`` of the learned vectors fixed."""
        if what not in ("none", "all"):
            raise ConfigError(f"encoder.freeze={what}: words have no layers; none or all")
        return self.requires_grad_(what == "none")

    def describe(self) -> dict[str, Any]:
        """All that ``from_description`` needs, as plain values."""
        return {"model_type": WORDS, "vocab_size": self.vocab_size, "width": self.out_dim}

    @classmethod
    def from_description(cls, description: dict[str, Any]) -> WordEncoder:
        """The same sizes with fresh vectors; weights are loaded into it."""
        return cls(description["vocab_size"], description["width"])


AnyEncoder = Encoder | WordEncoder


def encoder_from(description: dict[str, Any]) -> AnyEncoder:
    """The encoder that ``describe`` described, with fresh weights."""
    kind = WordEncoder if description.get("model_type") == WORDS else Encoder
    return kind.from_description(description)


def register(family: str) -> None:
    """Make a ``family`` of an extra known to transformers' ``AutoConfig`` and ``AutoModel``."""
    if module := offered("families").get(family):
        import_module(module)


def encoders_of(model: nn.Module) -> list[WithBackbone]:
    """The transformers encoders in ``model``: an ensemble has several, one that reads words none."""
    return [module for module in model.modules() if isinstance(module, WithBackbone)]


def encoder_of(model: nn.Module) -> WithBackbone | None:
    """The first of ``encoders_of``; None where there is none."""
    return next(iter(encoders_of(model)), None)


def new_backbone(config: PretrainedConfig) -> PreTrainedModel:
    """A randomly initialised backbone of ``config``, without pooler."""
    backbone_class = class_of(config)
    config._attn_implementation = None  # a foreign description may name code on the hub
    return backbone_class(config, **without_pooler(backbone_class))


def class_of(config: PretrainedConfig) -> type[PreTrainedModel]:
    """The bare model class of ``config``; ConfigError where it has none or is no encoder."""
    from transformers import MODEL_MAPPING

    backbone_class: Any = (
        None if getattr(config, "is_encoder_decoder", False) else MODEL_MAPPING.get(type(config), None)
    )
    if backbone_class is None:
        raise ConfigError(f"{config.model_type} is not an encoder: choose bert, roberta or the like")
    return backbone_class[0] if isinstance(backbone_class, tuple) else backbone_class


def without_pooler(backbone_class: type[PreTrainedModel]) -> dict[str, Any]:
    """The argument that leaves the pooler out, for the classes that would make one."""
    accepted = inspect.signature(backbone_class.__init__).parameters
    return {"add_pooling_layer": False} if "add_pooling_layer" in accepted else {}


def _layer_prefix(backbone: PreTrainedModel) -> str:
    """Name of the stack of layers: the outermost list as long as the configuration says."""
    config = backbone.config
    lengths = {config.num_hidden_layers, getattr(config, "num_hidden_groups", None)}
    for name, module in backbone.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) in lengths:
            return f"backbone.{name}"
    raise ConfigError(f"{config.model_type}: no stack of layers found in {type(backbone).__name__}")
