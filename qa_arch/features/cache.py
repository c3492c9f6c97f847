"""Feature tables on disk: one Arrow file per content hash, memory-mapped when read back.

The name of a file is the hash of everything that made it, so a changed setting misses and nothing
has to be invalidated. Files are written aside and renamed, so a build that is interrupted leaves
nothing, and of several processes that build the same table any one wins.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import tokenizers
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from qa_arch.config.files import write_with
from qa_arch.config.schema import Features
from qa_arch.errors import QaArchError
from qa_arch.features.joint import prepare
from qa_arch.features.table import FeatureTable, array_names, template_from
from qa_arch.features.template import backend_of, unlimited
from qa_arch.types.text import QuestionSet

FEATURES_VERSION = 1
"""Part of every key: raise it when the same inputs give other features."""

log = logging.getLogger(__name__)


def prepare_cached(
    questions: QuestionSet,
    tokenizer: PreTrainedTokenizerBase,
    cache_dir: str | os.PathLike[str] | None = None,
    *,
    max_length: int = 384,
    stride: int = 128,
    max_question: int = 64,
    segments: bool,
) -> FeatureTable:
    """``prepare``, or what it gave before; without ``cache_dir`` nothing is kept."""
    settings: dict[str, Any] = {
        "max_length": max_length,
        "stride": stride,
        "max_question": max_question,
        "segments": segments,
    }

    def build() -> FeatureTable:
        return prepare(questions, tokenizer, **settings)

    if cache_dir is None:
        return build()
    with unlimited(backend_of(tokenizer)) as backend:
        vocabulary = hashlib.sha256(backend.to_str().encode()).hexdigest()
    made_of = {
        **settings,
        "questions": questions.fingerprint,
        "tokenizer": vocabulary,
        "pad": tokenizer.pad_token_id,
        "tokenizers": tokenizers.__version__,  # the same vocabulary may be cut otherwise by another
    }
    return cached(cache_dir, made_of, build)


def windows_of(
    questions: QuestionSet, tokenizer: PreTrainedTokenizerBase, settings: Features, *, segments: bool
) -> FeatureTable:
    """The windows of a set as a run's config asks for them, from its cache where they are there already."""
    return prepare_cached(
        questions,
        tokenizer,
        cache_dir=settings.cache_dir,
        max_length=settings.max_length,
        stride=settings.stride,
        max_question=settings.max_question,
        segments=segments,
    )


def cached(
    folder: str | os.PathLike[str], key_parts: Mapping[str, Any], build: Callable[[], FeatureTable]
) -> FeatureTable:
    """The table that ``key_parts`` (JSON values) identify: read from ``folder``, or built and kept there.

    A damaged file is built again. A folder that cannot be written costs the time, not the run.
    """
    key = json.dumps({**key_parts, "version": FEATURES_VERSION}, sort_keys=True)
    path = Path(folder) / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.arrow"
    if path.exists():
        try:
            return read(path)
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
            log.warning("%s is damaged (%s): building the features again", path, error)
    table = build()
    try:
        write_with(path, lambda temporary: write(temporary, table))
    except QaArchError as error:
        log.warning("features are not kept: %s", error)
    return table


def write(path: Path, table: FeatureTable) -> None:
    """One record batch of one row, in which every column is a list: columns differ in length."""
    arrays = {name: getattr(table, name) for name in array_names()}
    columns = {name: _one_row(pa.array(_storable(values))) for name, values in arrays.items()}
    columns["vocabulary"] = _one_row(pa.array(table.vocabulary, pa.large_string()))
    facts = {
        "template": asdict(table.template),
        "truncated_questions": table.truncated_questions,
        "lost_answers": table.lost_answers,
        "checksum": _checksum(arrays.values()),
    }
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    schema = batch.schema.with_metadata({"facts": json.dumps(facts)})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(batch.replace_schema_metadata(schema.metadata))


def read(path: Path) -> FeatureTable:
    """The table in ``path``, its arrays views of the mapped file. Raises ValueError where it is damaged."""
    with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
        batch = reader.get_batch(0)
        facts = json.loads(reader.schema.metadata[b"facts"])
    arrays = {name: batch.column(name).values.to_numpy(zero_copy_only=True) for name in array_names()}
    arrays["answerable"] = arrays["answerable"].view(bool)
    if _checksum(arrays.values()) != facts.pop("checksum"):
        raise ValueError("its checksum is not that of its content")
    template = template_from(facts.pop("template"))
    words = tuple(batch.column("vocabulary").values.to_pylist())
    return FeatureTable(template=template, vocabulary=words, **arrays, **facts)


def _one_row(values: pa.Array) -> pa.Array:
    return pa.LargeListArray.from_arrays(pa.array([0, len(values)], pa.int64()), values)


def _storable(values: NDArray) -> NDArray:
    """Arrow packs booleans into bits, which cannot be mapped: bytes can."""
    return values.view(np.uint8) if values.dtype == bool else values


def _checksum(arrays: Iterable[NDArray]) -> int:
    total = 0
    for values in arrays:
        total = zlib.crc32(np.ascontiguousarray(values).data, total)
    return total
