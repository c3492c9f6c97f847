"""BLEU, ROUGE and METEOR by sacrebleu, rouge-score and nltk, imported on first use; nothing is downloaded."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from itertools import zip_longest
from types import ModuleType
from typing import Any

from qa_arch.errors import UnavailableError
from qa_arch.extras.text_metrics.golds import References, require_golds, words


def bleu(predictions: Sequence[str], references: References, *, order: int = 4) -> float:
    """Corpus BLEU up to n-grams of ``order``, unsmoothed (Papineni et al. 2002, section 2.3), percent.

    By sacrebleu with its tokenisation ``13a``, in lower case; a question may have any number of golds.
    """
    require_golds(predictions, references)
    sacrebleu = _library("sacrebleu", "BLEU")
    metric = sacrebleu.BLEU(max_ngram_order=order, smooth_method="none", lowercase=True)
    # sacrebleu takes the first gold of every question, then the second ones; None fills the gaps.
    transposed = [list(column) for column in zip_longest(*references)]
    return float(metric.corpus_score(list(predictions), transposed).score)


def rouge(predictions: Sequence[str], references: References) -> dict[str, float]:
    """``rouge_1``, ``rouge_2`` and ``rouge_l``: F-measures against the best gold, averaged, percent.

    Lin 2004: overlap of words, of bigrams, and the longest common subsequence; without stemming.
    """
    require_golds(predictions, references)
    scorer = _library("rouge_score.rouge_scorer", "ROUGE").RougeScorer(
        ["rouge1", "rouge2", "rougeL"], tokenizer=_Tokenizer()
    )
    rows = [scorer.score_multi(golds, text) for text, golds in zip(predictions, references, strict=True)]
    names = {"rouge_1": "rouge1", "rouge_2": "rouge2", "rouge_l": "rougeL"}
    return {key: _mean_percent([row[name].fmeasure for row in rows]) for key, name in names.items()}


def meteor(predictions: Sequence[str], references: References) -> float:
    """METEOR against the best gold, averaged, percent (Banerjee & Lavie 2005, section 2.2).

    By nltk with alpha 0.9, beta 3, gamma 0.5. Words match exactly, by stem, and by WordNet's synonyms
    (of the stems, as in nltk) if nltk's WordNet data is installed: ``meteor_stages`` names the stages;
    scores with different stages are not comparable. A perfect answer of m words scores 1 - 0.5 / m³.
    """
    require_golds(predictions, references)
    nltk = _library("nltk.translate.meteor_score", "METEOR")
    synonyms = _wordnet() or _NoSynonyms()

    def best(text: str, golds: Sequence[str]) -> float:
        return max(nltk.single_meteor_score(words(gold), words(text), wordnet=synonyms) for gold in golds)

    return _mean_percent([best(text, golds) for text, golds in zip(predictions, references, strict=True)])


def meteor_stages() -> tuple[str, ...]:
    """Stages of ``meteor`` on this machine: exact and stem, and synonym if WordNet's data is installed."""
    return ("exact", "stem", "synonym") if _wordnet() else ("exact", "stem")


class _Tokenizer:
    """``words`` as a rouge-score tokenizer; the default tokenizer splits names at accents."""

    def tokenize(self, text: str) -> list[str]:
        return words(text)


class _NoSynonyms:
    """Replaces WordNet where its data is not installed: no word has synonyms."""

    def synsets(self, word: str) -> tuple[()]:
        return ()


def _wordnet() -> Any | None:
    """nltk's WordNet, or None if its data is not installed; nltk only looks on disk."""
    wordnet = _library("nltk.corpus", "METEOR").wordnet
    try:
        wordnet.ensure_loaded()
    except LookupError:
        return None
    return wordnet


def _library(name: str, metric: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UnavailableError(f"{metric} needs {name.split('.')[0]}: pip install 'qa-arch[text]'") from error


def _mean_percent(values: Sequence[float]) -> float:
    return 100.0 * math.fsum(values) / len(values)
