"""What the layers of an encoder compute, recorded from outside: hidden states, queries, keys and values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from qa_arch.errors import ConfigError
from qa_arch.nn.encoder import WithBackbone

LINEARS = (
    ("query", "key", "value"),  # BERT, RoBERTa, ALBERT, ELECTRA
    ("q_lin", "k_lin", "v_lin"),  # DistilBERT
    ("query_proj", "key_proj", "value_proj"),  # DeBERTa-v2
    ("q_proj", "k_proj", "v_proj"),
    ("q", "k", "v"),  # MPNet
)
"""Names of the linear maps to queries, keys and values in a layer, by family."""


@dataclass
class LayerOutputs:
    """Outputs of one forward pass."""

    hidden: list[Float[Tensor, "B T H"]] = field(default_factory=list)
    """The embeddings and what each layer made of them; empty where they are not recorded."""
    attention: dict[str, Float[Tensor, "B T _"]] = field(default_factory=dict)
    """``q``, ``k`` and ``v`` of the recorded layer, all its heads side by side."""


@contextmanager
def recorded(encoder: WithBackbone, *, hidden: bool, attention: int | None) -> Iterator[LayerOutputs]:
    """Record what ``encoder`` computes inside the block, in a single forward pass.

    ``attention``: the layer, from 1, whose queries, keys and values are recorded; None for none. A layer that
    is applied several times (ALBERT) counts each time.
    """
    outputs = LayerOutputs()
    layers = encoder.layers()
    with ExitStack() as hooks:
        if hidden:
            hooks.callback(
                layers[0].register_forward_pre_hook(_first_input(outputs), with_kwargs=True).remove
            )
            for layer in layers:
                hooks.callback(layer.register_forward_hook(_append(outputs)).remove)
        if attention is not None:
            for name, modules in attention_linears(encoder).items():
                store = _store(outputs, name, attention)
                for module in modules:
                    hooks.callback(module.register_forward_hook(store).remove)
        yield outputs


def attention_linears(encoder: WithBackbone) -> dict[str, list[Any]]:
    """The maps to ``q``, ``k`` and ``v`` of every layer; ConfigError where a family has no such maps."""
    layers = [dict(_by_last_name(layer)) for layer in encoder.layers()]
    for names in LINEARS:
        if all(name in layer for layer in layers for name in names):
            return {
                short: [layer[name] for layer in layers] for short, name in zip("qkv", names, strict=True)
            }
    raise ConfigError(
        f"distillation.relations: {encoder.config.model_type} has no maps to queries, keys and values apart;"
        " leave it at 0"
    )


def passed_layers(encoder: WithBackbone) -> int:
    """How many layers a token passes; ALBERT's single layer counts as often as it is applied."""
    return int(encoder.config.num_hidden_layers)


def _by_last_name(layer: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    return ((name.rpartition(".")[2], module) for name, module in layer.named_modules())


def _first_input(outputs: LayerOutputs) -> Callable[..., None]:
    def note(module: nn.Module, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        if not outputs.hidden:
            outputs.hidden.append(args[0] if args else kwargs["hidden_states"])

    return note


def _append(outputs: LayerOutputs) -> Callable[..., None]:
    def note(module: nn.Module, args: Any, output: Any) -> None:
        outputs.hidden.append(output if isinstance(output, Tensor) else output[0])

    return note


def _store(outputs: LayerOutputs, name: str, wanted: int) -> Callable[..., None]:
    calls = [0]

    def note(module: nn.Module, args: Any, output: Tensor) -> None:
        calls[0] += 1
        if calls[0] == wanted:
            outputs.attention[name] = output

    return note
