"""Build tokenizer, encoder and model from a config."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from qa_arch.config.schema import Config, recipe_of
from qa_arch.config.schema import Encoder as EncoderSettings
from qa_arch.config.target import TRUSTED, accepts, arguments
from qa_arch.errors import ConfigError, UnavailableError
from qa_arch.features import tokenizers
from qa_arch.features.vectors import WordVectors
from qa_arch.features.windows import position_of_cls
from qa_arch.models import store
from qa_arch.models.check import INPUTS, check_model
from qa_arch.models.checkpoint_files import names_checkpoint, open_checkpoint
from qa_arch.nn.encoder import WORDS, AnyEncoder
from qa_arch.nn.encoder_configs import WITHOUT_HUB, known_config, place, resolve
from qa_arch.nn.encoder_factory import build_encoder, quiet_loading, reason_of
from qa_arch.records import MODEL
from qa_arch.system.hub import retried
from qa_arch.types.text import QuestionSet

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
        if names_checkpoint(teachers[0]):
            return load_tokenizer(str(open_checkpoint(teachers[0]).folder), setting="distillation.teacher")
        return store.load_tokenizer(Path(teachers[0]) / MODEL)
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
        return tokenizers.build(kind, list(dict.fromkeys(texts)), settings.vocabulary or 0)
    tokenizer = load_tokenizer(name, setting=setting)
    if settings.family != WORDS:
        position_of_cls(f"{setting}={name}", tokenizer)
    return tokenizer


def load_tokenizer(encoder: str, *, setting: str = "encoder.name") -> PreTrainedTokenizerBase:
    """Load the tokenizer of a hub id, a folder or ``minilm``. Raises UnavailableError if there is none."""
    name = resolve(encoder)
    try:
        with quiet_loading():  # silences warnings about families of extras, such as qa_transformer
            tokenizer = retried(
                lambda: transformers.AutoTokenizer.from_pretrained(**place(encoder), trust_remote_code=False)
            )
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
        vocab_size=len(tokenizer) if tokenizer else 0,
        pad_token_id=tokenizer.pad_token_id if tokenizer else 0,
        max_positions=config.features.max_length,
        gradient_checkpointing=config.trainer.gradient_checkpointing,
    )
    check_window(config, encoder)
    return encoder


def check_window(config: Config, encoder: AnyEncoder) -> None:
    """Raise ConfigError if windows are longer than ``encoder`` can read."""
    settings, limit = config.encoder, encoder.max_tokens
    if limit is not None and config.features.max_length > limit:
        raise ConfigError(
            f"features.max_length: {config.features.max_length} is more than the {limit} tokens"
            f" that {settings.name or settings.family} can read"
        )


def check_encoder(config: Config) -> None:
    """Raise ConfigError for settings that a pretrained encoder lacks, if it is known without the hub."""
    name, recipe = str(config.encoder.name), recipe_of(config.model)
    if config.encoder.init != "pretrained" or not (recipe is None or recipe.encoder):
        return
    if known_config(name) is not None or Path(resolve(name)).is_dir():
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
