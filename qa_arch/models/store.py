"""Build tokenizer, encoder and model from a config, and keep them in the model folder of a run.

The folder has safetensors, plain JSON and the tokenizer's own files; no pickle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from qa_arch.config.schema import Config, EncoderSettings
from qa_arch.config.target import TRUSTED, accepts, arguments, locate, source_line
from qa_arch.errors import BRIEF, ConfigError, QaArchError, RunError, UnavailableError, first_line
from qa_arch.features import tokenizers
from qa_arch.features.vectors import WordVectors
from qa_arch.features.windows import check_window, position_of_cls
from qa_arch.files import read_json, replacing, replacing_folder, write_json
from qa_arch.hub import retried
from qa_arch.models.checkpoint_files import names_checkpoint, open_checkpoint
from qa_arch.nn.encoder import WORDS, AnyEncoder, Encoder, encoder_from, not_finite
from qa_arch.nn.encoder_configs import WEIGHTS, WITHOUT_HUB, known_config, place, resolve
from qa_arch.nn.encoder_factory import build_encoder, quiet_loading, reason_of
from qa_arch.records import MODEL, PRETRAINED, TOKENIZER, VECTORS
from qa_arch.types import QuestionSet

INPUTS = ("encoder", "vectors")
"""Arguments of span models that are built from other sections of the config."""
TOKENIZERS: Mapping[str | None, tokenizers.Family] = {
    "roberta": "byte_bpe",
    "albert": "unigram",
    "words": "words",
}
"""Tokenizer trained for a random encoder, by family; WordPiece for all others."""


def make_tokenizer(
    settings: EncoderSettings, train: QuestionSet, teachers: Sequence[str] = ()
) -> PreTrainedTokenizerBase:
    """``tokenizer_of`` the config, with the questions and passages of ``train``.

    A random encoder without a configured tokenizer or vocabulary size takes the tokenizer of the first of
    ``teachers``, which are run folders or checkpoints.
    """
    unsized = settings.vocabulary is None and not settings.tokenizer and settings.family != WORDS
    if settings.init == "random" and teachers and unsized:
        # Soft targets are compared token by token, so the student needs the teacher's tokens.
        if names_checkpoint(teachers[0]):
            return open_tokenizer(str(open_checkpoint(teachers[0]).folder), setting="distillation.teacher")
        return load_tokenizer(Path(teachers[0]) / MODEL)
    return tokenizer_of(settings, (text for e in train.examples for text in (e.context, e.question)))


def tokenizer_of(settings: EncoderSettings, texts: Iterable[str]) -> PreTrainedTokenizerBase:
    """The encoder's own tokenizer; for a random encoder the configured one, or one trained on ``texts``.

    Raises ConfigError if a loaded one puts no [CLS] before the question.
    """
    name, setting = settings.name, "encoder.name"
    if settings.init == "random":
        name, setting = settings.tokenizer, "encoder.tokenizer"
    if not name:
        kind = TOKENIZERS.get(settings.family, "wordpiece")
        # A passage recurs with each of its questions.
        return tokenizers.build(kind, list(dict.fromkeys(texts)), settings.vocabulary or 0)
    tokenizer = open_tokenizer(name, setting=setting)
    if settings.family != WORDS:  # which have no [CLS]
        position_of_cls(f"{setting}={name}", tokenizer)
    return tokenizer


def open_tokenizer(encoder: str, *, setting: str = "encoder.name") -> PreTrainedTokenizerBase:
    """Load the tokenizer of a hub id, a folder or ``minilm``. Raises UnavailableError if there is none."""
    name = resolve(encoder)
    try:
        with quiet_loading():  # silences warnings about families of extras, such as qa_transformer
            tokenizer = retried(
                lambda: transformers.AutoTokenizer.from_pretrained(**place(encoder), trust_remote_code=False)
            )
            _require_no_panic(tokenizer)
    except Exception as error:  # a damaged tokenizer.json can raise anything, a missing package ImportError
        without_hub = WITHOUT_HUB.get(encoder, "give a local folder with a tokenizer.json")
        raise UnavailableError(
            f"{setting}: no tokenizer for '{name}' ({type(error).__name__}: {reason_of(error)});"
            f" check the name and the connection, or {without_hub}"
        ) from error
    # Without tokenizer files the library silently returns a tokenizer with an empty vocabulary.
    if not set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens):
        raise UnavailableError(
            f"{setting}: no tokenizer for '{name}' (it has only special tokens); put the encoder's"
            " tokenizer.json beside its weights, or give a local folder with a tokenizer.json"
        )
    return tokenizer


def make_encoder(config: Config, tokenizer: PreTrainedTokenizerBase | None) -> AnyEncoder:
    """The configured encoder; a random one gets the tokenizer's vocabulary and positions for a window."""
    settings = config.encoder
    encoder = build_encoder(
        settings,
        vocab_size=len(tokenizer) if tokenizer else settings.vocabulary or 0,
        pad_token_id=tokenizer.pad_token_id if tokenizer else 0,
        max_positions=config.features.max_length,
        gradient_checkpointing=config.trainer.gradient_checkpointing,
    )
    require_window(config, encoder)
    return encoder


def require_window(config: Config, encoder: AnyEncoder) -> None:
    """Raise ConfigError if windows are longer than the configured ``encoder`` can read."""
    name = str(config.encoder.name or config.encoder.family)
    check_window(config.features.max_length, encoder.max_tokens, name)


def check_encoder(config: Config) -> None:
    """Raise ConfigError for settings that the encoder lacks, if it is random or known without the hub."""
    name, is_random = str(config.encoder.name), config.encoder.init == "random"
    if config.has_encoder and (is_random or known_config(name) is not None or Path(resolve(name)).is_dir()):
        with torch.device("meta"):
            make_encoder(config, None)


def build_model(
    section: Mapping[str, Any],
    encoder: AnyEncoder | None,
    vectors: Tensor | WordVectors | None = None,
    trusted: Sequence[str] = TRUSTED,
    *,
    inputs: Sequence[str] = INPUTS,
) -> nn.Module:
    """Build the model; row 0 of the word vectors ``vectors`` (V, d) is that of unknown words."""
    target = check_model(section, trusted, inputs=inputs, with_vectors=vectors is not None)
    if encoder is not None and encoder.out_dim == 0 and vectors is None:
        raise ConfigError(
            "encoder=words reads only word vectors, and there are none: give glove=file glove.path=..., or"
            " learn some with encoder.width and encoder.vocabulary"
        )
    matrix = torch.from_numpy(vectors.matrix) if isinstance(vectors, WordVectors) else vectors
    available = {"encoder": encoder, "vectors": matrix}
    components = {name: available[name] for name in inputs if accepts(target, name)}
    return target(**components, **arguments(target, section, inputs, trusted=trusted))


ENCODER = "encoder.json"


def save_encoder(folder: Path, encoder: AnyEncoder) -> None:
    """Save the architecture for ``load_encoder``."""
    write_json(folder / ENCODER, encoder.describe())


def save_tokenizer(folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    with replacing_folder(folder / TOKENIZER) as path:
        tokenizer.save_pretrained(path)


def save_pretrained(folder: Path, encoder: Encoder, tokenizer: PreTrainedTokenizerBase) -> None:
    """Save encoder and tokenizer as transformers does, for ``encoder.name=RUN`` to start from."""
    with replacing_folder(folder / PRETRAINED) as path, quiet_loading():
        encoder.backbone.save_pretrained(path)
        tokenizer.save_pretrained(path)


def save_vectors(folder: Path, vectors: WordVectors) -> None:
    with replacing_folder(folder / VECTORS) as path:
        vectors.save(path)


def save_weights(folder: Path, model: nn.Module) -> None:
    save_state(folder, model.state_dict())


def save_state(folder: Path, state: Mapping[str, torch.Tensor]) -> None:
    """Save weights atomically for ``load_weights``, into a folder that exists; tied weights are stored under
    each name."""
    tensors: dict[str, torch.Tensor] = {}
    storages: set[int] = set()
    for name, value in state.items():
        tensor = value.detach().cpu().contiguous()
        storage = tensor.untyped_storage().data_ptr()
        # safetensors refuses shared storage.
        tensors[name] = tensor.clone() if storage in storages else tensor
        storages.add(storage)
    with replacing(folder / WEIGHTS, parents=False) as path:
        save_file(tensors, path)


def load_weights(folder: Path, model: nn.Module) -> None:
    """Load what ``save_weights`` wrote into ``model``. Raises RunError if it does not fit."""
    path = folder / WEIGHTS
    if not path.is_file():  # reading a pipe could wait for ever
        raise RunError(f"{path}: is missing; the run has no saved model, train it again")
    with _damaged(path):
        state = load_file(path)
    try:
        for name, own in model.state_dict().items():
            if name in state and state[name].dtype != own.dtype:  # which load_state_dict would convert
                raise RuntimeError(f"{name} holds {state[name].dtype}, not {own.dtype}")
        model.load_state_dict(state)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()  # the first one only names the class of the model
        raise RunError(f"{path}: does not fit the run's config: {reason}") from error
    if wrong := not_finite(model):
        raise RunError(f"{path}: is damaged ({wrong} is not finite); copy it again, or train the run again")


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer that the run was trained with; nothing is downloaded or executed."""
    path = folder / TOKENIZER
    if not (path / "tokenizer.json").is_file():
        raise RunError(f"{path}: holds no tokenizer.json; the run is incomplete, train it again")
    with _damaged(path / "tokenizer.json"):
        tokenizer = PreTrainedTokenizerFast.from_pretrained(path, local_files_only=True)
        _require_no_panic(tokenizer)
        return tokenizer


def _require_no_panic(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ValueError if the tokenizer's library panics at a pair, past every ``except Exception``: a file
    may name special tokens that it does not have."""
    try:
        tokenizer("a", "b")
    except BaseException as error:
        if type(error).__name__ == "PanicException":
            raise ValueError(str(error)) from error
        if not isinstance(error, Exception):
            raise


def load_encoder(folder: Path) -> AnyEncoder:
    """Build the encoder's architecture with random weights."""
    description = read_json(folder / ENCODER, "the run is incomplete, train it again")
    with _damaged(folder / ENCODER):
        return encoder_from(description)


@contextmanager
def _damaged(path: Path) -> Iterator[None]:
    """Turn any exception into a RunError that names ``path``: libraries raise many for a damaged file."""
    try:
        yield
    except QaArchError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {first_line(error, BRIEF)}"
        raise RunError(f"{path}: is damaged ({reason}); copy it again, or train the run again") from error


def load_vectors(folder: Path) -> WordVectors | None:
    path = folder / VECTORS
    return WordVectors.load(path) if path.is_dir() else None


def check_model(
    section: Mapping[str, Any],
    trusted: Sequence[str] = TRUSTED,
    *,
    inputs: Sequence[str] = INPUTS,
    with_vectors: bool = False,
) -> type[nn.Module]:
    """Return the class that ``section`` names, its arguments checked; loads no weights.

    It must have the first of the arguments ``inputs``, which the section may not set.
    """
    target = locate(section.get("_target_"), trusted, where="model")
    if not issubclass(target, nn.Module) or not accepts(target, inputs[0]):
        place = source_line(target.__init__)  # type: ignore[misc]
        raise ConfigError(
            f"model._target_: {target.__name__} is not a model for task {section.get('task')}, which"
            f" needs a torch module with an argument named {inputs[0]} ({place})"
        )
    arguments(target, section, inputs, trusted=trusted)
    if with_vectors and not accepts(target, "vectors"):
        raise ConfigError(f"glove: {target.__name__} takes no word vectors; use glove=none")
    return target
