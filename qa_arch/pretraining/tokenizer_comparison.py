"""How tokenizers cut the same text: lengths, words divided or unknown, vocabularies in common, examples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerBase

from qa_arch.features import words as word_module
from qa_arch.features.pieces import tokenize_whole
from qa_arch.features.table import Longs
from qa_arch.features.template import backend_of, unlimited
from qa_arch.pretraining.corpus import Corpus

SENTENCES = (
    "The unbelievable steam engine hissed, rattled and finally stopped.",
    "In 1843, 12,750 tonnes of coal cost £3.40 apiece at the quay.",
    "Zoë's naïve café owner emailed info@café-zoë.example twice.",
    "Microbiologists misdiagnosed an antibiotic-resistant staphylococcus.",
    "Квас и 寿司 don't mix; neither do 🦀 and ½ a µg of x_train.",
)
"""Long and compound words, numbers, accents, other scripts and symbols: where tokenizers differ."""
BLANK = "␣"
"""Shown for a piece of white space alone."""
CHUNK = 256
"""Documents that are counted together."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of a document with the special tokens around it."""

    p50: int
    p95: int
    max: int


@dataclass(frozen=True, slots=True)
class Figures:
    """What a tokenizer does to a text. Words are those of ``features.words``, shares are of 1."""

    vocabulary: int
    """Pieces, special tokens included."""
    documents: int
    words: int
    pieces: int
    """Of the text, special tokens around it not counted."""
    pieces_per_word: float
    whole: float
    """Share of the words that are not divided."""
    unknown: float
    """Share of the words with an unknown piece."""
    positions: Lengths


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece as it stands in the vocabulary, and what it covers of the text."""

    token: str
    text: str
    """Empty where an earlier piece covers the same characters (bytes of one character)."""
    begins_word: bool
    """Whether white space, or nothing, stands before it."""
    unknown: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """Tokenizers side by side; every sequence is in the order of ``names``."""

    names: tuple[str, ...]
    text: str
    """Name of the text that the figures are about."""
    figures: tuple[Figures, ...]
    shared: tuple[tuple[float, ...], ...]
    """``shared[i][j]``: share of the pieces of i that j has as well, special tokens left out."""
    examples: tuple[tuple[str, tuple[tuple[Piece, ...], ...]], ...]
    """(sentence, its pieces by each tokenizer)."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON, by tokenizer name; pieces as they stand in the vocabularies."""
        return {
            "text": self.text,
            "tokenizers": {
                name: {**asdict(figures), "shared_with": dict(zip(self.names, shared, strict=True))}
                for name, figures, shared in zip(self.names, self.figures, self.shared, strict=True)
            },
            "examples": [
                {
                    "sentence": sentence,
                    "pieces": {
                        name: [piece.token for piece in pieces]
                        for name, pieces in zip(self.names, cuts, strict=True)
                    },
                }
                for sentence, cuts in self.examples
            ],
        }


def compare(
    tokenizers: Mapping[str, PreTrainedTokenizerBase], corpus: Corpus, sentences: Sequence[str] = SENTENCES
) -> Comparison:
    """Compare ``tokenizers`` (by the name to show) on a text, and on example sentences.

    The text is read once per tokenizer. Raises DataError where there is none, ConfigError for a slow
    tokenizer.
    """
    vocabularies = [_surfaces(tokenizer) for tokenizer in tokenizers.values()]
    return Comparison(
        names=tuple(tokenizers),
        text=corpus.name,
        figures=tuple(figures(tokenizer, corpus.documents()) for tokenizer in tokenizers.values()),
        shared=tuple(
            tuple(len(pieces & others) / len(pieces) for others in vocabularies) for pieces in vocabularies
        ),
        examples=tuple(
            (sentence, tuple(tuple(cut(tokenizer, sentence)) for tokenizer in tokenizers.values()))
            for sentence in sentences
        ),
    )


def figures(tokenizer: PreTrainedTokenizerBase, documents: Iterable[str]) -> Figures:
    """Count pieces, words and positions over ``documents``, of which there is at least one.

    Memory grows by a number per document.
    """
    lengths: list[Longs] = []
    n_words = n_pieces = whole = unknown = 0
    with unlimited(backend_of(tokenizer)) as backend:
        specials = len(backend.encode("").ids)
        for texts in _chunks(documents):
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
        whole=whole / n_words,
        unknown=unknown / n_words,
        positions=Lengths(p50, p95, int(length.max())),
    )


def _count_touched(start: Longs, end: Longs, words: word_module.Words) -> int:
    """Number of words that have a character in common with any ``[start, end)``; a span may touch several."""
    first = np.searchsorted(words.end, start, side="right")
    last = np.maximum(np.searchsorted(words.start, end, side="left"), first)
    depth = np.zeros(len(words.start) + 1, np.int64)
    np.add.at(depth, first, 1)
    np.add.at(depth, last, -1)
    return int((np.cumsum(depth) > 0).sum())


def _chunks(documents: Iterable[str]) -> Iterable[list[str]]:
    stream = iter(documents)
    return iter(lambda: list(islice(stream, CHUNK)), [])


def cut(tokenizer: PreTrainedTokenizerBase, sentence: str) -> list[Piece]:
    """The pieces of ``sentence``, in order."""
    with unlimited(backend_of(tokenizer)) as backend:
        encoding = backend.encode(sentence, add_special_tokens=False)
    pieces: list[Piece] = []
    covered = 0
    for token, number, (begin, end) in zip(encoding.tokens, encoding.ids, encoding.offsets, strict=True):
        text = sentence[max(begin, covered) : end]
        before = sentence[covered : max(begin, covered)] + text[: len(text) - len(text.lstrip())]
        begins_word = not pieces or before.isspace()
        if not _surface(token, backend)[0]:
            pieces.append(Piece(token, BLANK, begins_word, False))
            covered = max(covered, begin)
        else:
            glued = bool(pieces) and pieces[-1].text == BLANK
            pieces.append(
                Piece(token, text.strip(), begins_word and not glued, number == tokenizer.unk_token_id)
            )
            covered = max(covered, end)
    return pieces


def _surfaces(tokenizer: PreTrainedTokenizerBase) -> set[tuple[str, bool]]:
    """(text, whether it begins a word) of all pieces but special tokens, whatever marks the vocabulary uses.

    Parts of a character, which byte-level vocabularies have, stay as they are written there.
    """
    backend = backend_of(tokenizer)
    specials = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    return {_surface(token, backend) for token in backend.get_vocab() if token not in specials}


def _surface(token: str, backend: Tokenizer) -> tuple[str, bool]:
    if isinstance(backend.model, models.WordPiece):
        prefix = backend.model.continuing_subword_prefix
        return token.removeprefix(prefix), not token.startswith(prefix)
    if isinstance(backend.decoder, decoders.ByteLevel):
        text = backend.decoder.decode([token])
        return (token, False) if "\ufffd" in text else (text.removeprefix(" "), text.startswith(" "))
    begins_word = token.startswith("▁") or isinstance(backend.model, models.WordLevel)
    return token.removeprefix("▁"), begins_word
