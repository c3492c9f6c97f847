"""Packing: the tokens of a corpus as blocks of at most ``max_length``, memory-mapped from the feature cache.

Two units (Liu et al. 2019, section 4.2):

- ``tokens``: FULL-SENTENCES. Blocks are full and run on over the ends of documents, each of which is marked
  by the tokenizer's separator; for masked and causal language modelling and for denoising.
- ``sentences``: DOC-SENTENCES. A block holds whole sentences of a single document, with room for the special
  tokens of a pair; for next-sentence and sentence-order prediction. A sentence longer than a block is cut.

Blocks are stored without the special tokens around them; ``framing.single`` and ``framing.pair`` add these.
"""

from __future__ import annotations

import logging
import os
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from qa_arch.config.files import write_with
from qa_arch.data.selection_sets import sentence_spans
from qa_arch.errors import ConfigError, DataError, QaArchError, UnavailableError
from qa_arch.features.cache import cache_file, tokenizer_hash
from qa_arch.features.pieces import tokenize_fn
from qa_arch.features.table import Longs
from qa_arch.features.template import backend_of, unlimited
from qa_arch.pretraining import column_store
from qa_arch.pretraining.corpus import Corpus
from qa_arch.pretraining.framing import Framing

PACKING_VERSION = 2
"""Part of every key; raised when the same inputs give other blocks."""
CHUNK = 1 << 18
"""Characters that are tokenised together: enough for the tokenizer's threads, few enough for the memory."""
RENEWAL = 64
"""Chunks after which the tokenizer's cache of words is begun again."""
_INDICES = ("starts", "sentences", "documents", "text_bytes")

Unit = Literal["tokens", "sentences"]
_Settings = tuple[Framing, Unit, int]

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Blocks:
    """The N blocks of a corpus. Axes: ``K`` tokens of the corpus, ``S`` sentences, ``D`` documents.

    The arrays are views of a mapped file, which another process (a data-loading worker) maps again.
    """

    path: Path
    framing: Framing
    unit: Unit
    max_length: int
    ids: NDArray[Any] = field(repr=False)
    """(K,) token ids of all documents, one after another: uint16, or int32 for a large vocabulary."""
    starts: Longs = field(repr=False)
    """(N + 1,) block i is ``ids[starts[i]:starts[i + 1]]``."""
    sentences: Longs = field(repr=False)
    """(S,) token at which each sentence begins."""
    documents: Longs = field(repr=False)
    """(D,) token at which each document begins."""
    text_bytes: Longs = field(repr=False)
    """(N,) UTF-8 bytes of text in each block, for bits per byte; they sum to those of the corpus."""

    def __len__(self) -> int:
        """Number of blocks."""
        return len(self.starts) - 1

    @property
    def lengths(self) -> Longs:
        """(N,) tokens of each block with the special tokens that its unit leaves room for."""
        return np.diff(self.starts) + _specials(self.framing, self.unit)

    def content(self, row: int) -> Longs:
        """(n,) token ids of a block, without special tokens around it."""
        return self.ids[self.starts[row] : self.starts[row + 1]].astype(np.int64)

    def sentence_starts(self, row: int) -> Longs:
        """Places within ``content(row)`` where sentences begin, without 0: where a block can be divided."""
        begin, end = self.starts[row], self.starts[row + 1]
        first, last = np.searchsorted(self.sentences, (begin + 1, end))
        return np.array(self.sentences[first:last]) - begin

    def document(self, row: int) -> int:
        """Number of the document that the first token of a block belongs to."""
        return int(np.searchsorted(self.documents, self.starts[row], side="right")) - 1

    def __reduce__(self) -> tuple[Any, ...]:
        return _read, (self.path, self.framing, self.unit, self.max_length)


def pack(
    corpus: Corpus,
    tokenizer: PreTrainedTokenizerBase,
    cache_dir: str | os.PathLike[str] | None = None,
    *,
    max_length: int,
    unit: Unit = "tokens",
) -> Blocks:
    """Blocks of ``corpus``, built in constant memory or read back from ``cache_dir``.

    Without ``cache_dir``, or where it cannot be written, the file is a temporary one that goes with the
    blocks. Raises DataError for a corpus without text, ConfigError for a ``max_length`` that leaves no room
    beside special tokens and for a tokenizer without separator or padding token.
    """
    framing = Framing.of(tokenizer)
    specials = _specials(framing, unit)
    if max_length <= specials:
        raise ConfigError(
            f"a block of {max_length} tokens has no room beside {specials} special tokens;"
            f" raise its length to {specials + 1} or more"
        )
    room = max_length - specials
    settings = framing, unit, max_length

    def build(path: Path) -> None:
        with unlimited(backend_of(tokenizer)) as backend:
            _write(path, _tokenized(corpus, backend), framing.separator, room, unit, len(tokenizer))

    if cache_dir is None:
        return _temporary(build, settings)
    key = {
        "corpus": corpus.fingerprint,
        "tokenizer": tokenizer_hash(tokenizer),
        "tokenizers": tokenizers.__version__,
        "separator": framing.separator,
        "room": room,
        "unit": unit,
        "packing": PACKING_VERSION,
    }
    return _cached(cache_file(cache_dir, key, ".safetensors"), build, settings)


def _cached(path: Path, build: Callable[[Path], None], settings: _Settings) -> Blocks:
    """Blocks in ``path``, which is written where it is not there or damaged."""
    if path.exists():
        try:
            return _read(path, *settings)
        except (OSError, ValueError, KeyError) as error:
            log.warning("%s is damaged (%s): packing again", path, error)
    try:
        return _read(write_with(path, build), *settings)
    except (ConfigError, DataError, UnavailableError):
        raise
    except QaArchError as error:
        log.warning("blocks are not cached: %s", error)
        return _temporary(build, settings)


def _specials(framing: Framing, unit: Unit) -> int:
    return framing.pairs.specials if unit == "sentences" else len(framing.before) + len(framing.after)


def _temporary(build: Callable[[Path], None], settings: _Settings) -> Blocks:
    """Blocks in a folder of their own that is removed with them."""
    folder = tempfile.TemporaryDirectory(prefix="qa-arch-blocks-")
    build(path := Path(folder.name) / "blocks.safetensors")
    blocks = _read(path, *settings)
    weakref.finalize(blocks, folder.cleanup)
    return blocks


def _read(path: Path, framing: Framing, unit: Unit, max_length: int) -> Blocks:
    columns = column_store.mapped(path)
    ids = columns.pop("ids")[: columns["starts"][-1]]  # without the zeros that align the next column
    return Blocks(path, framing, unit, max_length, ids, **columns)


@dataclass(frozen=True, slots=True, eq=False)
class _Document:
    """A document with its tokens, of which there is at least one."""

    text: str
    ids: Longs
    start: Longs
    """First character of each token."""
    sentences: Longs
    """Token at which each sentence begins."""

    def byte_counts(self, ends: Sequence[int]) -> list[int]:
        """UTF-8 bytes of the text up to the token ``ends[0]``, from there to ``ends[1]``, and so on, and of
        the rest."""
        characters = [int(self.start[end]) if end < len(self.ids) else len(self.text) for end in ends]
        parts = pairwise((0, *characters, len(self.text)))
        return [len(self.text[begin:end].encode()) for begin, end in parts]


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


def _write(
    path: Path, documents: Iterable[_Document], separator: int, room: int, unit: Unit, vocabulary: int
) -> None:
    """Write the blocks of ``documents``, of at most ``room`` tokens each. Raises DataError without any."""
    types = {"ids": "uint16" if vocabulary <= 1 << 16 else "int32", **dict.fromkeys(_INDICES, "int64")}
    total = filled = filled_bytes = 0  # tokens so far; of these in the block that is not full yet; its bytes
    with column_store.writing(path, types) as columns:
        columns.append("starts", [0])
        for document in documents:
            n = len(document.ids)
            columns.append("documents", [total])
            columns.append("sentences", total + document.sentences)
            columns.append("ids", document.ids)
            if unit == "tokens":
                columns.append("ids", [separator])
                n += 1
                ends = list(range(room - filled, n + 1, room))
            else:
                ends = _whole_sentences([*document.sentences.tolist(), n], room)
            *blocks, rest = document.byte_counts(ends)
            if blocks:
                columns.append("starts", total + np.array(ends))
                columns.append("text_bytes", [blocks[0] + filled_bytes, *blocks[1:]])
                filled, filled_bytes = n - ends[-1], rest
            else:
                filled, filled_bytes = filled + n, filled_bytes + rest
            total += n
        if not total:
            raise DataError("the corpus has no text that the tokenizer knows; name another corpus")
        if filled:
            columns.append("starts", [total])
            columns.append("text_bytes", [filled_bytes])


def _whole_sentences(bounds: Sequence[int], room: int) -> list[int]:
    """Ends of blocks that hold as many of the sentences ``[bounds[i], bounds[i + 1])`` as fit."""
    ends, begin = [], 0
    for start, end in pairwise(bounds):
        if end - begin > room and start > begin:
            ends.append(begin := start)
        while end - begin > room:
            ends.append(begin := begin + room)
    return [*ends, bounds[-1]]
