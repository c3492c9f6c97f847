"""Text-generation metrics for answer texts: BLEU, ROUGE, METEOR, CIDEr and perplexity.

BLEU, ROUGE and METEOR are computed by sacrebleu, rouge-score and nltk, the extra ``text``; nothing is
downloaded. All but BLEU, which has its own tokenisation, compare ``words``: lower case, without
punctuation. Rates are in percent. The metrics were made for sentences and are low for short answers: a
single word has no 4-gram, and METEOR gives 50 to a perfect one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from qa_arch.errors import DataError
from qa_arch.extras.text_metrics.cider import cider
from qa_arch.extras.text_metrics.libraries import bleu, meteor, meteor_stages, rouge
from qa_arch.types.text import Example, QuestionSet

BLEU_ORDERS = (1, 2, 3, 4)


def score(
    questions: QuestionSet,
    texts: Mapping[str, str],
    probabilities: Mapping[str, Mapping[str, float]] | None = None,
) -> dict[str, Any]:
    """Name -> value of every text metric, over the answerable questions that have a prediction.

    BLEU is a corpus score against all golds of a question. ROUGE and METEOR take the best gold of each
    question and average over questions. CIDEr averages over the golds of a question, as it is defined. An
    abstention has no words and scores 0. With ``probabilities`` (question id -> candidate text ->
    probability) the perplexity of the predicted answers is added, each answer counted as one token.

    Raises DataError if no answerable question has a prediction, or if a prediction is not among its
    candidates; UnavailableError without the libraries.
    """
    scored = [e for e in questions.examples if e.answerable and e.id in texts]
    if not scored:
        raise DataError(f"{questions.name}: no answerable question has a prediction; text metrics need one")
    predictions = [texts[example.id] for example in scored]
    references = [list(dict.fromkeys(gold.text for gold in example.answers)) for example in scored]
    return {
        "questions": len(scored),
        **{f"bleu_{order}": bleu(predictions, references, order=order) for order in BLEU_ORDERS},
        **rouge(predictions, references),
        "meteor": meteor(predictions, references),
        "meteor_stages": list(meteor_stages()),
        "cider": cider(predictions, references),
        "cider_d": cider(predictions, references, variant="cider-d"),
        **({} if probabilities is None else {"perplexity": _answer_perplexity(texts, scored, probabilities)}),
    }


def perplexity(values: Sequence[float], *, logs: bool = False) -> float:
    """exp of the mean negative log-probability of the tokens: the inverse of their geometric mean.

    ``values``: probabilities in 0..1, or their natural logarithms with ``logs``; a probability of 0 gives
    infinity. Raises DataError for no values, or a value out of range.
    """
    if not values:
        raise DataError("perplexity: there is no token; give at least one probability")
    for value in values:
        if not (value <= 0 if logs else 0 <= value <= 1):
            expected = "a log-probability, at most 0" if logs else "a probability, 0 to 1"
            raise DataError(f"perplexity: {value} is not {expected}")
    total = math.fsum(values if logs else (math.log(v) if v else -math.inf for v in values))
    return math.inf if total == -math.inf else math.exp(-total / len(values))


def _answer_perplexity(
    texts: Mapping[str, str], scored: Sequence[Example], probabilities: Mapping[str, Mapping[str, float]]
) -> float | None:
    """Perplexity of the predicted answers; None if the model abstained from every question."""
    answered = {example.id: texts[example.id] for example in scored if texts[example.id]}
    for id_, text in answered.items():
        if text not in probabilities.get(id_, {}):
            raise DataError(
                f"{id_}: the prediction {text!r} is none of its candidates; give the n-best file of the same"
                " predictions"
            )
    return perplexity([probabilities[id_][text] for id_, text in answered.items()]) if answered else None
