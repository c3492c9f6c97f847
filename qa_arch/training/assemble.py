"""Everything a run trains on and with, built from its config: sets, tokenizer, features, model."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from qa_arch.config.schema import Config, Data, require_vectors
from qa_arch.config.schema import Encoder as EncoderSettings
from qa_arch.config.target import TRUSTED
from qa_arch.data import synthetic
from qa_arch.data.files import as_list
from qa_arch.data.insuranceqa import PREFIX as INSURANCEQA
from qa_arch.data.question_types import PREFIX as TYPES
from qa_arch.data.splits import by_article, hold_out, require_disjoint, subset
from qa_arch.data.squad import open_set
from qa_arch.errors import ConfigError, DataError, UnavailableError
from qa_arch.features import tokenizers
from qa_arch.features.cache import windows_of
from qa_arch.features.glove import WordVectors, oov_rate, read_vectors
from qa_arch.features.joint import check_lengths
from qa_arch.features.table import FeatureTable
from qa_arch.features.template import probe
from qa_arch.models.assemble import build_model
from qa_arch.nn.build import build_encoder
from qa_arch.nn.known import resolve
from qa_arch.nn.losses import Loss, build_loss
from qa_arch.nn.words import AnyEncoder
from qa_arch.predict.store import vector_tensor
from qa_arch.types.text import QuestionSet

log = logging.getLogger(__name__)
SYNTHETIC = "synthetic:"
TOKENIZER_KINDS = {
    "bert": "wordpiece",
    "distilbert": "wordpiece",
    "roberta": "byte_bpe",
    "albert": "unigram",
    "words": "words",
}


@dataclass(frozen=True)
class Parts:
    """What a run is made of. ``sets`` and ``tables`` by split: train, calibration, dev."""

    sets: dict[str, QuestionSet]
    tables: dict[str, FeatureTable]
    tokenizer: PreTrainedTokenizerBase
    encoder: AnyEncoder
    vectors: WordVectors | None
    model: nn.Module
    loss: Loss


def assemble(config: Config, trusted: Sequence[str] = TRUSTED) -> Parts:
    """Read the data, then build tokenizer, features and model; the cheap checks come first."""
    sets = load_sets(config.data)
    tokenizer = make_tokenizer(config.encoder, sets["train"])
    windows = config.features
    specials = probe(tokenizer, segments=False).specials
    check_lengths(windows.max_length, windows.stride, windows.max_question, specials)
    encoder = make_encoder(config, tokenizer)
    tables = {
        split: make_features(config, questions, tokenizer, encoder) for split, questions in sets.items()
    }
    for split, table in tables.items():
        log.info("%s: %d questions, %d windows%s", split, len(sets[split]), len(table), _losses(table))
    vectors = make_vectors(config, tables)
    model = build_model(config.model, encoder, vector_tensor(vectors), trusted)
    loss = build_loss(config, trusted, null_share=null_share(tables["train"]))
    return Parts(sets, tables, tokenizer, encoder, vectors, model, loss)


def load_sets(data: Data) -> dict[str, QuestionSet]:
    """Train, calibration and dev; calibration is held out of train by article where none is given.

    Raises DataError where two of them share an article. Of a dev set that stays closed nothing but
    its articles' titles is looked at, so that no run trains for hours which could never be scored.
    """
    sets = {"train": _open(data.train, "train", data)}
    if data.calibration is not None:
        sets["calibration"] = _open(data.calibration, "calibration", data)
    elif data.hold_out_articles:
        sets["train"], sets["calibration"] = hold_out(sets["train"], data.hold_out_articles, data.split_seed)
    elif data.hold_out_share:
        shares = {"train": 1 - data.hold_out_share, "calibration": data.hold_out_share}
        sets = by_article(sets["train"], shares, data.split_seed)
    if data.train_questions:
        sets["train"] = subset(sets["train"], data.train_questions, data.split_seed)
    if data.dev is not None and data.open_dev:
        sets["dev"] = _open(data.dev, "dev", data)
    require_disjoint(**sets, **_closed_titles(data))
    if not sets["train"].examples:
        raise DataError(
            "data.train: no question is left to train on; hold out less or raise data.train_questions"
        )
    return sets


def _closed_titles(data: Data) -> dict[str, frozenset[str]]:
    if data.dev is None or data.open_dev:
        return {}
    if not all(path.startswith(SYNTHETIC) or Path(path).exists() for path in as_list(data.dev)):
        log.info("data.dev: not on disk; what it shares with training shows when it is scored")
        return {}
    return {"dev (closed)": _open(data.dev, "dev", data).titles}


def _open(source: str | list[str], split: str, data: Data) -> QuestionSet:
    if isinstance(source, str) and source.startswith(SYNTHETIC):
        return synthetic.named(source.removeprefix(SYNTHETIC))
    if isinstance(source, str) and source.startswith(INSURANCEQA):
        raise DataError(
            f"{source}: holds questions with answers to select from and no passages; use a model of"
            " task selection (model=qa_lstm/c)"
        )
    if isinstance(source, str) and source.startswith(TYPES):
        raise DataError(f"{source}: holds questions with classes and no passages; use model=question_types")
    questions = open_set(source, name=split, on_error=data.on_error)
    for problem in questions.skipped:
        log.warning("left out: %s", problem)
    return questions


def make_tokenizer(settings: EncoderSettings, train: QuestionSet) -> PreTrainedTokenizerBase:
    """The encoder's own tokenizer, or for a random encoder one of its kind trained on the train texts."""
    if settings.init == "random":
        kind = TOKENIZER_KINDS.get(settings.family or "")
        if kind is None:
            known = ", ".join(TOKENIZER_KINDS)
            raise ConfigError(
                f"encoder.family: no tokenizer is built for '{settings.family}' (known: {known})"
            )
        texts = dict.fromkeys(text for e in train.examples for text in (e.context, e.question))
        return tokenizers.build(kind, list(texts), settings.vocabulary or 0)  # type: ignore[arg-type]
    return load_tokenizer(str(settings.name))


def load_tokenizer(encoder: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a hub id, a local folder or ``minilm``; UnavailableError where there is none."""
    name = resolve(encoder)
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, use_fast=True, trust_remote_code=False)
    except Exception as error:  # a damaged tokenizer.json may raise anything, a missing package ImportError
        first = (str(error).strip().splitlines() or [""])[0]
        raise UnavailableError(
            f"encoder.name: no tokenizer for '{name}' ({type(error).__name__}: {first}); check the name and"
            " the connection, or give a local folder with a tokenizer.json"
        ) from error
    # Without tokenizer files the library makes one that knows no word, and says nothing.
    if not set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens):
        raise UnavailableError(
            f"encoder.name: no tokenizer for '{name}' (it knows special tokens alone); put the encoder's"
            " tokenizer.json beside its weights, or give a local folder with a tokenizer.json"
        )
    return tokenizer


def make_encoder(
    config: Config, tokenizer: PreTrainedTokenizerBase | None, *, blank: bool = False
) -> AnyEncoder:
    """The encoder of the config; a random one gets the tokenizer's vocabulary and room for a window.

    ``blank``: a pretrained one gets random weights, and its own are not loaded.
    """
    settings = config.encoder
    shared = {
        "init": "random" if blank else settings.init,
        "initializer_range": settings.initializer_range,
        "attention_dropout": settings.attention_dropout,
        "hidden_dropout": settings.hidden_dropout,
        "freeze": settings.freeze,
        "gradient_checkpointing": config.trainer.gradient_checkpointing,
    }
    if settings.init == "pretrained":
        encoder = build_encoder(settings.name, **shared)  # type: ignore[arg-type]
    else:
        encoder = build_encoder(
            family=settings.family,
            layers=settings.layers,
            width=settings.width,
            heads=settings.heads,
            vocab_size=len(tokenizer) if tokenizer else 0,
            pad_token_id=tokenizer.pad_token_id if tokenizer else 0,
            max_positions=config.features.max_length,
            **shared,  # type: ignore[arg-type]
        )
    limit = encoder.max_tokens
    if limit is not None and config.features.max_length > limit:
        raise ConfigError(
            f"features.max_length: {config.features.max_length} is more than the {limit} tokens"
            f" that {settings.name or settings.family} can read"
        )
    return encoder


def make_features(
    config: Config, questions: QuestionSet, tokenizer: PreTrainedTokenizerBase, encoder: AnyEncoder
) -> FeatureTable:
    """The windows of a set, from the cache where they are there already.

    Raises ConfigError where one holds an id that the encoder has no embedding of. Ids that no text uses
    do not matter: some published tokenizers know a few more than their encoder.
    """
    table = windows_of(questions, tokenizer, config.features, segments=encoder.has_segments)
    if table.largest_id >= encoder.vocab_size:
        raise ConfigError(
            f"encoder.name: {config.encoder.name} has {encoder.vocab_size} token embeddings and its tokenizer"
            f" writes id {table.largest_id}: put the tokenizer that belongs to the encoder beside its weights"
        )
    return table


def make_vectors(config: Config, tables: dict[str, FeatureTable]) -> WordVectors | None:
    """The vectors of the data's words and of the most frequent words of the file.

    A saved run keeps them, and must know words that it never met in training.
    """
    if not config.glove.use:
        return None
    require_vectors(config)
    everything = read_vectors(str(config.glove.path), dim=config.glove.dim, backend=config.glove.backend)
    met = {word for table in tables.values() for word in table.vocabulary}
    vectors = everything.only({*everything.words[: config.glove.keep], *met})
    for split, table in tables.items():
        rate = oov_rate(table, vectors.rows(table.vocabulary))
        said = f"{rate.question:.1%} of the question words, {rate.context:.1%} of the passage words"
        log.info("%s: %s have no vector", split, said)
    return vectors


def null_share(table: FeatureTable) -> float:
    """Share of the windows that hold no answer."""
    return float(1 - table.answerable.mean())


def _losses(table: FeatureTable) -> str:
    said = ""
    if table.truncated_questions:
        said += f", {table.truncated_questions} questions truncated"
    if table.lost_answers:
        said += f", {table.lost_answers} answers in no window"
    return said
