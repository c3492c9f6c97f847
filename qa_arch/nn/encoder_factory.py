"""Build encoders: pretrained (from the hub, a folder or a package), or random at any size."""

from __future__ import annotations

import copy
import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import transformers  # its models take seconds to import: looked up where they are needed
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from torch import nn
from torch.nn.modules import module as hooks
from transformers import PretrainedConfig
from transformers.utils import logging as hf_logging

from qa_arch.config.schema import EncoderSettings
from qa_arch.errors import BRIEF, ConfigError, UnavailableError, first_line
from qa_arch.files import read_json
from qa_arch.hub import interruption, retried
from qa_arch.manifest import from_extras
from qa_arch.nn.encoder import (
    WORDS,
    AnyEncoder,
    Encoder,
    WordEncoder,
    check_lists,
    check_padding,
    class_of,
    new_backbone,
    not_finite,
    register,
    set_attention,
    without_pooler,
)
from qa_arch.nn.encoder_configs import (
    INDEX,
    WEIGHTS,
    WITHOUT_HUB,
    check_files,
    commit_of,
    known_config,
    place,
)

log = logging.getLogger(__name__)
_WRAPPERS = re.compile(r"(?:(?:_orig_mod|module|model|base_model)\.)+")
"""Prefix that torch.compile, DataParallel, Lightning and PEFT give to the names of a model's tensors."""
_DROPOUT = {
    "attention_dropout": ("attention_probs_dropout_prob", "attention_dropout"),
    "hidden_dropout": ("hidden_dropout_prob", "dropout", "embedding_dropout", "mlp_dropout"),
}
"""Setting -> names of that setting in the configurations of transformers."""
LOADING_ERRORS = (
    *(OSError, ValueError, RuntimeError, TypeError, AttributeError, LookupError, SafetensorError),
    *(ArithmeticError, AssertionError, ImportError, MemoryError),
)
"""Errors that transformers raises for files that are not a model."""
FLOATS = ("F16", "BF16", "F32", "F64")
VALUES_PER_BYTE, MORE_VALUES = 4, 2**20
"""Limit of ``bounded``: a float has two to eight bytes, but loading registers it several times."""


def build_encoder(
    settings: EncoderSettings,
    *,
    vocab_size: int = 0,
    pad_token_id: int = 0,
    max_positions: int | None = None,
    gradient_checkpointing: bool = False,
) -> AnyEncoder:
    """Build the encoder of a config: a pretrained one, or a random one of the given sizes.

    Only a random encoder uses ``vocab_size`` (0: its family's), ``pad_token_id`` and ``max_positions`` (the
    longest window; None: its family's). The family ``words`` has no layers, and no embeddings without a
    ``width``. Under ``torch.device("meta")`` no weights are read, and known encoders not downloaded.
    Raises UnavailableError if the encoder cannot be loaded, ConfigError for settings it does not have.
    """
    is_random = settings.init == "random"
    if is_random and settings.family == WORDS:
        if gradient_checkpointing:
            raise ConfigError("words have no gradient checkpointing: set it to false")
        words = WordEncoder(vocab_size, settings.width or 0, std=settings.initializer_range)
        return words.freeze(settings.freeze)
    name, on_meta = str(settings.name), torch.get_default_device().type == "meta"
    if is_random:
        config = _random_config(settings, vocab_size, pad_token_id, max_positions)
    else:
        # On the meta device only shapes are wanted, and those of known encoders need no hub.
        config = _config_of(name, use_network=not on_meta)
    # Families name their dropouts differently; None keeps the checkpoint's own rate.
    for setting, attributes in _DROPOUT.items():
        if (rate := getattr(settings, setting)) is None:
            continue
        present = [attribute for attribute in attributes if hasattr(config, attribute)]
        if not present:
            raise ConfigError(f"encoder.{setting}: {config.model_type} has no such dropout; leave it null")
        for attribute in present:
            setattr(config, attribute, rate)
    encoder = Encoder(new_backbone(config) if is_random or on_meta else _load(name, config))
    if not on_meta:
        label = str(settings.family) if is_random else name
        encoder.commit = None if is_random else commit_of(name)  # after the download
        try:
            check_padding(encoder.backbone, f"encoder {label}")
        except LOADING_ERRORS as error:
            raise _unavailable(label, error) from error
    if gradient_checkpointing:
        encoder.checkpoint_activations()
    return encoder.freeze(settings.freeze).train()


def _config_of(name: str, *, use_network: bool) -> PretrainedConfig:
    """Configuration from the local cache or folder, else the published one, else the hub's."""
    known = known_config(name)
    try:
        local = known is not None and not use_network
        return retried(lambda: checkpoint_config(**place(name), local_files_only=local))
    except (OSError, ValueError) as error:
        if known is not None and not use_network:
            values = dict(known)
            return transformers.AutoConfig.for_model(values.pop("model_type"), **values)
        raise _unavailable(name, error) from error


def checkpoint_config(
    pretrained_model_name_or_path: str | Path, *, revision: str = "main", local_files_only: bool = True
) -> PretrainedConfig:
    """Configuration of a folder or hub id, with references to code or attention kernels removed.

    Raises OSError or ValueError if it is unusable, RunError if it or the weight index cannot be trusted.
    """
    source = pretrained_model_name_or_path
    options: Any = {"revision": revision, "local_files_only": local_files_only}
    if Path(source).is_dir():
        check_files(Path(source))
    try:
        with quiet_loading():
            written, _ = PretrainedConfig.get_config_dict(source, **options)
            register(str(written.get("model_type")))
            check_lists(written)
            config = transformers.AutoConfig.from_pretrained(source, **options, trust_remote_code=False)
    except StrictDataclassError as error:  # its own message starts without the reason
        raise ValueError(first_line(error.__cause__ or error, BRIEF)) from error
    except (TypeError, AttributeError, LookupError, ArithmeticError) as error:  # unvalidated values
        raise ValueError(f"{type(error).__name__}: {first_line(error, BRIEF)}") from error
    if (layers := getattr(config, "num_hidden_layers", None)) is not None and layers < 1:
        raise ValueError(f"num_hidden_layers: {layers} is less than 1")
    set_attention(config)
    return config


def _random_config(
    settings: EncoderSettings, vocab_size: int, pad_token_id: int, max_positions: int | None
) -> PretrainedConfig:
    """Configuration of the family with the configured sizes, and dependent sizes scaled to match."""
    family, width = str(settings.family), settings.width
    variants = {"positions": settings.positions, "pre_norm": settings.pre_norm}
    extra_families = from_extras("families")
    for setting, value in variants.items():
        if value is not None and family not in extra_families:
            raise ConfigError(
                f"encoder.{setting}: {family} has no such choice, only {', '.join(extra_families)}; leave it"
                " null"
            )
    sizes = {
        "num_hidden_layers": settings.layers,
        "hidden_size": width,
        "num_attention_heads": settings.heads,
        "vocab_size": vocab_size or None,
        "pad_token_id": pad_token_id,
        "max_position_embeddings": max_positions,
        "initializer_range": settings.initializer_range,
    }
    # transformers' default ALBERT is the largest one, and its default RoBERTa has two segment ids.
    base = {"albert": "albert-base-v2", "roberta": "roberta-base"}.get(family, "")
    given = {key: value for key, value in (sizes | variants).items() if value is not None}
    kwargs = {"model_type": family} | (known_config(base) or {}) | given
    if width is not None:
        # Devlin et al. 2019, section 3: 4H.
        kwargs["hidden_dim" if family == "distilbert" else "intermediate_size"] = 4 * width
        if family in {"albert", "electra"}:
            kwargs["embedding_size"] = min(width, 128)  # Lan et al. 2020: E = 128
    register(family)
    try:
        config = transformers.AutoConfig.for_model(**kwargs)
        if max_positions is not None:
            config.max_position_embeddings += _unread_positions(config)
    except LOADING_ERRORS as error:  # some families take no such sizes
        reason = first_line(error, BRIEF)
        raise ConfigError(f"encoder.family={family}: {reason}; choose bert, roberta or the like") from error
    return config


def _unread_positions(config: PretrainedConfig) -> int:
    """Number of position embeddings an encoder never uses, such as RoBERTa's up to the padding id."""
    with torch.device("meta"):  # leaves the random state, and so a seed's weights, unchanged
        readable = Encoder(new_backbone(copy.deepcopy(config))).max_tokens
    return 0 if readable is None else config.max_position_embeddings - readable


def _load(name: str, config: PretrainedConfig) -> transformers.PreTrainedModel:
    """Load the pretrained backbone in fp32; a checkpoint with missing weights is an error."""
    backbone_class: Any = class_of(config)
    options = without_pooler(backbone_class)
    try:
        backbone, missing = retried(
            lambda: load_whole(backbone_class, **place(name), config=config, **options)
        )
    except LOADING_ERRORS as error:
        raise _unavailable(name, error) from error
    if missing:
        raise UnavailableError(
            f"encoder {name}: its checkpoint lacks {len(missing)} of the weights of {config.model_type}, such"
            f" as {missing[0]}: it is incomplete or not a bare encoder; choose another"
        )
    return backbone


def load_whole(
    model_class: Any, pretrained_model_name_or_path: str | Path, **options: Any
) -> tuple[transformers.PreTrainedModel, list[str]]:
    """``from_pretrained`` in fp32, and the sorted names of the tensors that its files lack.

    Tensors may have the names of a wrapped model. Raises ValueError for those that are no floats, not finite
    or of another shape, and others of ``LOADING_ERRORS`` for files that are not a model.
    """
    source, folder = pretrained_model_name_or_path, Path(pretrained_model_name_or_path)
    require_floats(folder)
    options |= {"dtype": torch.float32, "output_loading_info": True}
    options["ignore_mismatched_sizes"] = True  # so that the report names them
    with quiet_loading(), bounded(folder) if folder.is_dir() else nullcontext():
        model, report = model_class.from_pretrained(source, **options)
        matches = (_WRAPPERS.match(name) for name in report["unexpected_keys"])
        # The shortest: a name without a wrapper shows that the model was not wrapped.
        prefix = min((match[0] if match else "" for match in matches), key=len, default="")
        if report["missing_keys"] and prefix:
            log.info(
                "%s: its weights are named %s*, as in a wrapped model; read without that", source, prefix
            )
            model, report = model_class.from_pretrained(
                source, **options, key_mapping={f"^{re.escape(prefix)}": ""}
            )
            vars(model).pop("_weight_conversions", None)  # save_pretrained would write the prefix again
    for name, stored, expected in sorted(report["mismatched_keys"]):
        shapes = f"{tuple(stored)}, and config.json asks for {tuple(expected)}"
        raise ValueError(f"{name} has the shape {shapes}")
    if name := not_finite(model):
        raise ValueError(f"{name} is not finite")
    return model, sorted(report["missing_keys"])


def require_floats(folder: Path) -> None:
    """Raise ValueError for weights that are not floating-point numbers: transformers would convert them.

    Only buffers (``*_ids``) are integers. Raises SafetensorError or OSError for a damaged file.
    """
    names = {WEIGHTS} if (folder / WEIGHTS).is_file() else set()  # before an index, as transformers
    if not names and (folder / INDEX).is_file():
        names = set(read_json(folder / INDEX, "fetch it again")["weight_map"].values())
    for path in (folder / name for name in names):
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118 (no mapping)
                kind = file.get_slice(name).get_dtype()
                if kind not in FLOATS and not name.endswith("_ids"):
                    raise ValueError(f"{name} holds {kind}, not {', '.join(FLOATS)}")


@contextmanager
def bounded(folder: Path) -> Iterator[None]:
    """Stop with a ValueError as soon as this thread makes modules with far more values than the files in
    ``folder`` can hold: a description of any size would be built for hours, or fill the memory."""
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    room, builder = VALUES_PER_BYTE * size + MORE_VALUES, threading.get_ident()

    def count(_: nn.Module, name: str, tensor: Any) -> None:
        nonlocal room
        if threading.get_ident() == builder and tensor is not None:
            room -= tensor.numel()
            if room < 0:
                raise ValueError(f"it describes a model far larger than its files ({size:,} bytes)")

    parameters = hooks.register_module_parameter_registration_hook(count)
    buffers = hooks.register_module_buffer_registration_hook(count)
    try:
        yield
    finally:
        parameters.remove()
        buffers.remove()


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Silence the libraries' warnings about unused heads and retries; our own errors are clearer."""
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
    if Path(name).is_dir():
        remedy = "it needs the config.json and weights of an encoder of transformers; fetch or save it again"
    else:
        first = WITHOUT_HUB.get(name, "check spelling and network")
        remedy = f"{first}, or give a local folder with its config and weights"
    return UnavailableError(f"encoder {name} cannot be loaded ({reason_of(error)}): {remedy}")


def reason_of(error: BaseException) -> str:
    """Short message of transformers, without its invitation to run the code of a checkpoint."""
    if "trust_remote_code" in str(error):
        return "it needs code of its own, and qa_arch never runs a checkpoint's code"
    return interruption(error) or first_line(error, BRIEF)
