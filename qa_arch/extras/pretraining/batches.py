"""Blocks of text -> batches of the pre-training objectives, and what these hide of a text.

- Masked language modelling hides 15% of the tokens: 80% of them are masked, 10% replaced, 10% left as they
  are (Devlin et al. 2019, section 3.1), drawn anew in each epoch (Liu et al. 2019, section 4.1).
- Span masking hides as many in spans (Joshi et al. 2020, section 3.1).

What is hidden in a block is drawn from (seed, epoch, row) alone: anew in each epoch, alike in
whatever batch, process or worker the block is read, and so alike after an interruption. For validation it is
drawn from the row alone, so that all epochs, seeds and processes score the same predictions. (The collator of
transformers draws for each token of a batch by itself: its share varies, and with the batch what is hidden.)

Axes: ``B`` blocks, ``T`` tokens, ``P`` predicted tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from qa_arch.config.schema import Pretraining
from qa_arch.errors import ConfigError
from qa_arch.extras.pretraining.blocks import Blocks, Padded
from qa_arch.extras.pretraining.models import LanguageBatch
from qa_arch.features.words import Bools, Longs, backend_of, name_of

FIXED = 0x5EED
"""In place of seed and epoch where the draw is the same for every run."""
_SPACES = ("Ġ", "▁")


# Noise ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """What noise needs to know of a tokenizer's vocabulary of ``V`` ids."""

    mask: int
    """Id of the mask token."""
    special: Bools
    """(V,) True on special tokens, which are neither hidden nor drawn as replacements."""
    begins_word: Bools
    """(V,) True on the pieces that begin a word."""
    words: Longs
    """The ids that may replace a token: all that are not special."""


def vocabulary_of(tokenizer: PreTrainedTokenizerBase, size: int) -> Vocabulary:
    """The vocabulary of ``tokenizer``, for an encoder with ``size`` token embeddings.

    Raises ConfigError for a tokenizer without a mask token.
    """
    if tokenizer.mask_token_id is None:
        raise ConfigError(
            f"{name_of(tokenizer)} has no mask token, and nothing can be hidden without one; choose an"
            " encoder of BERT's kind, or a tokenizer of qa-arch pretrain tokenizer"
        )
    pieces = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    special = np.ones(size, bool)  # embeddings beyond the vocabulary belong to no token
    special[: len(pieces)] = False
    special[tokenizer.all_special_ids] = True
    begins = np.zeros(size, bool)
    begins[: len(pieces)] = _begin_words(pieces, backend_of(tokenizer))
    return Vocabulary(tokenizer.mask_token_id, special, begins, np.flatnonzero(~special))


def _begin_words(pieces: list[str], backend: Tokenizer) -> list[bool]:
    """Whether each piece begins a word: without WordPiece's prefix of continuing pieces, or with the sign of
    a space before it of byte-level BPE and Unigram; all do where there is neither."""
    if prefix := getattr(backend.model, "continuing_subword_prefix", None):
        return [not piece.startswith(prefix) for piece in pieces]
    marked = [piece.startswith(_SPACES) for piece in pieces]
    return marked if any(marked) else [True] * len(pieces)


def hidden_places(
    ids: Longs,
    vocabulary: Vocabulary,
    settings: Pretraining,
    draw: np.random.Generator,
    *,
    spans: bool = False,
) -> Longs:
    """Places of ``ids`` (T,) to predict, in order: ``mask_share`` of those that are not special, at least
    one.

    With ``whole_words`` words are drawn, and all pieces of a word are hidden together; a word that would
    exceed the number is left out, unless it is the first. With ``spans`` the text is divided at random into
    spans, whose lengths are geometric with a mean of ``span_length`` tokens, and these are drawn so.
    """
    open_ = np.flatnonzero(~vocabulary.special[ids])
    count = max(1, round(settings.mask_share * len(open_))) if len(open_) else 0
    if not (settings.whole_words or spans) or not count:
        return np.sort(draw.choice(open_, count, replace=False))
    begins = vocabulary.begins_word[ids[open_]] if settings.whole_words else np.ones(len(open_), bool)
    if spans:
        begins = begins & (draw.random(len(open_)) < 1 / settings.span_length)
    # A special token ends a word, and a block may begin inside of one.
    begins = begins | (np.diff(open_, prepend=-2) > 1)
    words = np.split(open_, np.flatnonzero(begins)[1:])
    chosen: list[int] = []
    for number in draw.permutation(len(words)):
        if not chosen or len(chosen) + len(words[number]) <= count:
            chosen += words[number].tolist()
        if len(chosen) >= count:
            break
    return np.sort(np.array(chosen, np.int64))


def hide(
    ids: Longs, places: Longs, vocabulary: Vocabulary, settings: Pretraining, draw: np.random.Generator
) -> Longs:
    """A copy of ``ids`` with the tokens at ``places`` hidden: each masked with probability ``masked``,
    replaced by a random word of the vocabulary with ``replaced``, and otherwise left as it is."""
    chance = draw.random(len(places))
    random_words = draw.choice(vocabulary.words, len(places))
    masked = chance < settings.masked
    replaced = ~masked & (chance < settings.masked + settings.replaced)
    hidden = ids.copy()
    hidden[places[masked]] = vocabulary.mask
    hidden[places[replaced]] = random_words[replaced]
    return hidden


# Batches --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LanguageTable:
    """The blocks of a split, and how they are read."""

    blocks: Blocks
    vocabulary: Vocabulary
    segments: bool
    """Whether the encoder has segment ids."""
    protocol: str
    """Names the objective and all that its scores depend on beside text and model."""

    def __len__(self) -> int:
        return len(self.blocks)

    @cached_property
    def tokens(self) -> int:
        """Tokens of the text, special ones excluded."""
        parts = self.blocks.column("ids").chunks
        return sum(int((~self.vocabulary.special[part.flatten().to_numpy()]).sum()) for part in parts)


@dataclass(frozen=True, eq=False)
class LanguageCollator(ABC):
    """Rows of a table -> LanguageBatch; with a ``seed`` it takes (epoch, rows). A padding row is
    ``-1 - row``."""

    table: LanguageTable
    noise: Pretraining
    seed: int | None = None
    """None: the draw of validation."""
    sentence_task: Literal["none", "nsp", "sop"] = "none"

    @property
    def lengths(self) -> Longs:
        """(rows,) tokens of each block with its special tokens."""
        return self.table.blocks.lengths

    def __call__(self, rows: Any) -> LanguageBatch:
        epoch, given = (0, rows) if self.seed is None else rows
        index = np.asarray(given, np.int64)
        numbers = np.where(index < 0, -1 - index, index)
        draws = [np.random.default_rng(self._entropy(epoch, row)) for row in numbers.tolist()]
        return self._batch(
            numbers.tolist(),
            draws,
            index=torch.from_numpy(numbers),
            weight=torch.from_numpy((index >= 0).astype(np.float32)),
        )

    def _entropy(self, epoch: int, row: int) -> tuple[int, ...]:
        return (FIXED, row) if self.seed is None else (self.seed, epoch, row)

    @abstractmethod
    def _batch(self, rows: list[int], draws: list[np.random.Generator], **shared: Any) -> LanguageBatch: ...

    def _texts(self, rows: list[int]) -> Padded:
        """The blocks as they are."""
        return self.table.blocks.framing.single(map(self.table.blocks.content, rows))

    def _inputs(self, padded: Padded) -> dict[str, Any]:
        """What the encoder reads of ``padded``."""
        segments = torch.from_numpy(padded.segments) if self.table.segments else None
        return {
            "ids": torch.from_numpy(padded.ids),
            "mask": torch.from_numpy(padded.mask),
            "segments": segments,
        }


@dataclass(frozen=True, eq=False)
class MaskedCollator(LanguageCollator):
    """Blocks with tokens hidden, for ``nsp`` and ``sop`` as pairs of which half are false."""

    spans: ClassVar[bool] = False
    """Whether tokens are hidden in spans."""

    def _batch(self, rows: list[int], draws: list[np.random.Generator], **shared: Any) -> LanguageBatch:
        if self.sentence_task == "none":
            padded, follows = self._texts(rows), None
        else:
            pairs = [self._pair(row, draw) for row, draw in zip(rows, draws, strict=True)]
            padded = self.table.blocks.framing.pair((first, second) for first, second, _ in pairs)
            follows = torch.tensor([true for _, _, true in pairs])
        vocabulary = self.table.vocabulary
        hidden, places = padded.ids.copy(), []
        for ids, draw in zip(hidden, draws, strict=True):
            places.append(hidden_places(ids, vocabulary, self.noise, draw, spans=self.spans))
            ids[:] = hide(ids, places[-1], vocabulary, self.noise, draw)
        positions, counted = _stacked(places)
        return LanguageBatch(
            **shared,
            **self._inputs(padded) | {"ids": torch.from_numpy(hidden)},
            targets=torch.from_numpy(np.take_along_axis(padded.ids, positions, 1)),
            counted=torch.from_numpy(counted),
            positions=torch.from_numpy(positions),
            follows=follows,
        )

    def _pair(self, row: int, draw: np.random.Generator) -> tuple[Longs, Longs, bool]:
        """The two parts of a block and whether the second follows the first, which half of them do."""
        blocks = self.table.blocks
        content, starts = blocks.content(row), blocks.sentence_starts(row)
        # Cut before a sentence, or in the middle of a single one.
        cut = int(draw.choice(starts)) if len(starts) else max(1, len(content) // 2)
        first, second = content[:cut], content[cut:]
        if draw.random() < 0.5:
            return first, second, True
        if self.sentence_task == "sop":
            return second, first, False
        return first, self._foreign(row, blocks.max_length - blocks.framing.pairs.specials - cut, draw), False

    def _foreign(self, row: int, room: int, draw: np.random.Generator) -> Longs:
        """Sentences of another document, at most ``room`` tokens of them and at least one sentence's."""
        blocks = self.table.blocks
        other = row
        while blocks.document(other) == blocks.document(row):
            other = int(draw.integers(len(blocks)))
        content = blocks.content(other)
        bounds = np.r_[0, blocks.sentence_starts(other), len(content)]
        begin = int(draw.choice(bounds[:-1]))
        ends = bounds[(bounds > begin) & (bounds <= begin + room)]
        return content[begin : int(ends[-1]) if len(ends) else begin + room]


class SpanCollator(MaskedCollator):
    """Blocks with spans of tokens hidden."""

    spans = True


@dataclass(frozen=True, eq=False)
class CausalCollator(LanguageCollator):
    """Blocks as they are, and of each token but the first the one before it to predict it from."""

    def _batch(self, rows: list[int], draws: list[np.random.Generator], **shared: Any) -> LanguageBatch:
        padded = self._texts(rows)
        inputs: dict[str, Any] = {
            name: None if value is None else value[:, :-1] for name, value in self._inputs(padded).items()
        }
        targets, counted = (torch.from_numpy(value[:, 1:]) for value in (padded.ids, padded.mask))
        return LanguageBatch(**shared, **inputs, targets=targets, counted=counted)


def _stacked(places: Sequence[Longs]) -> tuple[Longs, Bools]:
    """(B, P) places padded with 0, and which of them are real."""
    counts = np.array([len(own) for own in places])
    counted = np.arange(max(1, counts.max())) < counts[:, None]
    positions = np.zeros(counted.shape, np.int64)
    positions[counted] = np.concatenate(places)
    return positions, counted
