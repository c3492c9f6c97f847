"""Tokenizers trained on a corpus, and how tokenizers divide a text.

A tokenizer has exactly the size asked for and takes one pass over the corpus:

- ``wordpiece``: BERT's. The pieces are merges of byte-pair encoding over the characters of words, those
  inside a word marked ``##``, as in the trainers that are in use (Google never published its own); applied
  longest piece first.
- ``bpe``: byte-level byte-pair encoding (Radford et al. 2019), RoBERTa's; knows every text.
- ``unigram``: the Unigram language model (Kudo 2018), ALBERT's.

The first two give the same bytes every time; the Unigram trainer of ``tokenizers`` sums in an order that
differs between processes, so that a run names the file it made. Memory grows with the distinct words of the
corpus, up to ``MOST_WORDS``, not with its length.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Literal, get_args

import numpy as np
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from qa_arch.errors import ConfigError
from qa_arch.features import tokenizers
from qa_arch.features import words as word_module
from qa_arch.features.words import Longs, backend_of, tokenize_whole, unlimited

Kind = Literal["wordpiece", "bpe", "unigram"]
KINDS: tuple[Kind, ...] = get_args(Kind)
LOWERCASE: Mapping[Kind, bool] = {"wordpiece": True, "bpe": False, "unigram": True}
"""Whether the published tokenizer of each kind lower-cases its text (BERT uncased, RoBERTa, ALBERT)."""
CHARACTERS = 1000
"""Characters that become pieces; rarer ones are unknown (``bpe`` reads bytes and knows all)."""
MOST_WORDS = 5_000_000
"""Distinct words that are counted; beyond, the rarest are forgotten."""
_REPEATS = 1000


def train_tokenizer(
    kind: Kind,
    documents: Iterable[str],
    size: int,
    *,
    lowercase: bool | None = None,
    characters: int = CHARACTERS,
) -> PreTrainedTokenizerFast:
    """A tokenizer of exactly ``size`` pieces, special tokens included, trained in one pass.

    ``lowercase`` defaults to what the published tokenizer of the kind does; but for ``bpe`` accents go with
    it. ``characters``: how many of the most frequent characters are pieces. Raises ConfigError for a size
    that the documents do not allow, naming the smallest or the largest that they do.
    """
    if characters < 1:
        raise ConfigError(f"a vocabulary of {characters} characters: give at least 1")
    lower = LOWERCASE[kind] if lowercase is None else lowercase
    room = max(size, 0)
    if kind == "bpe":
        tokenizer = tokenizers.byte_bpe(documents, room, lowercase=lower)
        smallest = len(tokenizers.BYTE_BPE_SPECIALS) + len(pre_tokenizers.ByteLevel.alphabet())
    else:
        train = _wordpiece if kind == "wordpiece" else _unigram
        tokenizer, smallest = train(count_words(documents), room, lower, characters)
    if size < smallest:
        raise ConfigError(
            f"a vocabulary of {size:,} is too small: special tokens and characters alone are {smallest:,};"
            f" ask for more{'' if kind == 'bpe' else ', or for fewer characters'}"
        )
    if len(tokenizer) < size:
        raise ConfigError(
            f"a vocabulary of {size:,} is more than this corpus allows: {len(tokenizer):,} at most;"
            " ask for less, or give more text"
        )
    return tokenizer


def count_words(documents: Iterable[str]) -> Counter[str]:
    """Frequency of everything between white space; the rarest are forgotten beyond ``MOST_WORDS``."""
    counts: Counter[str] = Counter()
    rare = 0
    for document in documents:
        counts.update(document.split())
        while len(counts) > MOST_WORDS:
            rare += 1
            counts = Counter({word: n for word, n in counts.items() if n > rare})
    return counts


Trained = tuple[PreTrainedTokenizerFast, int]
"""A tokenizer, and the size of the smallest that there can be."""


def _wordpiece(counts: Mapping[str, int], size: int, lowercase: bool, most: int) -> Trained:
    backend = tokenizers.wordpiece([], lowercase=lowercase).backend_tokenizer
    words = _words(counts, backend.normalizer, backend.pre_tokenizer)
    alphabet = _alphabet(words, most)
    # The trainer itself would number these in an order that differs between processes, and so its merges.
    inside = [f"##{character}" for character in alphabet]
    specials = tokenizers.WORDPIECE_SPECIALS
    pieces = _merge(words, size, alphabet, first=[*specials, *inside], prefix="##")
    smallest = len(specials) + 2 * len(alphabet)
    return tokenizers.wordpiece(pieces[len(specials) :], lowercase=lowercase), smallest


def _unigram(counts: Mapping[str, int], size: int, lowercase: bool, most: int) -> Trained:
    backend = tokenizers.unigram([], lowercase=lowercase).backend_tokenizer
    # Punctuation is split off words, as in the published vocabularies.
    splitter = pre_tokenizers.Sequence([backend.pre_tokenizer, pre_tokenizers.Punctuation()])
    words = _words(counts, backend.normalizer, splitter)
    alphabet = _alphabet(words, most)
    specials = [*tokenizers.UNIGRAM_SPECIALS]
    smallest = len(specials) + len(alphabet) + 1  # asked for no more than characters, the library gives more
    trainer = trainers.UnigramTrainer(
        vocab_size=max(size, smallest),
        special_tokens=specials,
        unk_token=specials[1],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    plain = Tokenizer(models.Unigram())
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    known = {word: n for word, n in words.items() if set(alphabet).issuperset(word)}
    plain.train_from_iterator(_repeated(known), trainer)
    scored = json.loads(plain.to_str())["model"]["vocab"][len(specials) :]
    return tokenizers.unigram(map(tuple, scored), lowercase=lowercase), smallest


def _words(
    counts: Mapping[str, int], normalizer: normalizers.Normalizer, splitter: pre_tokenizers.PreTokenizer
) -> Counter[str]:
    """Frequency of normalised words, split off punctuation, in alphabetical order."""
    words: Counter[str] = Counter()
    for text, n in sorted(counts.items()):
        for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text)):
            words[word] += n
    return words


def _alphabet(words: Mapping[str, int], most: int) -> list[str]:
    """The ``most`` most frequent characters, in alphabetical order."""
    counts: Counter[str] = Counter()
    for word, n in words.items():
        for character in word:
            counts[character] += n
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    return sorted(ranked[:most])


def _merge(
    words: Mapping[str, int], size: int, alphabet: list[str], first: list[str], prefix: str
) -> list[str]:
    """Pieces of byte-pair encoding over ``alphabet`` in the order of their numbers, ``first`` in front.

    A piece inside a word begins with ``prefix``.
    """
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=first,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        continuing_subword_prefix=prefix,
        show_progress=False,
    )
    plain = Tokenizer(models.BPE())
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    plain.train_from_iterator(_repeated(words), trainer)
    numbers = plain.get_vocab()
    return sorted(numbers, key=numbers.__getitem__)


def _repeated(words: Mapping[str, int]) -> Iterator[str]:
    """Texts in which each word stands as often as its frequency says."""
    for word, n in words.items():
        for begin in range(0, n, _REPEATS):
            yield " ".join([word] * min(_REPEATS, n - begin))


# Comparison ----------------------------------------------------------------------------------------

CHUNK = 256
"""Documents that are counted together."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What a tokenizer does to a text. Words are those of ``features.words``."""

    vocabulary: int
    """Pieces, special tokens included."""
    documents: int
    words: int
    pieces: int
    """Of the text, special tokens around it not counted."""
    pieces_per_word: float
    whole: float
    """Percent of the words that are not divided."""
    unknown: float
    """Percent of the words with an unknown piece."""
    p50: int
    """Tokens of a document with the special tokens around it: median, 95th percentile and longest."""
    p95: int
    longest: int


def figures(tokenizer: PreTrainedTokenizerBase, documents: Iterable[str]) -> Figures:
    """Count pieces, words and positions over ``documents``, of which there is at least one.

    Memory grows by a number per document.
    """
    lengths: list[Longs] = []
    stream = iter(documents)
    n_words = n_pieces = whole = unknown = 0
    with unlimited(backend_of(tokenizer)) as backend:
        specials = len(backend.encode("").ids)
        while texts := list(islice(stream, CHUNK)):
            pieces = tokenize_whole(texts, backend)
            words = word_module.split(texts)
            text = np.repeat(np.arange(len(texts)), pieces.count)
            base = words.base[text]
            start, end = word_module.fit(base + pieces.start, base + pieces.end, words)
            word = word_module.word_of(start, end, text, words)
            per_word = np.bincount(word[word >= 0], minlength=len(words.start))
            lost = pieces.ids == tokenizer.unk_token_id
            n_words += len(words.start)
            n_pieces += len(pieces.ids)
            whole += int((per_word <= 1).sum())  # 0: the word shares a piece with the word before it
            unknown += _count_touched(start[lost], end[lost], words)
            lengths.append(pieces.count + specials)
    length = np.concatenate(lengths)
    p50, p95 = np.percentile(length, (50, 95), method="inverted_cdf").tolist()
    return Figures(
        vocabulary=len(tokenizer),
        documents=len(length),
        words=n_words,
        pieces=n_pieces,
        pieces_per_word=n_pieces / n_words,
        whole=100 * whole / n_words,
        unknown=100 * unknown / n_words,
        p50=p50,
        p95=p95,
        longest=int(length.max()),
    )


def _count_touched(start: Longs, end: Longs, words: word_module.Words) -> int:
    """Number of words that have a character in common with any ``[start, end)``; a span may touch several."""
    first = np.searchsorted(words.end, start, side="right")
    last = np.maximum(np.searchsorted(words.start, end, side="left"), first)
    depth = np.zeros(len(words.start) + 1, np.int64)
    np.add.at(depth, first, 1)
    np.add.at(depth, last, -1)
    return int((np.cumsum(depth) > 0).sum())
