"""Packing: the tokens of a corpus as blocks of at most ``max_length``, memory-mapped from the feature cache.

Two units (Liu et al. 2019, section 4.2):

- ``tokens``: FULL-SENTENCES. Blocks are full and run on over the ends of documents, each of which is marked
  by the tokenizer's separator; for masked and causal language modelling.
- ``sentences``: DOC-SENTENCES. A block holds whole sentences of a single document, with room for the special
  tokens of a pair; for next-sentence and sentence-order prediction. A sentence longer than a block is cut.

Blocks are stored by ``datasets``, without the special tokens around them, which ``Framing`` adds.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import tokenizers
from numpy.typing import ArrayLike
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from qa_arch.data.sentences import sentence_spans
from qa_arch.errors import ConfigError, DataError
from qa_arch.extras.pretraining.corpus import Corpus
from qa_arch.features.cache import tokenizer_hash
from qa_arch.features.windows import Special, Template, probe
from qa_arch.features.words import Bools, Longs, backend_of, name_of, tokenize_fn, unlimited

PACKING_VERSION = 3
"""Part of every key; raised when the same inputs give other blocks."""
CHUNK = 1 << 18
"""Characters that are tokenised together: enough for the tokenizer's threads, few enough for the memory."""
RENEWAL = 64
"""Chunks after which the tokenizer's cache of words is begun again."""

Unit = Literal["tokens", "sentences"]
_Part = tuple[ArrayLike, int]
"""(token ids, segment)."""

log = logging.getLogger(__name__)


# Special tokens -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Padded:
    """Rows for a model, padded on the right to the longest. Axes: ``B`` rows, ``T`` tokens."""

    ids: Longs
    """(B, T) token ids with the special tokens in place."""
    mask: Bools
    """(B, T) True on every token that is not padding."""
    segments: Longs
    """(B, T) segment ids: 0, and 1 on the second text of a pair and what follows it."""


@dataclass(frozen=True, slots=True)
class Framing:
    """Special tokens of a tokenizer around a text and around a pair."""

    before: tuple[int, ...]
    """In front of a single text."""
    after: tuple[int, ...]
    """Behind a single text."""
    pairs: Template
    """Around a pair."""
    separator: int
    """Marks the end of a document within a block: the tokenizer's separator, else its end of text."""

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> Framing:
        """Read from encoded texts. Raises ConfigError for a slow tokenizer, or one without separator or
        padding token."""
        with unlimited(backend_of(tokenizer)) as backend:
            text = backend.encode("a")
        if 0 not in text.sequence_ids:
            raise ConfigError(f"{name_of(tokenizer)} has no token for 'a': give a tokenizer of this language")
        separator = tokenizer.sep_token_id if tokenizer.sep_token_id is not None else tokenizer.eos_token_id
        if separator is None:
            raise ConfigError(f"{name_of(tokenizer)} marks no end of a text: set tokenizer.sep_token")
        begin = text.sequence_ids.index(0)
        end = len(text.ids) - text.sequence_ids[::-1].index(0)
        pairs = probe(tokenizer, segments=True)
        return cls(tuple(text.ids[:begin]), tuple(text.ids[end:]), pairs, separator)

    def specials(self, unit: Unit) -> int:
        """How many special tokens stand around a block."""
        return self.pairs.specials if unit == "sentences" else len(self.before) + len(self.after)

    def single(self, contents: Iterable[ArrayLike]) -> Padded:
        """A row for each text: ``[CLS] content [SEP]``, if the tokenizer is BERT's."""
        return self._padded([[(self.before, 0), (content, 0), (self.after, 0)] for content in contents])

    def pair(self, pairs: Iterable[tuple[ArrayLike, ArrayLike]]) -> Padded:
        """A row for each pair: ``[CLS] first [SEP] second [SEP]``, if the tokenizer is BERT's."""
        template = self.pairs

        def parts(tokens: Sequence[Special]) -> list[_Part]:
            return [((token.id,), token.segment) for token in tokens]

        before, between, after = map(parts, (template.before, template.between, template.after))
        return self._padded(
            [
                [
                    *before,
                    (first, template.question_segment),
                    *between,
                    (second, template.context_segment),
                    *after,
                ]
                for first, second in pairs
            ]
        )

    def _padded(self, rows: Sequence[Sequence[_Part]]) -> Padded:
        lengths = [sum(np.size(ids) for ids, _ in row) for row in rows]
        shape = len(rows), max(lengths, default=0)
        ids, segments = np.full(shape, self.pairs.pad, np.int64), np.zeros(shape, np.int64)
        for number, row in enumerate(rows):
            at = 0
            for values, segment in row:
                place = slice(at, at := at + np.size(values))
                ids[number, place], segments[number, place] = values, segment
        return Padded(ids, np.arange(shape[1]) < np.array(lengths, np.int64)[:, None], segments)


# Blocks ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Blocks:
    """The N blocks of a corpus; a data-loading worker maps their file again."""

    framing: Framing
    unit: Unit
    max_length: int
    data: Any = field(repr=False)
    """``datasets.Dataset`` of a row per block, as ``_cut`` makes them."""

    def __len__(self) -> int:
        return len(self.data)

    def column(self, name: str) -> pa.ChunkedArray:
        return self.data.data.column(name)

    @cached_property
    def lengths(self) -> Longs:
        """(N,) tokens of each block with the special tokens that its unit leaves room for."""
        return self.column("length").to_numpy() + self.framing.specials(self.unit)

    @cached_property
    def documents(self) -> int:
        """How many documents the blocks hold."""
        return int(self.column("begun").to_numpy().sum())

    @cached_property
    def text_bytes(self) -> int:
        """UTF-8 bytes of the text of all blocks, which are those of the corpus; for bits per byte."""
        return int(self.column("bytes").to_numpy().sum())

    def content(self, row: int) -> Longs:
        """(n,) token ids of a block, without special tokens around it."""
        return self._list("ids", row).astype(np.int64)

    def sentence_starts(self, row: int) -> Longs:
        """Places within ``content(row)`` where sentences begin, without 0: where a block can be divided."""
        return self._list("sentences", row)

    def document(self, row: int) -> int:
        """Number of the document that the first token of a block belongs to."""
        return self.column("document")[row].as_py()

    def _list(self, name: str, row: int) -> Longs:
        return self.column(name)[row].values.to_numpy()


def pack(
    corpus: Corpus,
    tokenizer: PreTrainedTokenizerBase,
    cache_dir: str | os.PathLike[str] | None = None,
    *,
    max_length: int,
    unit: Unit = "tokens",
) -> Blocks:
    """Blocks of ``corpus``, built in constant memory or read back from ``cache_dir``.

    Without ``cache_dir``, or where it cannot be written, the file is a temporary one that is removed with the
    blocks. Raises DataError for a corpus without text, ConfigError for a ``max_length`` that leaves no room
    beside special tokens and for a tokenizer without separator or padding token.
    """
    framing = Framing.of(tokenizer)
    specials = framing.specials(unit)
    if max_length <= specials:
        raise ConfigError(
            f"a block of {max_length} tokens has no room beside {specials} special tokens;"
            f" raise its length to {specials + 1} or more"
        )
    room = max_length - specials

    def rows() -> Iterator[dict[str, Any]]:
        with unlimited(backend_of(tokenizer)) as backend:
            yield from _cut(_tokenized(corpus, backend), framing.separator, room, unit)

    key = {
        "corpus": corpus.fingerprint,
        "tokenizer": tokenizer_hash(tokenizer),
        "tokenizers": tokenizers.__version__,
        "separator": framing.separator,
        "room": room,
        "unit": unit,
        "packing": PACKING_VERSION,
    }
    ids = "uint16" if len(tokenizer) <= 1 << 16 else "int32"
    if cache_dir is not None:
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
        try:
            return Blocks(framing, unit, max_length, _stored(Path(cache_dir), digest, ids, rows))
        except OSError as error:
            log.warning("blocks are not cached: %s", error)
    folder = tempfile.TemporaryDirectory(prefix="qa-arch-blocks-")
    blocks = Blocks(framing, unit, max_length, _stored(Path(folder.name), "blocks", ids, rows))
    weakref.finalize(blocks, folder.cleanup)
    return blocks


def _stored(folder: Path, digest: str, ids: str, rows: Callable[[], Iterator[dict[str, Any]]]) -> Any:
    """The ``datasets.Dataset`` of that digest in ``folder``: read from there, or made of ``rows``; a damaged
    one is made again. Raises OSError where nothing can be written."""
    from datasets import Dataset, Features, List, Value, disable_progress_bars
    from datasets.exceptions import DatasetGenerationError

    features = {name: Value("int64") for name in ("length", "document", "begun", "bytes")}
    features |= {"ids": List(Value(ids)), "sentences": List(Value("int64"))}
    place: dict[str, Any] = {"cache_dir": str(folder), "fingerprint": digest}
    disable_progress_bars()
    try:
        return Dataset.from_generator(rows, Features(features), **place)
    except pa.ArrowInvalid as error:
        log.warning("blocks in %s are damaged (%s): packing again", folder, error)
        shutil.rmtree(folder / "generator" / f"default-fingerprint={digest}")
        return Dataset.from_generator(rows, Features(features), **place)
    except DatasetGenerationError as error:
        raise (error.__cause__ or error) from None  # of the corpus, which the library wraps


@dataclass(frozen=True, slots=True, eq=False)
class _Document:
    """A document with its tokens, of which there is at least one."""

    text: str
    ids: Longs
    start: Longs
    """First character of each token."""
    sentences: Longs
    """Token at which each sentence begins."""

    def bytes_between(self, begin: int, end: int) -> int:
        """UTF-8 bytes of the text from one token to another; behind the last token is the rest."""
        bounds = [int(self.start[at]) if at < len(self.ids) else len(self.text) for at in (begin, end)]
        return len(self.text[bounds[0] if begin else 0 : bounds[1]].encode())


def _tokenized(corpus: Corpus, backend: Tokenizer) -> Iterator[_Document]:
    to_pieces = tokenize_fn(backend)
    for number, texts in enumerate(_chunks(corpus.documents()), 1):
        pieces = to_pieces(texts)
        if number % RENEWAL == 0:
            to_pieces = tokenize_fn(backend)  # its cache has grown with the text
        bounds = np.concatenate([[0], np.cumsum(pieces.count)])
        for text, (first, last) in zip(texts, pairwise(bounds.tolist()), strict=True):
            if first < last:
                places = slice(first, last)
                starts = _sentence_starts(text, pieces.end[places])
                yield _Document(text, pieces.ids[places], pieces.start[places], starts)


def _chunks(documents: Iterable[str]) -> Iterator[list[str]]:
    """Lists of documents of ``CHUNK`` characters together, or just over."""
    chunk: list[str] = []
    size = 0
    for document in documents:
        chunk.append(document)
        size += len(document)
        if size >= CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _sentence_starts(text: str, end: Longs) -> Longs:
    """First token of each sentence; ``end``: end of each token in the text, exclusive."""
    characters = [begin for begin, _ in sentence_spans(text)]
    # Some normalizers give tokens without width, whose ends may lie before those of earlier tokens.
    tokens = np.searchsorted(np.maximum.accumulate(end), characters, side="right")
    return np.unique(np.append(tokens[tokens < len(end)], 0))


def _cut(documents: Iterable[_Document], separator: int, room: int, unit: Unit) -> Iterator[dict[str, Any]]:
    """The rows of ``Blocks``, of at most ``room`` tokens each. Raises DataError without any.

    ``sentences`` are the places in ``ids`` where one begins, without 0; ``document`` is the number of that of
    the first token, ``begun`` how many begin in the block, and ``bytes`` are those of its text.
    """
    row: dict[str, Any] | None = None
    number = -1
    for number, document in enumerate(documents):
        ids = document.ids if unit == "sentences" else np.append(document.ids, separator)
        filled = row["length"] if row else 0
        ends = (
            _whole_sentences([*document.sentences.tolist(), len(ids)], room)
            if unit == "sentences"
            else [*range(room - filled, len(ids), room), len(ids)]
        )
        for begin, end in pairwise((0, *ends)):
            if row is None:
                row = {"ids": [], "sentences": [], "length": 0, "document": number, "begun": 0, "bytes": 0}
            sentences = document.sentences[(begin <= document.sentences) & (document.sentences < end)]
            row["ids"].append(ids[begin:end])
            row["sentences"] += [at for at in (sentences - begin + row["length"]).tolist() if at]
            row["length"] += end - begin
            row["begun"] += not begin
            row["bytes"] += document.bytes_between(begin, end)
            if row["length"] == room or unit == "sentences":
                yield row | {"ids": np.concatenate(row["ids"])}
                row = None
    if number < 0:
        raise DataError("the corpus has no text that the tokenizer knows; name another corpus")
    if row:
        yield row | {"ids": np.concatenate(row["ids"])}


def _whole_sentences(bounds: Sequence[int], room: int) -> list[int]:
    """Ends of blocks that hold as many of the sentences ``[bounds[i], bounds[i + 1])`` as fit."""
    ends, begin = [], 0
    for start, end in pairwise(bounds):
        if end - begin > room and start > begin:
            ends.append(begin := start)
        while end - begin > room:
            ends.append(begin := begin + room)
    return [*ends, bounds[-1]]
