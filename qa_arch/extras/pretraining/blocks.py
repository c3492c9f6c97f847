"""Corpus -> blocks of at most ``max_length`` tokens, memory-mapped from the feature cache -> batches.

Blocks for masked and causal language modelling are full and cross document boundaries, which the tokenizer's
separator marks (FULL-SENTENCES of Liu et al. 2019, section 4.2). Blocks for next-sentence and sentence-order
prediction and for denoising (``pairs``) hold whole sentences of a single document (DOC-SENTENCES), with room
for the special tokens of a pair; a sentence longer than a block is cut. A block of a single token, which has
no two parts, is left out of the blocks for prediction. ``datasets`` stores them without special tokens.

Masked language modelling hides 15% of the tokens of a block, of which 80% are masked, 10% replaced and 10%
left unchanged (Devlin et al. 2019, section 3.1). Tokens are drawn one by one or by whole words. Denoising
has the noises of ``noised``. The draw depends on (seed, epoch, row) alone: it changes every epoch (Liu et al.
2019, section 4.1) and is the same in every batch, process or worker that reads the block, so a resumed run
continues exactly. For validation it depends on the row alone: all epochs, seeds and processes score the same
predictions. (The collator of
transformers draws each token independently: the share hidden varies, and the draw depends on the batch.)

Axes: ``B`` blocks, ``T`` tokens, ``P`` predicted tokens, ``V`` vocabulary of the encoder.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tokenizers
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from qa_arch.data.sentences import sentence_spans
from qa_arch.errors import ConfigError, DataError
from qa_arch.extras.pretraining.corpus import Corpus
from qa_arch.extras.pretraining.denoising import noised
from qa_arch.extras.pretraining.manifest import Pretraining
from qa_arch.extras.pretraining.models import LanguageBatch
from qa_arch.features.cache import tokenizer_hash
from qa_arch.features.windows import Special, Template, probe
from qa_arch.features.words import Bools, Longs, backend_of, name_of, tokenize_fn, unlimited

PACKING_VERSION = 4
"""Part of every cache key; raise it when the same inputs give different blocks."""
CHUNK = 1024
"""Documents tokenised together: enough to occupy the tokenizer's threads, few enough to fit in memory."""
FIXED = 0x5EED
"""Replaces seed and epoch in the draws of validation, which are the same in every run."""

_Row = dict[str, Any]
"""A block: ``ids``; ``begun``, the number of documents that begin in it, and their UTF-8 ``bytes``; for pairs
also ``sentences``, the positions in ``ids`` where one begins, except 0, and the index of its ``document``."""

Objective = Literal["mlm", "nsp", "sop", "causal", "denoising"]
"""``mlm`` hides tokens; ``nsp`` and ``sop`` do so in pairs, half of them false; ``causal`` hides none;
``denoising`` hides them from the encoder, and predicts all."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class LanguageTable:
    """The N blocks of a corpus and what batching needs; data-loading workers memory-map them again."""

    data: Any = field(repr=False)
    """``datasets.Dataset``, one row per block."""
    template: Template
    """Special tokens around a pair; the outer ones also enclose a single text."""
    pairs: bool
    max_length: int
    mask_token: int
    special: Bools
    """(V,) True on special tokens, which are never hidden or drawn as replacements."""
    begins_word: Bools
    """(V,) True on pieces that begin a word."""
    protocol: str
    """Identifies the objective and whatever else its scores depend on, apart from text and model."""

    def __len__(self) -> int:
        return len(self.data)

    def column(self, name: str) -> pa.ChunkedArray:
        return self.data.data.column(name)

    @cached_property
    def lengths(self) -> Longs:
        """(N,) tokens per block, special tokens included."""
        return pc.list_value_length(self.column("ids")).to_numpy() + _specials(self.template, self.pairs)

    @cached_property
    def documents(self) -> int:
        """Number of documents in the blocks."""
        return int(self.column("begun").to_numpy().sum())

    @cached_property
    def text_bytes(self) -> int:
        """UTF-8 bytes of the documents, for bits per byte."""
        return int(self.column("bytes").to_numpy().sum())

    @cached_property
    def tokens(self) -> int:
        """Number of tokens, special tokens excluded."""
        chunks = self.column("ids").chunks
        return sum(int((~self.special[chunk.flatten().to_numpy()]).sum()) for chunk in chunks)

    @cached_property
    def replacements(self) -> Longs:
        """Ids that may replace a token: all but special ones."""
        return np.flatnonzero(~self.special)

    def content(self, row: int) -> Longs:
        """(n,) token ids of a block, without the special tokens around it."""
        return self.column("ids")[row].values.to_numpy().astype(np.int64)

    def sentence_starts(self, row: int) -> Longs:
        """Positions in ``content(row)`` where sentences begin, except 0, for splitting it into a pair."""
        return self.column("sentences")[row].values.to_numpy()

    def document(self, row: int) -> int:
        """Index of the document that a block of a pair comes from."""
        return self.column("document")[row].as_py()


def pack(
    corpus: Corpus,
    tokenizer: PreTrainedTokenizerBase,
    cache_dir: str | os.PathLike[str] | None = None,
    *,
    max_length: int,
    vocab_size: int,
    pairs: bool = False,
    shortest: int = 1,
    segments: bool = True,
    protocol: str = "",
) -> LanguageTable:
    """Pack ``corpus`` into blocks in constant memory, or read them back from ``cache_dir``.

    Without a cache folder, or if it cannot be written, the blocks are held in memory.

    ``vocab_size`` is the number of token embeddings of the encoder; ``segments``, whether it has segment ids.
    Blocks for ``pairs`` of fewer than ``shortest`` tokens are left out. Raises DataError for a corpus without
    text, ConfigError for a ``max_length`` that leaves no room for text and for a tokenizer without separator,
    padding or mask token.
    """
    template, separator = probe(tokenizer, segments=segments), _separator(tokenizer)
    room = max_length - _specials(template, pairs)
    if room < shortest:
        text = "text" if shortest == 1 else "two texts"
        raise ConfigError(
            f"features.max_length: a block of {max_length} tokens has no room for {text} besides"
            f" {max_length - room} special tokens; raise it"
        )
    special = np.ones(vocab_size, bool)  # including embeddings beyond the tokenizer's vocabulary
    special[: len(tokenizer)] = False
    special[tokenizer.all_special_ids] = True
    begins_word = np.zeros(vocab_size, bool)
    begins_word[: len(tokenizer)] = _begin_words(tokenizer)
    key = {
        "corpus": corpus.fingerprint,
        "tokenizer": tokenizer_hash(tokenizer),
        "tokenizers": tokenizers.__version__,
        "separator": separator,
        "room": room,
        "pairs": pairs,
        "shortest": shortest,
        "packing": PACKING_VERSION,
    }
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]

    def rows() -> Iterator[_Row]:
        with unlimited(backend_of(tokenizer)) as backend:
            documents = _tokenized(corpus, backend, pairs)
            if pairs:
                blocks = _sentence_blocks(documents, room, shortest)
            else:
                blocks = _full_blocks(documents, room, separator)
            known = False
            for block in blocks:
                known = known or not special[block["ids"]].all()
                yield block
        if not known:
            raise DataError(f"{corpus.source}: has no text that the tokenizer knows; name another corpus")

    # Most vocabularies fit into two bytes per token.
    columns = {"ids": "uint16" if len(tokenizer) <= 1 << 16 else "int32", "begun": "int64", "bytes": "int64"}
    columns |= {"sentences": "int64", "document": "int64"} if pairs else {}
    data = _read_or_build(cache_dir, digest, columns, rows)
    mask = tokenizer.mask_token_id
    return LanguageTable(data, template, pairs, max_length, mask, special, begins_word, protocol)


def _separator(tokenizer: PreTrainedTokenizerBase) -> int:
    """Token between documents; ConfigError for a tokenizer without, or without a mask token."""
    separator = tokenizer.sep_token_id if tokenizer.sep_token_id is not None else tokenizer.eos_token_id
    if separator is None or tokenizer.mask_token_id is None:
        missing = "mask token" if separator is not None else "separator"
        raise ConfigError(
            f"{name_of(tokenizer)} has no {missing}, which pre-training needs; choose an encoder like BERT,"
            " or a tokenizer from qa-arch pretrain tokenizer"
        )
    return separator


def _begin_words(tokenizer: PreTrainedTokenizerBase) -> list[bool]:
    """Whether each piece of the vocabulary begins a word: in WordPiece, one without the continuation prefix;
    in byte-level BPE and Unigram, one with a space marker; without either convention, every piece."""
    pieces = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    if prefix := getattr(backend_of(tokenizer).model, "continuing_subword_prefix", None):
        return [not piece.startswith(prefix) for piece in pieces]
    marked = [piece.startswith(("Ġ", "▁")) for piece in pieces]
    return marked if any(marked) else [True] * len(pieces)


def _specials(template: Template, pairs: bool) -> int:
    """Number of special tokens around a block."""
    return template.specials if pairs else len(template.before) + len(template.after)


def _read_or_build(
    cache_dir: Any, digest: str, columns: Mapping[str, str], rows: Callable[[], Iterator[_Row]]
) -> Any:
    """The ``datasets.Dataset`` cached under ``digest``, built from ``rows`` if missing or damaged."""
    from datasets import Dataset, Features, List, Value, disable_progress_bars
    from datasets.exceptions import DatasetGenerationError

    lists = ("ids", "sentences")
    features = Features(
        {name: List(Value(kind)) if name in lists else Value(kind) for name, kind in columns.items()}
    )
    if cache_dir is not None:
        place: dict[str, Any] = {"cache_dir": os.fspath(cache_dir), "fingerprint": digest}
        disable_progress_bars()
        try:
            return Dataset.from_generator(rows, features, **place)
        except pa.ArrowInvalid as error:
            log.warning("blocks in %s are damaged (%s): packing again", cache_dir, error)
            shutil.rmtree(Path(cache_dir) / "generator" / f"default-fingerprint={digest}")  # datasets' layout
            return Dataset.from_generator(rows, features, **place)
        except DatasetGenerationError as error:
            raise (error.__cause__ or error) from None  # datasets wraps errors from the corpus
        except OSError as error:
            log.warning("blocks are not cached: %s", error)
    return Dataset.from_list(list(rows()), features)


_Document = tuple[str, Longs, Longs]
"""Text, its token ids, and the index of the first token of each sentence."""


def _tokenized(corpus: Corpus, backend: Tokenizer, sentences: bool) -> Iterator[_Document]:
    """Documents with at least one token. Sentences are split on request."""
    stream = corpus.documents()
    while texts := list(islice(stream, CHUNK)):
        pieces = tokenize_fn(backend)(texts)
        bounds = np.concatenate([[0], np.cumsum(pieces.count)])
        for text, (first, last) in zip(texts, pairwise(bounds.tolist()), strict=True):
            if first < last:
                starts = _sentence_starts(text, pieces.end[first:last]) if sentences else np.array([0])
                yield text, pieces.ids[first:last], starts


def _sentence_starts(text: str, end: Longs) -> Longs:
    """Index of the first token of each sentence; ``end`` (n,): exclusive end of each token in the text."""
    characters = [begin for begin, _ in sentence_spans(text)]
    # Some normalizers produce zero-width tokens, which may end before earlier tokens do.
    tokens = np.searchsorted(np.maximum.accumulate(end), characters, side="right")
    return np.unique(np.append(tokens[tokens < len(end)], 0))  # sentences may share a token


def _full_blocks(documents: Iterable[_Document], room: int, separator: int) -> Iterator[_Row]:
    """Blocks of ``room`` tokens; the last one may be shorter."""
    pending, begun, size = np.empty(0, np.int64), 0, 0
    for text, ids, _ in documents:
        pending = np.concatenate([pending, ids, [separator]])
        begun, size = begun + 1, size + len(text.encode())
        while len(pending) >= room:
            yield {"ids": pending[:room], "begun": begun, "bytes": size}
            pending, begun, size = pending[room:], 0, 0
    if len(pending):
        yield {"ids": pending, "begun": begun, "bytes": size}


def _sentence_blocks(documents: Iterable[_Document], room: int, shortest: int) -> Iterator[_Row]:
    """Blocks holding as many whole sentences of a document as fit, without those of too few tokens."""
    for number, (text, ids, starts) in enumerate(documents):
        ends = _whole_sentences([*starts.tolist(), len(ids)], room)
        blocks = [(begin, end) for begin, end in pairwise((0, *ends)) if end - begin >= shortest]
        for place, (begin, end) in enumerate(blocks):
            yield {
                "ids": ids[begin:end],
                "sentences": starts[(begin < starts) & (starts < end)] - begin,
                "document": number,
                "begun": int(place == 0),
                "bytes": 0 if place else len(text.encode()),
            }


def _whole_sentences(bounds: Sequence[int], room: int) -> list[int]:
    """Ends of the blocks. Sentence i is ``[bounds[i], bounds[i + 1])``; one longer than ``room`` is cut."""
    ends, begin = [], 0
    for start, end in pairwise(bounds):
        if end - begin > room and start > begin:
            ends.append(begin := start)
        while end - begin > room:
            ends.append(begin := begin + room)
    return [*ends, bounds[-1]]


# Batches --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LanguageCollator:
    """Collates rows of a table, or with a ``seed`` (epoch, rows). A padding row is ``-1 - row``."""

    table: LanguageTable
    noise: Any
    """``Denoising`` for denoising, ``Pretraining`` for the others."""
    seed: int | None = None
    """None: the fixed draws of validation."""
    objective: Objective = "mlm"

    @property
    def lengths(self) -> Longs:
        """(N,) tokens per block, special tokens included."""
        return self.table.lengths

    def __call__(self, rows: Any) -> LanguageBatch:
        epoch, rows = (0, rows) if self.seed is None else rows
        index = np.asarray(rows, np.int64)
        numbers = np.where(index < 0, -1 - index, index)
        shared: dict[str, Any] = {
            "index": torch.from_numpy(numbers),
            "weight": torch.from_numpy((index >= 0).astype(np.float32)),
        }
        # A generator for each row: what is hidden depends neither on the batch nor on the worker.
        draws = [np.random.default_rng(self._entropy(epoch, row)) for row in numbers.tolist()]
        if self.objective in ("causal", "denoising"):
            contents = [self.table.content(row) for row in numbers.tolist()]
            inputs = self._framed(contents)
            # Each token is predicted from those before it: inputs end a token early, targets begin one later.
            shared |= {"targets": inputs["ids"][:, 1:], "counted": inputs["mask"][:, 1:]}
            before: dict[str, Any] = {
                name: None if value is None else value[:, :-1] for name, value in inputs.items()
            }
            if self.objective == "causal":
                return LanguageBatch(**shared, **before)
            return LanguageBatch(**shared, **self._noisy(contents, draws), prefix=before["ids"])
        ids, segments, positions, targets, follows = zip(
            *map(self._masked_row, numbers.tolist(), draws), strict=True
        )
        return LanguageBatch(
            **shared,
            **self._inputs(ids, segments),
            targets=_padded(targets),
            counted=_padded([np.ones(len(row), bool) for row in positions]),
            positions=_padded(positions),
            follows=None if self.objective == "mlm" else torch.tensor(follows),
        )

    def _entropy(self, epoch: int, row: int) -> tuple[int, ...]:
        return (FIXED, row) if self.seed is None else (self.seed, epoch, row)

    def _framed(self, contents: Sequence[Longs]) -> dict[str, Any]:
        """The encoder's inputs for single texts."""
        ids, segments = zip(*(framed_row(self.table.template, content) for content in contents), strict=True)
        return self._inputs(ids, segments)

    def _noisy(self, contents: Sequence[Longs], draws: Sequence[np.random.Generator]) -> dict[str, Any]:
        """The encoder's inputs with noise, and which of the targets, all tokens but the first, it hides."""
        table, start = self.table, len(self.table.template.before)
        rows = [noised(*pair, table.mask_token, self.noise) for pair in zip(contents, draws, strict=True)]
        hidden = [np.pad(of_row, (start - 1, len(table.template.after))) for _, of_row in rows]
        return {**self._framed([ids for ids, _ in rows]), "noised": _padded(hidden)}

    def _inputs(self, ids: Sequence[Longs], segments: Sequence[Longs]) -> dict[str, Any]:
        """The encoder's inputs."""
        template = self.table.template
        return {
            "ids": _padded(ids, template.pad),
            "mask": _padded([np.ones(len(row), bool) for row in ids]),
            "segments": _padded(segments) if template.segments else None,
        }

    def _masked_row(self, row: int, draw: np.random.Generator) -> tuple[Longs, Longs, Longs, Longs, bool]:
        """(ids with tokens hidden, segments, hidden positions, their original ids, second part follows)."""
        if self.objective == "mlm":
            first, second, follows = self.table.content(row), None, True
        else:
            first, second, follows = self._pair(row, draw)
        ids, segments = framed_row(self.table.template, first, second)
        positions = hidden_positions(ids, self.table, self.noise, draw)
        hidden = hide(ids, positions, self.table, self.noise, draw)
        return hidden, segments, positions, ids[positions], follows

    def _pair(self, row: int, draw: np.random.Generator) -> tuple[Longs, Longs, bool]:
        """(first, second, whether the second follows the first): true for half of the pairs."""
        table = self.table
        content, starts = table.content(row), table.sentence_starts(row)
        # Cut at the start of a sentence; cut a single sentence in the middle.
        cut = int(draw.choice(starts)) if len(starts) else len(content) // 2
        first, second = content[:cut], content[cut:]
        if draw.random() < 0.5:
            return first, second, True
        if self.objective == "sop":
            return second, first, False
        room = table.max_length - table.template.specials - cut
        return first, self._from_other_document(row, room, draw), False

    def _from_other_document(self, row: int, room: int, draw: np.random.Generator) -> Longs:
        """Whole sentences of another document, at most ``room`` tokens; a first sentence too long is cut."""
        table = self.table
        other = row
        # Ends, since a corpus of one document is refused (``table_of``).
        while table.document(other) == table.document(row):
            other = int(draw.integers(len(table)))
        content = table.content(other)
        bounds = np.r_[0, table.sentence_starts(other), len(content)]
        begin = int(draw.choice(bounds[:-1]))
        ends = bounds[(bounds > begin) & (bounds <= begin + room)]
        return content[begin : int(ends[-1]) if len(ends) else begin + room]


def framed_row(template: Template, first: Longs, second: Longs | None = None) -> tuple[Longs, Longs]:
    """(ids, segments) of a text with its special tokens, in BERT ``[CLS] first [SEP]``, or of a pair."""
    if second is None:
        specials = [[token.id for token in part] for part in (template.before, template.after)]
        ids = np.concatenate([specials[0], first, specials[1]]).astype(np.int64)
        return ids, np.zeros_like(ids)

    def special(tokens: Sequence[Special]) -> Longs:
        return np.array(tokens, np.int64).reshape(-1, 2)

    def text(ids: Longs, segment: int) -> Longs:
        return np.column_stack([ids, np.full_like(ids, segment)])

    parts = [  # rows of (id, segment)
        special(template.before),
        text(first, template.question_segment),
        special(template.between),
        text(second, template.context_segment),
        special(template.after),
    ]
    ids, segments = np.concatenate(parts).T
    return ids, segments


def _padded(rows: Sequence[np.ndarray], value: int = 0) -> Tensor:
    return pad_sequence([torch.from_numpy(row) for row in rows], batch_first=True, padding_value=value)


def hidden_positions(
    ids: Longs, table: LanguageTable, settings: Pretraining, draw: np.random.Generator
) -> Longs:
    """Sorted positions in ``ids`` (T,) to predict: ``mask_share`` of the non-special tokens, at least one.

    With ``whole_words`` all pieces of a word are hidden, or none. Words are drawn until the share is reached,
    skipping any but the first that would exceed it.
    """
    candidates = np.flatnonzero(~table.special[ids])
    count = max(1, round(settings.mask_share * len(candidates))) if len(candidates) else 0
    if not settings.whole_words or not count:
        return np.sort(draw.choice(candidates, count, replace=False))
    begins = table.begins_word[ids[candidates]]
    begins |= np.diff(candidates, prepend=-2) > 1  # a special token ends a word
    words = np.split(candidates, np.flatnonzero(begins)[1:])  # the first word begins at 0
    chosen: list[int] = []
    for number in draw.permutation(len(words)):
        if not chosen or len(chosen) + len(words[number]) <= count:
            chosen += words[number].tolist()
        if len(chosen) >= count:
            break
    return np.sort(np.array(chosen, np.int64))


def hide(
    ids: Longs, positions: Longs, table: LanguageTable, settings: Pretraining, draw: np.random.Generator
) -> Longs:
    """A copy of ``ids`` with the tokens at ``positions`` hidden: masked with probability ``masked``, replaced
    by a random token of the vocabulary with ``replaced``, otherwise unchanged."""
    chance = draw.random(len(positions))
    random_tokens = draw.choice(table.replacements, len(positions))
    masked = chance < settings.masked
    replaced = ~masked & (chance < settings.masked + settings.replaced)
    hidden = ids.copy()
    hidden[positions[masked]] = table.mask_token
    hidden[positions[replaced]] = random_tokens[replaced]
    return hidden
