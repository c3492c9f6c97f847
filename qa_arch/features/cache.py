"""Disk cache of what is slow to compute: one file per content hash.

It holds feature tables, word vectors, teachers' logits and scores of heuristics.

The file name is the hash of all inputs, so a changed setting misses the cache and nothing has to be
invalidated. Files are written under a temporary name and renamed: an interrupted build leaves nothing behind,
and several processes may build the same content. Every file has a checksum.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import tokenizers
from safetensors import SafetensorError
from safetensors.numpy import load, save

from qa_arch.config.schema import Features
from qa_arch.errors import ConfigError, QaArchError
from qa_arch.features.windows import FeatureTable, Special, Template, array_names, prepare
from qa_arch.features.words import backend_of, unlimited
from qa_arch.files import replacing
from qa_arch.types import QuestionSet

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FEATURES_VERSION = 3
"""Part of every key; increment when the same inputs give different content or files."""

log = logging.getLogger(__name__)
Content = TypeVar("Content")


def windows_of(
    questions: QuestionSet,
    tokenizer: PreTrainedTokenizerBase,
    settings: Features,
    *,
    segments: bool,
    **longest: int,
) -> FeatureTable:
    """Run ``prepare`` with a run's feature settings, cached on disk if they set ``cache_dir``.

    ``longest``: ``longest_question`` and ``longest_window``.

    A damaged file is rebuilt. If the folder is not writable, the table is built without caching.
    """
    # Everything that changes a table is in the key, so a file never needs to be checked against its inputs.
    lengths: dict[str, Any] = {**asdict(settings), "segments": segments, **longest}
    if (cache_dir := lengths.pop("cache_dir")) is None:
        return prepare(questions, tokenizer, **lengths)
    key_parts = {
        **lengths,
        "questions": questions.fingerprint,
        "tokenizer": tokenizer_hash(tokenizer),
        "pad": tokenizer.pad_token_id,
        "tokenizers": tokenizers.__version__,  # versions may tokenise differently with the same vocabulary
    }
    return read_or_build(
        cache_file(cache_dir, key_parts, ".features"),
        "features",
        read=read,
        build=lambda: prepare(questions, tokenizer, **lengths),
        write=write,
    )


def read_or_build(
    path: Path,
    what: str,
    *,
    read: Callable[[Path], Content],
    build: Callable[[], Content],
    write: Callable[[Path, Content], object],
) -> Content:
    """Read ``path`` from a cache, or build the content and write it there.

    ``what``: plural noun for the log. A damaged file is rebuilt; a folder that is not writable only logs a
    warning.
    """
    if path.exists():
        try:
            return read(path)
        except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
            log.warning("%s is damaged (%s): rebuilding the %s", path, error, what)
    built = build()
    try:
        # Several processes may build the same file: the last one replaces it as a whole.
        with replacing(path) as temporary:
            write(temporary, built)
    except QaArchError as error:
        log.warning("the %s are not cached: %s", what, error)
    return built


def cache_file(folder: str | os.PathLike[str], key_parts: Mapping[str, Any], suffix: str) -> Path:
    """Path in a cache for the key ``key_parts`` (JSON values)."""
    key = json.dumps({**key_parts, "version": FEATURES_VERSION}, sort_keys=True)
    return Path(folder) / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}{suffix}"


def write_sealed(path: Path, *parts: bytes | memoryview) -> None:
    """Write the hash of the ``parts``, then the parts, without joining them in memory."""
    # A large array is hashed and written from where it lies.
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    with path.open("wb") as file:
        for part in (digest.digest(), *parts):
            file.write(part)


def read_sealed(path: Path) -> bytes:
    """Content that ``write_sealed`` wrote. Raises ValueError if the file is damaged."""
    with path.open("rb") as file:
        seal, content = file.read(hashlib.sha256().digest_size), file.read()
    if hashlib.sha256(content).digest() != seal:
        raise ValueError("its checksum does not match its content")
    return content


def tokenizer_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """SHA-256 of the vocabulary and rules of ``tokenizer``, ignoring truncation and padding."""
    with unlimited(backend_of(tokenizer)) as backend:
        return hashlib.sha256(backend.to_str().encode()).hexdigest()


def write(path: Path, table: FeatureTable) -> None:
    """Write the arrays of ``table``, and all else as JSON in the array ``rest``."""
    rest = {
        "template": asdict(table.template),
        "vocabulary": table.vocabulary,
        "truncated_questions": table.truncated_questions,
        "lost_answers": table.lost_answers,
    }
    arrays = {name: np.ascontiguousarray(getattr(table, name)) for name in array_names()}
    write_sealed(path, save({**arrays, "rest": np.frombuffer(json.dumps(rest).encode(), np.uint8)}))


def read(path: Path) -> FeatureTable:
    """Read a table. Raises ValueError if the file is damaged."""
    arrays: dict[str, Any] = load(read_sealed(path))
    rest = json.loads(arrays.pop("rest").tobytes())
    parts, words = rest.pop("template"), tuple(rest.pop("vocabulary"))
    for place in ("before", "between", "after"):
        parts[place] = tuple(Special(*token) for token in parts[place])
    return FeatureTable(template=Template(**parts), vocabulary=words, **arrays, **rest)


def require_same_tokens(
    first: PreTrainedTokenizerBase,
    second: PreTrainedTokenizerBase,
    questions: QuestionSet,
    settings: Features,
    *,
    names: tuple[str, str],
) -> None:
    """Raise ConfigError if two tokenizers do not produce the same windows.

    Their vocabularies must be equal. If they differ otherwise (case folding, for example), the windows of
    ``questions`` must be equal too. ``names``: the two tokenizers, for the message.
    """
    if tokenizer_hash(first) == tokenizer_hash(second):
        return
    reason = f"their vocabularies have {len(first):,} and {len(second):,} pieces"
    if same := first.get_vocab() == second.get_vocab():
        ours, theirs = (windows_of(questions, t, settings, segments=False) for t in (first, second))
        same = ours.template == theirs.template and np.array_equal(ours.ids, theirs.ids)
        reason = (
            f"their vocabularies are equal, but {questions.name} is tokenised differently (case, for example)"
        )
    if not same:
        raise ConfigError(
            f"{names[0]} and {names[1]} do not produce the same tokens: {reason}; choose two of one tokenizer"
            " (a random encoder takes its teacher's with encoder.vocabulary=null)"
        )
