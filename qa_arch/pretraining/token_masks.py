"""Hiding tokens for masked language modelling: 15%, of them 80% masked, 10% replaced, 10% left as they are.

Devlin et al. 2019, section 3.1; drawn anew in each epoch as Liu et al. 2019 do (RoBERTa, section 4.1). All
draws come from a generator that the caller seeds, so a row is hidden alike whatever batch or process it is in.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qa_arch.config.schema import Pretraining
from qa_arch.features.table import Bools, Longs


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """What noise needs to know of a tokenizer's vocabulary of ``V`` ids."""

    mask: int
    special: Bools
    """(V,) True on special tokens, which are neither hidden nor drawn as replacements."""
    begins_word: Bools
    """(V,) True on the pieces that begin a word."""

    @property
    def words(self) -> Longs:
        """The ids that may replace a token."""
        return np.flatnonzero(~self.special)


def hidden_places(ids: Longs, vocabulary: Vocabulary, settings: Pretraining, draw: np.random.Generator) -> Longs:
    """Places of ``ids`` (T,) to predict, in order: ``mask_share`` of those that are not special, at least one.

    With ``whole_words`` words are drawn, and all pieces of a word are hidden together; a word that would
    exceed the number is left out, unless it is the first.
    """
    open_ = np.flatnonzero(~vocabulary.special[ids])
    count = max(1, round(settings.mask_share * len(open_))) if len(open_) else 0
    if not settings.whole_words:
        return np.sort(draw.choice(open_, count, replace=False))
    words = _words(ids, open_, vocabulary)
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


def _words(ids: Longs, open_: Longs, vocabulary: Vocabulary) -> list[Longs]:
    """The places of each word's pieces; a special token ends a word, and a block may begin inside of one."""
    if not len(open_):
        return []
    begins = vocabulary.begins_word[ids[open_]] | (np.diff(open_, prepend=-2) > 1)
    return np.split(open_, np.flatnonzero(begins)[1:])
