"""Statistics of tokenized text for ``qa-arch pretrain compare-tokenizers``."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import numpy as np
from transformers import PreTrainedTokenizerBase

from qa_arch.features.words import CHUNK, backend_of, fit, split, tokenize_fn, unlimited, word_of


def figures(tokenizer: PreTrainedTokenizerBase, documents: Iterable[str]) -> dict[str, float]:
    """Statistics over one or more non-blank documents; words are those of ``features.words``.

    ``vocabulary`` includes special tokens, ``tokens`` and ``tokens_per_word`` do not. ``unsplit`` is the
    percentage of words that are a single token or share one with others; ``unknown``, of words with an
    unknown token. ``p50``, ``p95`` and ``longest`` are tokens per document, special tokens included. Raises
    DataError for invalid Unicode, ConfigError for a slow tokenizer.
    """
    lengths = []
    n_words = unsplit = unknown = 0
    stream = iter(documents)
    with unlimited(backend_of(tokenizer)) as backend:
        to_pieces = tokenize_fn(backend)
        while texts := list(islice(stream, CHUNK)):
            words, pieces = split(texts), to_pieces(texts)
            text = np.repeat(np.arange(len(texts)), pieces.count)
            start, end = fit(words.base[text] + pieces.start, words.base[text] + pieces.end, words)
            tokens_of = np.bincount(word_of(start, end, text, words), minlength=len(words.start))
            is_unknown, has_unknown = pieces.ids == tokenizer.unk_token_id, np.zeros(len(words.start), bool)
            first = np.searchsorted(words.end, start[is_unknown], "right")
            stop = np.searchsorted(words.start, end[is_unknown])
            for span in map(slice, first, stop):  # an unknown token may cover several words
                has_unknown[span] = True
            lengths.append(pieces.count)
            n_words += len(words.start)
            unsplit += int((tokens_of <= 1).sum())
            unknown += int(has_unknown.sum())
        length = np.concatenate(lengths)
        tokens, n_special = int(length.sum()), backend.num_special_tokens_to_add(False)
    p50, p95, longest = np.percentile(length + n_special, (50, 95, 100), method="inverted_cdf").tolist()
    return {
        "vocabulary": len(tokenizer),
        "documents": len(length),
        "words": n_words,
        "tokens": tokens,
        "tokens_per_word": tokens / n_words,
        "unsplit": 100 * unsplit / n_words,
        "unknown": 100 * unknown / n_words,
        "p50": p50,
        "p95": p95,
        "longest": longest,
    }
