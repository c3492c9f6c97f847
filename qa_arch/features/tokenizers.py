"""Train tokenizers of the common families, for small randomly initialised encoders and for tests.

The WordPiece and Unigram trainers of ``tokenizers`` are not reproducible across processes; its BPE trainer
is. All three subword families therefore take their vocabulary from BPE and, like the published ones, differ
in normalisation and segmentation.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Literal

import transformers  # its models take seconds to import: looked up where they are needed
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

Family = Literal["wordpiece", "byte_bpe", "unigram", "words"]
WORDPIECE_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
BYTE_BPE_SPECIALS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
UNIGRAM_SPECIALS = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
WORD = Regex(r"[\p{L}\p{M}\p{N}_]+|[^\p{L}\p{M}\p{N}_\s]")
"""A word as in ``features.words``: a run of letters, marks and digits, or one other character."""

SHORTEN = pre_tokenizers.Split(Regex(r"\S{100}"), behavior="isolated")
"""Cuts longer words: BPE takes quadratic time to divide them, and WordPiece does not read them."""


def build(family: Family, texts: Iterable[str], vocab_size: int = 1000) -> PreTrainedTokenizerFast:
    """Train a tokenizer of ``family`` with about ``vocab_size`` pieces; deterministic for the same texts.

    ``wordpiece`` is BERT's (uncased; also DistilBERT's), ``byte_bpe`` RoBERTa's, ``unigram`` ALBERT's, each
    with its own special tokens and pair template. ``words`` has one piece per lower-cased word, for the most
    frequent words; its template is ``question [SEP] passage``.
    """
    texts = list(texts)
    # No text has more pieces, even normalised; the trainer of BPE reserves memory for as many as it is told.
    most = 1000 + 8 * sum(len(text.encode(errors="replace")) for text in texts)
    builders = {"wordpiece": _wordpiece, "byte_bpe": _byte_bpe, "unigram": _unigram, "words": _words}
    return builders[family](texts, min(vocab_size, most))


def wordpiece(pieces: Iterable[str]) -> PreTrainedTokenizerFast:
    """BERT's tokenizer with its special tokens followed by ``pieces``, numbered in this order."""
    vocabulary = {piece: number for number, piece in enumerate([*WORDPIECE_SPECIALS, *pieces])}
    return transformers.BertTokenizer(vocab=vocabulary)


def _byte_bpe(texts: list[str], size: int) -> PreTrainedTokenizerFast:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = transformers.RobertaTokenizer().backend_tokenizer.pre_tokenizer
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())  # each call returns another order
    bpe.train_from_iterator(texts, _trainer(size, alphabet, [*BYTE_BPE_SPECIALS]))
    model = json.loads(bpe.to_str())["model"]
    merges: list = [tuple(pair) for pair in model["merges"]]
    return transformers.RobertaTokenizer(vocab=model["vocab"], merges=merges)


def _wordpiece(texts: list[str], size: int) -> PreTrainedTokenizerFast:
    counts = _count_pieces(transformers.BertTokenizer().backend_tokenizer, texts, size)
    # Every character, word-initial and continuing, so that no word of the training texts is unknown.
    for character in {c for piece, _ in counts for c in piece}:
        counts[character, True] += 0
        counts[character, False] += 0
    marked = Counter({piece if first else f"##{piece}": n for (piece, first), n in counts.items()})
    room = size - len(WORDPIECE_SPECIALS)
    return wordpiece(
        _most_frequent(marked, room, is_character=lambda piece: len(piece.removeprefix("##")) == 1)
    )


def _unigram(texts: list[str], size: int) -> PreTrainedTokenizerFast:
    counts: Counter[str] = Counter()
    for (piece, _), n in _count_pieces(transformers.AlbertTokenizer().backend_tokenizer, texts, size).items():
        counts[piece] += n
    for character in {c for piece in counts for c in piece}:
        counts[character] += 0
    room = size - len(UNIGRAM_SPECIALS)
    pieces = _most_frequent(counts, room, is_character=lambda piece: len(piece) == 1)
    total = sum(counts.values()) + len(pieces)
    # tokenizer.json is read without the last bits of a double, which would decide between equal divisions.
    scored = [(piece, round(math.log((counts[piece] + 1) / total), 12)) for piece in pieces]
    return transformers.AlbertTokenizer(vocab=[*((special, 0.0) for special in UNIGRAM_SPECIALS), *scored])


def _words(texts: list[str], size: int) -> PreTrainedTokenizerFast:
    specials = ["[PAD]", "[UNK]", "[SEP]"]
    tokenizer = Tokenizer(models.WordLevel({}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Split(WORD, behavior="removed", invert=True)
    counts: Counter[str] = Counter()
    for text in texts if size > len(specials) else ():  # else no word gets a piece
        normalised = tokenizer.normalizer.normalize_str(text)
        counts.update(word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normalised))
    frequent = _most_frequent(counts, size - len(specials), is_character=lambda piece: False)
    tokenizer.model = models.WordLevel(
        {w: n for n, w in enumerate([*specials, *frequent])}, unk_token="[UNK]"
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A", pair="$A [SEP] $B:1", special_tokens=[("[SEP]", specials.index("[SEP]"))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", sep_token="[SEP]"
    )


def _trainer(size: int, alphabet: list[str], specials: list[str]) -> trainers.BpeTrainer:
    return trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=alphabet, special_tokens=specials, show_progress=False
    )


def _count_pieces(reference: Tokenizer, texts: list[str], size: int) -> Counter[tuple[str, bool]]:
    """Frequency of each (piece, is word-initial) under BPE with the normalisation of ``reference``."""
    bpe = Tokenizer(models.BPE())
    bpe.normalizer = reference.normalizer
    # Punctuation is split off words, as in the published vocabularies.
    punctuation = pre_tokenizers.Punctuation()
    bpe.pre_tokenizer = pre_tokenizers.Sequence([reference.pre_tokenizer, punctuation, SHORTEN])
    bpe.train_from_iterator(texts, _trainer(size, [], []))
    words: Counter[str] = Counter()
    for text in texts:
        normalised = bpe.normalizer.normalize_str(text)
        words.update(word for word, _ in bpe.pre_tokenizer.pre_tokenize_str(normalised))
    counts: Counter[tuple[str, bool]] = Counter()
    for word, n in words.items():
        for token in bpe.model.tokenize(word):
            counts[token.value, token.offsets[0] == 0] += n
    return counts


def _most_frequent(counts: Counter[str], room: int, is_character: Callable[[str], bool]) -> list[str]:
    """All single characters and the most frequent other pieces, ``room`` in total, in a fixed order."""
    characters = sorted(piece for piece in counts if is_character(piece))
    longer = sorted((p for p in counts if not is_character(p)), key=lambda piece: (-counts[piece], piece))
    return characters + longer[: max(0, room - len(characters))]
