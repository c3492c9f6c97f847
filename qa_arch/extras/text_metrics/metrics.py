"""Text-generation metrics for answer texts: BLEU, ROUGE, METEOR, CIDEr and perplexity.

BLEU, ROUGE and METEOR use sacrebleu, rouge-score and nltk (``qa-arch[text]``), imported on first use;
nothing is downloaded. All except BLEU, which has its own tokenisation, compare ``words``: lower case, no
punctuation. Scores are in percent, CIDEr from 0 to 10. They were designed for sentences and are low for short
answers: a single word has no 4-gram, and METEOR gives a perfect one-word answer 50.
"""

from __future__ import annotations

import importlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from types import ModuleType, SimpleNamespace
from typing import Any

from qa_arch.errors import DataError, UnavailableError, install
from qa_arch.features.words import word_pattern
from qa_arch.metrics.squad import by_characters
from qa_arch.types import Example, QuestionSet

ORDERS = (1, 2, 3, 4)
CIDER_SCALE = 10.0
"""Factor used by the COCO evaluation and in the literature."""

References = Sequence[Sequence[str]]
"""One or more gold texts per prediction, in the order of the predictions."""
Gram = tuple[str, ...]


def score(
    questions: QuestionSet,
    texts: Mapping[str, str],
    probabilities: Mapping[str, Mapping[str, float]] | None = None,
) -> dict[str, Any]:
    """Compute all text metrics over the answerable questions that have a prediction.

    BLEU is a corpus score against all golds of a question. ROUGE and METEOR take the best gold of each
    question and average over questions. CIDEr averages over the golds of a question, by definition: one that
    several annotators gave counts as often.
    Abstentions have no words and score 0. With ``probabilities`` (question id -> candidate text ->
    probability) the perplexity of the predicted answers is added, each answer counting as one token.

    Raises DataError if no answerable question has a prediction, a prediction is not among its candidates, or
    the answers are in a language that does not separate its words; UnavailableError without the libraries.
    """
    scored = [e for e in questions.examples if e.answerable and e.id in texts]
    if not scored:
        raise DataError(f"{questions.name}: no answerable question has a prediction; text metrics need one")
    # Of Korean, spaces separate the words, though its official evaluation compares characters.
    if (code := by_characters(example.answers[0].text for example in scored)) not in (None, "ko"):
        raise DataError(
            f"{questions.name}: answers look like language {code}, whose words no spaces separate, and text"
            " metrics compare words; leave them out"
        )
    predictions = [texts[example.id] for example in scored]
    references = [[gold.text for gold in example.answers] for example in scored]
    return {
        "questions": len(scored),
        **{f"bleu_{order}": bleu(predictions, references, order=order) for order in ORDERS},
        **rouge(predictions, references),
        "meteor": meteor(predictions, references),
        "cider": cider(predictions, references),
        **({} if probabilities is None else {"perplexity": _perplexity(texts, scored, probabilities)}),
    }


def bleu(predictions: Sequence[str], references: References, *, order: int = 4) -> float:
    """Corpus BLEU up to n-grams of ``order``, unsmoothed (Papineni et al. 2002, section 2.3), percent.

    By sacrebleu with its tokenisation ``13a``, in lower case; a question may have any number of golds.
    """
    sacrebleu = _library("sacrebleu", "BLEU")
    metric = sacrebleu.BLEU(max_ngram_order=order, smooth_method="none", lowercase=True)
    # sacrebleu expects the first golds of all questions, then the second ones; None fills the gaps.
    transposed = [list(column) for column in zip_longest(*references)]
    return float(metric.corpus_score(list(predictions), transposed).score)


def rouge(predictions: Sequence[str], references: References) -> dict[str, float]:
    """``rouge_1``, ``rouge_2`` and ``rouge_l``: F-measures against the best gold, averaged, percent.

    Lin 2004: unigram overlap, bigram overlap, longest common subsequence; without stemming.
    """
    scorer = _library("rouge_score.rouge_scorer", "ROUGE").RougeScorer(
        ["rouge1", "rouge2", "rougeL"], tokenizer=SimpleNamespace(tokenize=words)
    )  # the default tokenizer splits names at accents
    rows = [scorer.score_multi(golds, text) for text, golds in zip(predictions, references, strict=True)]
    names = {"rouge_1": "rouge1", "rouge_2": "rouge2", "rouge_l": "rougeL"}
    return {key: _mean_percent([row[name].fmeasure for row in rows]) for key, name in names.items()}


def meteor(predictions: Sequence[str], references: References) -> float:
    """METEOR against the best gold, averaged, percent (Banerjee & Lavie 2005, section 2.2).

    By nltk with alpha 0.9, beta 3, gamma 0.5. Words match exactly or by stem, not by WordNet
    synonyms, which would have to be downloaded. A perfect answer of m words scores 1 - 0.5 / m³.
    """
    nltk = _library("nltk.translate.meteor_score", "METEOR")
    no_synonyms = SimpleNamespace(synsets=lambda word: ())

    def best(text: str, golds: Sequence[str]) -> float:
        return max(nltk.single_meteor_score(words(gold), words(text), wordnet=no_synonyms) for gold in golds)

    return _mean_percent([best(text, golds) for text, golds in zip(predictions, references, strict=True)])


def _library(name: str, metric: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UnavailableError(f"{metric} needs {name.split('.')[0]}; {install('text')}") from error


def _mean_percent(values: Sequence[float]) -> float:
    return 100.0 * math.fsum(values) / len(values)


def _perplexity(
    texts: Mapping[str, str], scored: Sequence[Example], probabilities: Mapping[str, Mapping[str, float]]
) -> float | None:
    """exp of the mean negative log-probability of the predicted answers, inf if that overflows; None
    if the model abstained on every question."""
    logs = []
    for id_, text in ((example.id, texts[example.id]) for example in scored):
        if not text:
            continue
        probability = probabilities.get(id_, {}).get(text)
        if probability is None:
            raise DataError(
                f"{id_}: the prediction {text!r} is not among its candidates; give the n-best file of"
                " the same predictions"
            )
        logs.append(math.log(probability) if probability else -math.inf)
    if not logs:
        return None
    loss = -math.fsum(logs) / len(logs)
    return math.exp(loss) if loss < 700 else math.inf  # exp overflows at 710


def words(text: str) -> list[str]:
    """Lower-case words of ``text``: runs of letters, marks, digits and underscores."""
    return word_pattern(symbols=False).findall(text.lower())


def cider(predictions: Sequence[str], references: References) -> float:
    """CIDEr, averaged over the questions; 0 to 10.

    For each n from 1 to 4, the cosine between the TF-IDF vectors of prediction and gold is averaged over the
    golds of the question (eq. 2), then over n with equal weights (eq. 3). The document frequency of an
    n-gram is the number of questions with a gold that contains it. Words are not stemmed. With a single
    question every weight is log 1, so the score is 0.
    """
    golds = [[words(gold) for gold in row] for row in references]
    grams_of = ({gram for gold in row for n in ORDERS for gram in _grams(gold, n)} for row in golds)
    document_frequency = Counter(gram for grams in grams_of for gram in grams)

    def vector(tokens: list[str], n: int) -> dict[Gram, float]:
        """Eq. 1 with counts instead of frequencies: the common factor cancels in the cosine."""
        counts = Counter(_grams(tokens, n))
        return {
            gram: count * math.log(len(golds) / max(1, document_frequency[gram]))
            for gram, count in counts.items()
        }

    scores = []
    for text, row in zip(map(words, predictions), golds, strict=True):
        cosines = [_cosine(vector(text, n), vector(gold, n)) for gold in row for n in ORDERS]
        scores.append(math.fsum(cosines) / len(cosines))
    return CIDER_SCALE * math.fsum(scores) / len(scores)


def _cosine(a: dict[Gram, float], b: dict[Gram, float]) -> float:
    norms = math.hypot(*a.values()) * math.hypot(*b.values())
    return math.fsum(a[gram] * b[gram] for gram in a.keys() & b.keys()) / norms if norms else 0.0


def _grams(tokens: list[str], n: int) -> list[Gram]:
    return [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
