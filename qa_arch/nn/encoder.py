"""Encoder interface ``(ids, mask, segments) -> (B, T, H)``: any Hugging Face encoder, or words.

Attention is torch's fused attention, in fp32 if its bf16 backward is slow.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from qa_arch.errors import ConfigError
from qa_arch.manifest import from_extras
from qa_arch.nn.masking import fast_attention

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

NAME = "qa_arch_sdpa"


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    **kwargs,
) -> tuple[Tensor, None]:
    """Attention function for transformers: (B, heads, T, D) each -> (B, T, heads, D), None."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        return sdpa_attention_forward(module, query, key, value, mask, dropout, **kwargs)[0]

    return fast_attention(attend, query, key, value, attention_mask, dropout=dropout), None


def use_fused(backbone: PreTrainedModel) -> None:
    """Register the attention above, and switch a backbone with torch's fused attention to it; leave others
    unchanged."""
    # Here, as a graph or a model of words is asked in half the time without transformers' modules.
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    if backbone.config._attn_implementation in ("sdpa", NAME):
        AttentionInterface.register(NAME, attention)
        AttentionMaskInterface.register(NAME, sdpa_mask)
        backbone.set_attn_implementation(NAME)


Freeze = Literal["none", "all"] | int
FEWER_HEADS = "fewer_heads"
"""Key of an encoder description that holds ``FewerHeads``."""
LONGEST = 1000
"""Limit on the numbers in a configuration of which transformers makes lists of that length."""
WORDS = "words"
"""Family name, and ``model_type`` of a saved description."""
HEAD_COUNTS = ("num_attention_heads", "num_heads", "n_heads", "heads")
"""Attributes of attention modules that hold the number of heads."""


@dataclass(frozen=True)
class FewerHeads:
    """Shape of an encoder with pruned heads, which a BERT-like configuration cannot express.

    transformers derives the head size from the width and the number of heads, so an encoder that lost heads
    but keeps their size also needs the heads left per layer and the shapes of the smaller linear layers.
    """

    heads: int
    maps: Mapping[str, Sequence[int]]
    """Name in the backbone -> (rows, columns)."""

    def apply(self, backbone: nn.Module) -> None:
        """Replace linear layers of ``backbone`` by randomly initialised smaller ones, and set head counts."""
        for name, (rows, columns) in self.maps.items():
            linear = backbone.get_submodule(name)
            assert isinstance(linear, nn.Linear)
            backbone.set_submodule(name, nn.Linear(columns, rows, bias=linear.bias is not None))
            attention = backbone.get_submodule(name.rpartition(".")[0])
            for attribute in HEAD_COUNTS:
                if isinstance(getattr(attention, attribute, None), int):
                    setattr(attention, attribute, self.heads)


class WithBackbone(nn.Module):
    """A transformers backbone, whatever its head."""

    backbone: PreTrainedModel

    @property
    def config(self) -> PretrainedConfig:
        return self.backbone.config

    @property
    def has_segments(self) -> bool:
        """Whether the encoder has segment ids for question and context."""
        return (getattr(self.config, "type_vocab_size", 0) or 0) > 1

    @property
    def vocab_size(self) -> int:
        """Number of token embeddings."""
        table = self.backbone.get_input_embeddings()
        return getattr(table, "num_embeddings", None) or len(table.weight)

    @property
    def max_tokens(self) -> int | None:
        """Longest window the encoder can read; None without a stated limit."""
        positions = getattr(self.config, "max_position_embeddings", None)
        table = getattr(getattr(self.backbone, "embeddings", None), "position_embeddings", None)
        padding = getattr(table, "padding_idx", None)
        if positions is None or positions < 1:  # XLNet states -1
            return None
        # RoBERTa's positions start after the padding index, so two of its rows are never used.
        return positions if padding is None else positions - padding - 1

    def layers(self) -> nn.ModuleList:
        """Transformer layers, lowest first."""
        stack = self.get_submodule(_layer_prefix(self.backbone))
        assert isinstance(stack, nn.ModuleList)
        return stack

    def own_precision(self, device: torch.device) -> AbstractContextManager[object]:
        """Context without autocast for a half-precision backbone, which would sum and normalise in fp32."""
        is_half = self.backbone.dtype != torch.float32
        return torch.autocast(device.type, enabled=False) if is_half else nullcontext()


class Encoder(WithBackbone):
    """Last hidden state of a backbone without pooler (which DDP would see as an unused parameter).

    ``fewer_heads``: shape of its attention after head pruning.
    """

    has_cls: Literal[True] = True
    """Whether the first token represents the whole window."""
    commit: str | None = None
    """Commit of the hub's repository that its weights were loaded from."""

    def __init__(self, backbone: PreTrainedModel, fewer_heads: FewerHeads | None = None) -> None:
        super().__init__()
        use_fused(backbone)
        if fewer_heads is not None:
            fewer_heads.apply(backbone)
        self.backbone, self.fewer_heads = backbone, fewer_heads
        self.out_dim: int = backbone.config.hidden_size
        self.layer_prefix = _layer_prefix(backbone)
        """Name of the layer stack in this module."""

    def forward(
        self,
        ids: Int[Tensor, "B T"],
        mask: Bool[Tensor, "B T"] | Bool[Tensor, "B 1 T T"],
        segments: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T H"]:
        """``mask`` is True on real tokens, or per token on those it may attend to."""
        if self.has_segments == (segments is None):  # else silently all zero (huggingface/transformers#48128)
            verb = "needs" if self.has_segments else "has no"
            raise ValueError(f"{self.config.model_type} {verb} segment ids")
        kwargs = {} if segments is None else {"token_type_ids": segments}
        with self.own_precision(ids.device):
            states = self.backbone(input_ids=ids, attention_mask=mask, **kwargs).last_hidden_state
        return states if self.backbone.dtype == torch.float32 else states.float()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Register the attention that the pickled encoder refers to by name."""
        super().__setstate__(state)
        use_fused(self.backbone)

    @property
    def depth(self) -> int:
        """Number of layers with distinct parameters (1 for ALBERT, whose layers share them)."""
        return len(self.layers())

    def depth_of(self, parameter: str) -> int:
        """Layer of a parameter: 0 for the embeddings and their norm or projection, 1 ... ``depth`` above.

        ``parameter`` is a name from ``named_parameters`` of this module. Parameters after the layers (a final
        norm) belong to the last.
        """
        if parameter.startswith(f"{self.layer_prefix}."):
            return 1 + int(parameter[len(self.layer_prefix) + 1 :].split(".")[0])
        names = [name for name, _ in self.named_parameters()]
        first_layer = next(i for i, name in enumerate(names) if name.startswith(f"{self.layer_prefix}."))
        return 0 if "embed" in parameter or names.index(parameter) < first_layer else self.depth

    def freeze(self, what: Freeze) -> Encoder:
        """Freeze ``"all"`` or ``"none"`` of the parameters; a number trains that many top layers."""
        top = self.depth + 1 if what == "none" else 0 if what == "all" else what  # + 1: embeddings
        if not isinstance(top, int) or not (what == "none" or 0 <= top <= self.depth):
            raise ConfigError(
                f"encoder.freeze={what}: none, all, or how many top layers to train (1-{self.depth})"
            )
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(self.depth_of(name) > self.depth - top)
        return self

    def checkpoint_activations(self) -> Encoder:
        """Recompute layers in the backward pass instead of storing their activations."""
        if not self.backbone.supports_gradient_checkpointing:
            raise ConfigError(f"{self.config.model_type} has no gradient checkpointing: set it to false")
        # The library renamed the method within version 5.
        enable = getattr(self.backbone, "activation_checkpointing_enable", None)
        (enable or self.backbone.gradient_checkpointing_enable)({"use_reentrant": False})
        return self

    def train(self, mode: bool = True) -> Encoder:
        """Keep a fully frozen encoder in eval mode, where dropout would only add noise."""
        super().train(mode)
        if not any(parameter.requires_grad for parameter in self.parameters()):
            self.backbone.eval()
        return self

    def describe(self) -> dict[str, Any]:
        """Plain values for ``from_description``: the backbone's configuration and pruned heads."""
        removed = {} if self.fewer_heads is None else {FEWER_HEADS: asdict(self.fewer_heads)}
        return self.config.to_dict() | removed

    @classmethod
    def from_description(cls, description: dict[str, Any]) -> Encoder:
        """Build the described architecture, randomly initialised, without the hub."""
        from transformers import AutoConfig

        register(description["model_type"])
        check_lists(description)
        values = {k: v for k, v in description.items() if k not in ("model_type", FEWER_HEADS)}
        backbone = new_backbone(AutoConfig.for_model(description["model_type"], **values))
        removed = description.get(FEWER_HEADS)
        return cls(backbone, None if removed is None else FewerHeads(**removed))


class WordEncoder(nn.Module):
    """Learned word embeddings as an encoder; ``out_dim`` is ``width``, 0 for none.

    With a tokenizer of one piece per word, word models share windows, cache and decoding with the others;
    ``WordFeatures`` adds GloVe as usual. ``std``: initial standard deviation (default 1/sqrt(width)).
    """

    has_segments = False
    has_cls: Literal[False] = False
    max_tokens = None
    depth = 0

    def __init__(self, vocab_size: int, width: int = 0, *, std: float | None = None) -> None:
        super().__init__()
        self.vocab_size, self.out_dim = vocab_size, width
        self.empty: Tensor  # has the model's device and dtype
        self.register_buffer("empty", torch.empty(0), persistent=False)
        self.embedding = nn.Embedding(vocab_size, width, padding_idx=0) if width else None
        if self.embedding is not None:
            nn.init.normal_(self.embedding.weight[1:], std=std or width**-0.5)  # padding stays zero

    def forward(
        self,
        ids: Int[Tensor, "B T"],
        mask: Bool[Tensor, "B T"],
        segments: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T H"]:
        if segments is not None:
            raise ValueError("words has no segment ids")
        if self.embedding is None:
            return self.empty.new_zeros((*ids.shape, 0))
        return self.embedding(ids)

    def freeze(self, what: Freeze) -> WordEncoder:
        """Freeze ``"all"`` or ``"none"`` of the embeddings."""
        if what not in ("none", "all"):
            raise ConfigError(f"encoder.freeze={what}: words have no layers; use none or all")
        return self.requires_grad_(what == "none")

    def describe(self) -> dict[str, Any]:
        """Plain values for ``encoder_from``."""
        return {"model_type": WORDS, "vocab_size": self.vocab_size, "width": self.out_dim}


AnyEncoder = Encoder | WordEncoder


def encoder_from(description: dict[str, Any]) -> AnyEncoder:
    """Build the encoder of a ``describe`` dict, randomly initialised."""
    if description.get("model_type") == WORDS:
        return WordEncoder(description["vocab_size"], description["width"])
    return Encoder.from_description(description)


def register(family: str) -> None:
    """Register a ``family`` of an extra with transformers' ``AutoConfig`` and ``AutoModel``."""
    if module := from_extras("families").get(family):
        import_module(module)


def check_lists(description: Mapping[str, Any]) -> None:
    """Raise ValueError for a description with more than ``LONGEST`` layers of any kind, or labels."""
    for key, value in description.items():
        if ("layer" in key or key == "num_labels") and isinstance(value, int) and value > LONGEST:
            raise ValueError(f"{key}: {value} is more than {LONGEST}")


def encoders_of(model: nn.Module) -> list[WithBackbone]:
    """Transformers encoders in ``model``: several in an ensemble, none in a word model."""
    return [module for module in model.modules() if isinstance(module, WithBackbone)]


def encoder_of(model: nn.Module) -> WithBackbone | WordEncoder | None:
    """First encoder in ``model``, whatever a user's model calls it; None in a graph."""
    encoders = (module for module in model.modules() if isinstance(module, WithBackbone | WordEncoder))
    return next(encoders, None)


def new_backbone(config: PretrainedConfig) -> PreTrainedModel:
    """Randomly initialised backbone without pooler."""
    backbone_class = class_of(config)
    set_attention(config)
    return backbone_class(config, **without_pooler(backbone_class))


def set_attention(config: PretrainedConfig) -> None:
    """Choose an attention of the library itself, which does not depend on the texts read before."""
    config._attn_implementation = None  # a foreign description may name code on the hub
    if getattr(config, "attention_type", None) == "block_sparse":  # BigBird drops it at the first short batch
        config.attention_type = "original_full"


def not_finite(model: nn.Module) -> str | None:
    """Name of the first parameter with a NaN or infinite value."""
    return next((name for name, value in model.named_parameters() if not value.isfinite().all()), None)


@torch.no_grad()
def check_padding(backbone: PreTrainedModel, name: str) -> None:
    """Raise ConfigError if ``backbone`` reads a text differently next to padding; leaves it in eval mode."""
    real, pad = 4, max(backbone.config.pad_token_id or 0, 0)
    size = backbone.get_input_embeddings().weight.shape[0]
    ids = (pad + 1 + torch.arange(real, device=backbone.device)[None]) % size  # any but padding
    alone, padded = (
        backbone.eval()(
            input_ids=nn.functional.pad(ids, (0, width), value=pad),
            attention_mask=nn.functional.pad(torch.ones_like(ids, dtype=torch.bool), (0, width)),
        ).last_hidden_state[:, :real]
        for width in (0, real)
    )
    if (alone - padded).abs().max() > 1e-3 * alone.std():  # rounding: 1e-6
        raise ConfigError(
            f"{name}: {backbone.config.model_type} reads a text differently next to padding, so answers would"
            " depend on the batch; choose another encoder"
        )


def class_of(config: PretrainedConfig) -> type[PreTrainedModel]:
    """Bare model class of ``config``. Raises ConfigError if it has none or is not an encoder."""
    from transformers import MODEL_MAPPING

    backbone_class: Any = (
        None if getattr(config, "is_encoder_decoder", False) else MODEL_MAPPING.get(type(config), None)
    )
    if backbone_class is None:
        raise ConfigError(f"{config.model_type} is not an encoder: choose bert, roberta or the like")
    return backbone_class[0] if isinstance(backbone_class, tuple) else backbone_class  # Funnel has two


def without_pooler(backbone_class: type[PreTrainedModel]) -> dict[str, Any]:
    """Keyword argument that omits the pooler, for classes that have one."""
    accepted = inspect.signature(backbone_class.__init__).parameters
    return {"add_pooling_layer": False} if "add_pooling_layer" in accepted else {}


def _layer_prefix(backbone: PreTrainedModel) -> str:
    """Name of the layer stack: the outermost ModuleList of the configured length."""
    config = backbone.config
    lengths = {config.num_hidden_layers, getattr(config, "num_hidden_groups", None)}  # of ALBERT
    for name, module in backbone.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) in lengths:
            return f"backbone.{name}"
    raise ConfigError(f"{config.model_type}: no stack of layers found in {type(backbone).__name__}")
