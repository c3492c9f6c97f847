"""Hiding tokens for masked language modelling: 15%, of them 80% masked, 10% replaced, 10% left as they are.

Devlin et al. 2019, section 3.1; drawn anew in each epoch as Liu et al. 2019 do (RoBERTa, section 4.1). All
draws come from a generator that the caller seeds: a row is hidden alike in whatever batch or process it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from qa_arch.config.schema import Pretraining
from qa_arch.errors import ConfigError
from qa_arch.features.table import Bools, Longs
from qa_arch.features.template import backend_of, name_of

_SPACES = ("Ġ", "▁")


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
    prefix = getattr(backend.model, "continuing_subword_prefix", None)
    if prefix:
        return [not piece.startswith(prefix) for piece in pieces]
    marked = [piece.startswith(_SPACES) for piece in pieces]
    return marked if any(marked) else [True] * len(pieces)


def hidden_places(
    ids: Longs, vocabulary: Vocabulary, settings: Pretraining, draw: np.random.Generator
) -> Longs:
    """Places of ``ids`` (T,) to predict, in order: ``mask_share`` of those that are not special, at least
    one.

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
