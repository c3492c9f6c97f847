"""Metrics of the generation literature for answer texts: BLEU, ROUGE, METEOR, perplexity; CIDEr beside.

BLEU, ROUGE and METEOR come from sacrebleu, rouge-score and nltk, the extra ``text``; nothing is ever
fetched. All but BLEU, which has its own tokenisation, compare ``words``: lower case, without
punctuation. Rates are in percent. Short answers are hard on these metrics: a single word has no
4-gram, and METEOR halves even a perfect one. They were made for sentences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qa_arch.errors import DataError
from qa_arch.metrics.generation.cider import cider
from qa_arch.metrics.generation.libraries import bleu, meteor, meteor_stages, rouge
from qa_arch.metrics.generation.perplexity import perplexity
from qa_arch.types.text import Example, QuestionSet

__all__ = ["bleu", "cider", "meteor", "meteor_stages", "perplexity", "rouge", "text_metrics"]

BLEU_ORDERS = (1, 2, 3, 4)


def text_metrics(
    questions: QuestionSet,
    texts: Mapping[str, str],
    probabilities: Mapping[str, Mapping[str, float]] | None = None,
) -> dict[str, Any]:
    """Every text metric over the answerable questions that have a prediction, by its name.

    BLEU is one figure over the whole corpus against all golds of a question. ROUGE and METEOR take the
    gold of highest score, question by question, and average. CIDEr averages over the golds of a
    question, as it is defined. An abstention has no words and scores 0. With ``probabilities`` (of each
    question's candidate texts, as the model gave them) perplexity is that of the answers given, each as one
    token: how unsure the model was of what it said, whether or not it was right.

    Raises DataError where no answerable question has a prediction or one is none of its candidates,
    UnavailableError without the libraries.
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
        **({} if probabilities is None else {"perplexity": _unsureness(texts, scored, probabilities)}),
    }


def _unsureness(
    texts: Mapping[str, str], scored: Sequence[Example], probabilities: Mapping[str, Mapping[str, float]]
) -> float | None:
    """None where every question was abstained from."""
    said = {example.id: texts[example.id] for example in scored if texts[example.id]}
    for id_, text in said.items():
        if text not in probabilities.get(id_, {}):
            raise DataError(
                f"{id_}: the prediction {text!r} is none of its candidates; give the n-best file of the same"
                " predictions"
            )
    return perplexity([probabilities[id_][text] for id_, text in said.items()]) if said else None
