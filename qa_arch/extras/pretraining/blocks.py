"""Corpus -> blocks of at most ``max_length`` tokens, memory-mapped from the feature cache -> batches.

Blocks for masked and causal language modelling are full and run on over the ends of documents, each of which
is marked by the tokenizer's separator (FULL-SENTENCES of Liu et al. 2019, section 4.2). Blocks for
next-sentence and sentence-order prediction, ``pairs``, hold whole sentences of a single document
(DOC-SENTENCES), with room for the special tokens of a pair; a sentence longer than a block is cut. They are
stored by ``datasets`` without special tokens around them.

Masked language modelling hides 15% of the tokens of a block: 80% of them are masked, 10% replaced, 10% left
as they are (Devlin et al. 2019, section 3.1), one by one, by whole words, or in spans (Joshi et al. 2020,
section 3.1). What is hidden is drawn from (seed, epoch, row) alone: anew in each epoch (Liu et al. 2019,
section 4.1), and the same in every batch, process or worker that reads the block, so that a resumed run
continues exactly. For validation it is drawn from the row alone: all epochs, seeds and processes score the
same predictions. (The collator of transformers draws for each token of a batch by itself: its share varies,
and what is hidden depends on the batch.)

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

from qa_arch.config.schema import Pretraining
from qa_arch.data.sentences import sentence_spans
from qa_arch.errors import ConfigError, DataError
from qa_arch.extras.pretraining.corpus import Corpus
from qa_arch.extras.pretraining.models import LanguageBatch
from qa_arch.features.cache import tokenizer_hash
from qa_arch.features.windows import Special, Template, probe
from qa_arch.features.words import Bools, Longs, backend_of, name_of, tokenize_fn, unlimited

PACKING_VERSION = 4
"""Part of every key; raised when the same inputs give other blocks."""
CHUNK = 1024
"""Documents that are tokenised together: enough for the tokenizer's threads, few enough for the memory."""
FIXED = 0x5EED
"""In place of seed and epoch where the draw is the same for every run."""

_Row = dict[str, Any]
"""A block: ``ids``; ``begun``, how many documents begin in it, and ``bytes``, the UTF-8 bytes of these; for
pairs ``sentences``, the places in ``ids`` where one begins, without 0, and the number of its ``document``."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class LanguageTable:
    """The N blocks of a corpus, and how batches of them are made; a data-loading worker maps them again."""

    data: Any = field(repr=False)
    """``datasets.Dataset`` of a row a block."""
    template: Template
    """The special tokens around a pair; the first and the last of them also stand around a single text."""
    pairs: bool
    max_length: int
    mask_token: int
    special: Bools
    """(V,) True on special tokens, which are neither hidden nor drawn as replacements."""
    begins_word: Bools
    """(V,) True on the pieces that begin a word."""
    protocol: str
    """Names the objective and all that its scores depend on beside text and model."""

    def __len__(self) -> int:
        return len(self.data)

    def column(self, name: str) -> pa.ChunkedArray:
        return self.data.data.column(name)

    @cached_property
    def lengths(self) -> Longs:
        """(N,) tokens of each block with the special tokens around it."""
        return pc.list_value_length(self.column("ids")).to_numpy() + _specials(self.template, self.pairs)

    @cached_property
    def documents(self) -> int:
        """How many documents the blocks hold."""
        return int(self.column("begun").to_numpy().sum())

    @cached_property
    def text_bytes(self) -> int:
        """UTF-8 bytes of these documents; for bits per byte."""
        return int(self.column("bytes").to_numpy().sum())

    @cached_property
    def tokens(self) -> int:
        """Tokens of the text, special ones excluded."""
        parts = self.column("ids").chunks
        return sum(int((~self.special[part.flatten().to_numpy()]).sum()) for part in parts)

    @cached_property
    def words(self) -> Longs:
        """The ids that may replace a token: all that are not special."""
        return np.flatnonzero(~self.special)

    def content(self, row: int) -> Longs:
        """(n,) token ids of a block, without special tokens around it."""
        return self.column("ids")[row].values.to_numpy().astype(np.int64)

    def sentence_starts(self, row: int) -> Longs:
        """Places within ``content(row)`` where sentences begin, without 0: where a block can be
        divided; for pairs."""
        return self.column("sentences")[row].values.to_numpy()

    def document(self, row: int) -> int:
        """Number of the document that a block is of; for pairs."""
        return self.column("document")[row].as_py()


def pack(
    corpus: Corpus,
    tokenizer: PreTrainedTokenizerBase,
    cache_dir: str | os.PathLike[str] | None = None,
    *,
    max_length: int,
    vocab_size: int,
    pairs: bool = False,
    segments: bool = True,
    protocol: str = "",
) -> LanguageTable:
    """Blocks of ``corpus``, built in constant memory or read back from ``cache_dir``.

    Without one, or where it cannot be written, they are kept in memory.

    ``vocab_size`` and ``segments`` are the encoder's: its token embeddings, and whether it has segment ids.
    Raises DataError for a corpus without text, ConfigError for a ``max_length`` that leaves no room beside
    special tokens and for a tokenizer without separator, padding or mask token.
    """
    template = probe(tokenizer, segments=segments)
    separator = tokenizer.sep_token_id if tokenizer.sep_token_id is not None else tokenizer.eos_token_id
    if separator is None or tokenizer.mask_token_id is None:
        missing = "mask token" if separator is not None else "separator"
        raise ConfigError(
            f"{name_of(tokenizer)} has no {missing}, which pre-training needs; choose an encoder of BERT's"
            " kind, or a tokenizer of qa-arch pretrain tokenizer"
        )
    room = max_length - _specials(template, pairs)
    if room < 1:
        raise ConfigError(
            f"features.max_length: a block of {max_length} tokens has no room beside {max_length - room}"
            " special tokens; raise it"
        )
    special = np.ones(vocab_size, bool)  # embeddings beyond the vocabulary belong to no token
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
        "packing": PACKING_VERSION,
    }
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]

    def rows() -> Iterator[_Row]:
        with unlimited(backend_of(tokenizer)) as backend:
            texts = _tokenized(corpus, backend, pairs)
            yield from _sentence_blocks(texts, room) if pairs else _full_blocks(texts, room, separator)

    columns = {"ids": "uint16" if len(tokenizer) <= 1 << 16 else "int32", "begun": "int64", "bytes": "int64"}
    columns |= {"sentences": "int64", "document": "int64"} if pairs else {}
    data = _stored(cache_dir, digest, columns, rows)
    mask = tokenizer.mask_token_id
    return LanguageTable(data, template, pairs, max_length, mask, special, begins_word, protocol)


def _begin_words(tokenizer: PreTrainedTokenizerBase) -> list[bool]:
    """Whether each piece of the vocabulary begins a word: in WordPiece one without the prefix of continuing
    pieces, in byte-level BPE and Unigram one that is marked by a space; without such marks every piece."""
    pieces = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    if prefix := getattr(backend_of(tokenizer).model, "continuing_subword_prefix", None):
        return [not piece.startswith(prefix) for piece in pieces]
    marked = [piece.startswith(("Ġ", "▁")) for piece in pieces]
    return marked if any(marked) else [True] * len(pieces)


def _specials(template: Template, pairs: bool) -> int:
    """How many special tokens stand around a block."""
    return template.specials if pairs else len(template.before) + len(template.after)


def _stored(
    cache_dir: Any, digest: str, columns: Mapping[str, str], rows: Callable[[], Iterator[_Row]]
) -> Any:
    """The ``datasets.Dataset`` of that digest in ``cache_dir``, made of ``rows`` where it is missing or
    damaged."""
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
            shutil.rmtree(Path(cache_dir) / "generator" / f"default-fingerprint={digest}")
            return Dataset.from_generator(rows, features, **place)
        except DatasetGenerationError as error:
            raise (error.__cause__ or error) from None  # of the corpus, which the library wraps
        except OSError as error:
            log.warning("blocks are not cached: %s", error)
    return Dataset.from_list(list(rows()), features)


_Document = tuple[str, Longs, Longs]
"""A text, its token ids, and the tokens at which its sentences begin."""


def _tokenized(corpus: Corpus, backend: Tokenizer, sentences: bool) -> Iterator[_Document]:
    """The documents that have a token, DataError without any; sentences are found where they are wanted."""
    stream, known = corpus.documents(), False
    while texts := list(islice(stream, CHUNK)):
        pieces = tokenize_fn(backend)(texts)
        bounds = np.concatenate([[0], np.cumsum(pieces.count)])
        for text, (first, last) in zip(texts, pairwise(bounds.tolist()), strict=True):
            if first < last:
                known = True
                starts = _sentence_starts(text, pieces.end[first:last]) if sentences else np.array([0])
                yield text, pieces.ids[first:last], starts
    if not known:
        raise DataError(f"{corpus.source}: has no text that the tokenizer knows; name another corpus")


def _sentence_starts(text: str, end: Longs) -> Longs:
    """First token of each sentence; ``end``: end of each token in the text, exclusive."""
    characters = [begin for begin, _ in sentence_spans(text)]
    # Some normalizers give tokens without width, whose ends may lie before those of earlier tokens.
    tokens = np.searchsorted(np.maximum.accumulate(end), characters, side="right")
    return np.unique(np.append(tokens[tokens < len(end)], 0))


def _full_blocks(documents: Iterable[_Document], room: int, separator: int) -> Iterator[_Row]:
    """Blocks of ``room`` tokens; the last one may be shorter."""
    left, begun, size = np.empty(0, np.int64), 0, 0
    for text, ids, _ in documents:
        left = np.concatenate([left, ids, [separator]])
        begun, size = begun + 1, size + len(text.encode())
        while len(left) >= room:
            yield {"ids": left[:room], "begun": begun, "bytes": size}
            left, begun, size = left[room:], 0, 0
    if len(left):
        yield {"ids": left, "begun": begun, "bytes": size}


def _sentence_blocks(documents: Iterable[_Document], room: int) -> Iterator[_Row]:
    """Blocks of as many whole sentences of a document as fit."""
    for number, (text, ids, starts) in enumerate(documents):
        ends = _whole_sentences([*starts.tolist(), len(ids)], room)
        for begin, end in pairwise((0, *ends)):
            yield {
                "ids": ids[begin:end],
                "sentences": starts[(begin < starts) & (starts < end)] - begin,
                "document": number,
                "begun": int(begin == 0),
                "bytes": 0 if begin else len(text.encode()),
            }


def _whole_sentences(bounds: Sequence[int], room: int) -> list[int]:
    """Ends of blocks that hold as many of the sentences ``[bounds[i], bounds[i + 1])`` as fit."""
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
    """Rows of a table -> LanguageBatch; with a ``seed`` it takes (epoch, rows). A padding row is
    ``-1 - row``."""

    table: LanguageTable
    noise: Pretraining
    seed: int | None = None
    """None: the draw of validation."""
    objective: Literal["mlm", "nsp", "sop", "causal"] = "mlm"
    """``mlm`` hides tokens; ``nsp`` and ``sop`` hide them in pairs of which half are false; ``causal`` hides
    none."""
    spans: bool = False
    """Whether tokens are hidden in spans."""

    @property
    def lengths(self) -> Longs:
        """(rows,) tokens of each block with its special tokens."""
        return self.table.lengths

    def __call__(self, rows: Any) -> LanguageBatch:
        epoch, given = (0, rows) if self.seed is None else rows
        index = np.asarray(given, np.int64)
        numbers = np.where(index < 0, -1 - index, index)
        shared: dict[str, Any] = {
            "index": torch.from_numpy(numbers),
            "weight": torch.from_numpy((index >= 0).astype(np.float32)),
        }
        if self.objective == "causal":
            framed = [framed_row(self.table.template, self.table.content(row)) for row in numbers.tolist()]
            inputs = self._inputs([ids for ids, _ in framed], [segments for _, segments in framed])
            targets, counted = inputs["ids"][:, 1:], inputs["mask"][:, 1:]
            shared |= {name: None if value is None else value[:, :-1] for name, value in inputs.items()}
            return LanguageBatch(**shared, targets=targets, counted=counted)
        draws = [np.random.default_rng(self._entropy(epoch, row)) for row in numbers.tolist()]
        ids, segments, places, targets, follows = zip(
            *map(self._hidden, numbers.tolist(), draws), strict=True
        )
        return LanguageBatch(
            **shared,
            **self._inputs(ids, segments),
            targets=_padded(targets),
            counted=_padded([np.ones(len(own), bool) for own in places]),
            positions=_padded(places),
            follows=None if self.objective == "mlm" else torch.tensor(follows),
        )

    def _entropy(self, epoch: int, row: int) -> tuple[int, ...]:
        return (FIXED, row) if self.seed is None else (self.seed, epoch, row)

    def _inputs(self, ids: Sequence[Longs], segments: Sequence[Longs]) -> dict[str, Any]:
        """What the encoder reads."""
        template = self.table.template
        return {
            "ids": _padded(ids, template.pad),
            "mask": _padded([np.ones(len(row), bool) for row in ids]),
            "segments": _padded(segments) if template.segments else None,
        }

    def _hidden(self, row: int, draw: np.random.Generator) -> tuple[Longs, Longs, Longs, Longs, bool]:
        """Of a block: ids with tokens hidden, segments, the places of these, the tokens that they are, and
        whether its second part follows its first."""
        if self.objective == "mlm":
            first, second, follows = self.table.content(row), None, True
        else:
            first, second, follows = self._pair(row, draw)
        ids, segments = framed_row(self.table.template, first, second)
        places = hidden_places(ids, self.table, self.noise, draw, spans=self.spans)
        return hide(ids, places, self.table, self.noise, draw), segments, places, ids[places], follows

    def _pair(self, row: int, draw: np.random.Generator) -> tuple[Longs, Longs, bool]:
        """The two parts of a block and whether the second follows the first, which half of them do."""
        table = self.table
        content, starts = table.content(row), table.sentence_starts(row)
        # Cut before a sentence, or in the middle of a single one.
        cut = int(draw.choice(starts)) if len(starts) else max(1, len(content) // 2)
        first, second = content[:cut], content[cut:]
        if draw.random() < 0.5:
            return first, second, True
        if self.objective == "sop":
            return second, first, False
        return first, self._foreign(row, table.max_length - table.template.specials - cut, draw), False

    def _foreign(self, row: int, room: int, draw: np.random.Generator) -> Longs:
        """Sentences of another document, at most ``room`` tokens of them and at least one sentence's."""
        table = self.table
        other = row
        while table.document(other) == table.document(row):
            other = int(draw.integers(len(table)))
        content = table.content(other)
        bounds = np.r_[0, table.sentence_starts(other), len(content)]
        begin = int(draw.choice(bounds[:-1]))
        ends = bounds[(bounds > begin) & (bounds <= begin + room)]
        return content[begin : int(ends[-1]) if len(ends) else begin + room]


def framed_row(template: Template, first: Longs, second: Longs | None = None) -> tuple[Longs, Longs]:
    """(ids, segments) of a text, ``[CLS] first [SEP]`` if the tokenizer is BERT's, or of a pair."""
    if second is None:
        specials = [[token.id for token in part] for part in (template.before, template.after)]
        ids = np.concatenate([specials[0], first, specials[1]]).astype(np.int64)
        return ids, np.zeros_like(ids)

    def special(tokens: Sequence[Special]) -> Longs:
        return np.array(tokens, np.int64).reshape(-1, 2)

    def text(ids: Longs, segment: int) -> Longs:
        return np.column_stack([ids, np.full_like(ids, segment)])

    parts = [
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


def hidden_places(
    ids: Longs,
    table: LanguageTable,
    settings: Pretraining,
    draw: np.random.Generator,
    *,
    spans: bool = False,
) -> Longs:
    """Places of ``ids`` (T,) to predict, in order: ``mask_share`` of those that are not special, at least
    one.

    With ``whole_words`` all pieces of a word are hidden or none. With ``spans`` the text is divided at random
    into spans, whose lengths are geometric with a mean of ``span_length`` tokens (with ``whole_words``
    words). Words or spans are drawn until the share is reached; one that would exceed it is left out, unless
    it is the first.
    """
    open_ = np.flatnonzero(~table.special[ids])
    count = max(1, round(settings.mask_share * len(open_))) if len(open_) else 0
    if not (settings.whole_words or spans) or not count:
        return np.sort(draw.choice(open_, count, replace=False))
    begins = table.begins_word[ids[open_]] if settings.whole_words else np.ones(len(open_), bool)
    if spans:
        begins &= draw.random(len(open_)) < 1 / settings.span_length
    begins |= np.diff(open_, prepend=-2) > 1  # a special token ends a word or span
    units = np.split(open_, np.flatnonzero(begins)[1:])
    chosen: list[int] = []
    for number in draw.permutation(len(units)):
        if not chosen or len(chosen) + len(units[number]) <= count:
            chosen += units[number].tolist()
        if len(chosen) >= count:
            break
    return np.sort(np.array(chosen, np.int64))


def hide(
    ids: Longs, places: Longs, table: LanguageTable, settings: Pretraining, draw: np.random.Generator
) -> Longs:
    """A copy of ``ids`` with the tokens at ``places`` hidden: each masked with probability ``masked``,
    replaced by a random word of the vocabulary with ``replaced``, and otherwise left as it is."""
    chance = draw.random(len(places))
    random_words = draw.choice(table.words, len(places))
    masked = chance < settings.masked
    replaced = ~masked & (chance < settings.masked + settings.replaced)
    hidden = ids.copy()
    hidden[places[masked]] = table.mask_token
    hidden[places[replaced]] = random_words[replaced]
    return hidden
