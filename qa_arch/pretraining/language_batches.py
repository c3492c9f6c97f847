"""Blocks of text -> batches of the pre-training objectives.

What is hidden or moved in a block is drawn from (seed, epoch, row) alone: anew in each epoch, alike in
whatever batch, process or worker the block is read, and so alike after an interruption. For validation it is
drawn from the row alone, so that all epochs, seeds and processes score the same predictions.

Axes: ``B`` blocks, ``T`` tokens, ``P`` predicted tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch

from qa_arch.config.schema import Pretraining
from qa_arch.features.table import Bools, Longs
from qa_arch.metrics.language_scores import TextSize
from qa_arch.pretraining.framing import Padded
from qa_arch.pretraining.infilling import infilled, permuted
from qa_arch.pretraining.packing import Blocks
from qa_arch.pretraining.token_masks import Vocabulary, hidden_places, hide
from qa_arch.types.tensors import LanguageBatch

FIXED = 0x5EED
"""In place of seed and epoch where the draw is the same for every run."""
_PART = 1 << 20
"""Tokens of a mapped file that are looked at together."""


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
    def text(self) -> TextSize:
        """How much text the blocks hold."""
        ids, special = self.blocks.ids, self.vocabulary.special
        parts = range(0, len(ids), _PART)
        tokens = sum(int((~special[ids[begin : begin + _PART]]).sum()) for begin in parts)
        return TextSize(tokens, int(self.blocks.text_bytes.sum()))


@dataclass(frozen=True, eq=False)
class LanguageCollator(ABC):
    """Rows of a table -> LanguageBatch; with a ``seed`` it takes (epoch, rows). A padding row is
    ``-1 - row``."""

    table: LanguageTable
    noise: Pretraining
    seed: int | None = None
    """None: the draw of validation."""

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

    sentence_task: Literal["none", "nsp", "sop"] = "none"

    def _batch(self, rows: list[int], draws: list[np.random.Generator], **shared: Any) -> LanguageBatch:
        blocks, follows = self.table.blocks, None
        if self.sentence_task == "none":
            padded = blocks.framing.single([blocks.content(row) for row in rows])
        else:
            pairs = [self._pair(row, draw) for row, draw in zip(rows, draws, strict=True)]
            padded = blocks.framing.pair([first for first, _, _ in pairs], [second for _, second, _ in pairs])
            follows = torch.tensor([true for _, _, true in pairs])
        vocabulary = self.table.vocabulary
        hidden, places = padded.ids.copy(), []
        for ids, draw in zip(hidden, draws, strict=True):
            places.append(hidden_places(ids, vocabulary, self.noise, draw))
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
        content = blocks.content(row)
        cut = _cut(blocks.sentence_starts(row), len(content), draw)
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


@dataclass(frozen=True, eq=False)
class CausalCollator(LanguageCollator):
    """Blocks as they are, and of each token but the first the one before it to predict it from."""

    def _batch(self, rows: list[int], draws: list[np.random.Generator], **shared: Any) -> LanguageBatch:
        padded = self.table.blocks.framing.single([self.table.blocks.content(row) for row in rows])
        inputs: dict[str, Any] = {
            name: None if value is None else value[:, :-1] for name, value in self._inputs(padded).items()
        }
        return LanguageBatch(**shared, **inputs, **_shifted(padded))


@dataclass(frozen=True, eq=False)
class DenoisingCollator(LanguageCollator):
    """Blocks with spans hidden and sentences moved, and the text that was there."""

    def _batch(self, rows: list[int], draws: list[np.random.Generator], **shared: Any) -> LanguageBatch:
        blocks = self.table.blocks
        noisy = blocks.framing.single([self._noisy(row, draw) for row, draw in zip(rows, draws, strict=True)])
        padded = blocks.framing.single([blocks.content(row) for row in rows])
        prefix = torch.from_numpy(padded.ids[:, :-1])
        return LanguageBatch(**shared, **self._inputs(noisy), **_shifted(padded), prefix=prefix)

    def _noisy(self, row: int, draw: np.random.Generator) -> Longs:
        blocks, noise = self.table.blocks, self.noise
        content = blocks.content(row)
        if noise.permute_sentences:
            sentences = np.split(content, blocks.sentence_starts(row))
            content = np.concatenate(permuted(sentences, draw))
        return infilled(content, self.table.vocabulary.mask, noise.mask_share, noise.span_length, draw)


def _cut(starts: Longs, length: int, draw: np.random.Generator) -> int:
    """Where a block is cut in two: before a sentence, or in the middle of a single one."""
    return int(draw.choice(starts)) if len(starts) else max(1, length // 2)


def _shifted(padded: Padded) -> dict[str, Any]:
    """Every token but the first as a target."""
    return {"targets": torch.from_numpy(padded.ids[:, 1:]), "counted": torch.from_numpy(padded.mask[:, 1:])}


def _stacked(places: Sequence[Longs]) -> tuple[Longs, Bools]:
    """(B, P) places padded with 0, and which of them are real."""
    counts = np.array([len(own) for own in places])
    counted = np.arange(max(1, counts.max())) < counts[:, None]
    positions = np.zeros(counted.shape, np.int64)
    positions[counted] = np.concatenate(places)
    return positions, counted
