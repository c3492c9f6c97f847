"""Predict answerability from half of the input: the question alone, or the passage alone.

    python -m baselines.artefacts --train TRAIN --data DATA

Whether a passage answers a question cannot be known without reading both. Any AUC above 50 is an artefact of
how the questions were written (Gururangan et al. 2018; Kaushik & Lipton 2018); judge a model by what it adds.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from qa_arch.data.sources import open_passages
from qa_arch.data.splits import require_disjoint
from qa_arch.errors import DataError, QaArchError
from qa_arch.metrics.abstention import auroc_values
from qa_arch.metrics.significance import mean_interval
from qa_arch.types import QuestionSet

_WORD = re.compile(r"\w+|[^\w\s]")
ORDER = {"question": 2, "context": 1}
"""Input -> length of its longest n-grams, in words."""
Floats = npt.NDArray[np.float64]


def rank(train: QuestionSet, scored: QuestionSet, half: str) -> Floats:
    """(N,) log-odds of "answerable" for ``scored``, by a logistic regression fitted on ``train``.

    Features are the lower-case n-grams of ``half`` that occur in at least two training questions; the loss is
    the summed log loss plus half the squared norm. Raises DataError unless ``train`` has answerable and
    unanswerable questions.
    """
    from scipy.optimize import minimize
    from scipy.special import expit, log_expit

    sign = np.where(answerable(train), 1.0, -1.0)
    if abs(sign.sum()) == len(sign):  # a single class
        raise DataError(f"{train.name}: fitting needs both answerable and unanswerable questions")
    train_ngrams, scored_ngrams = (
        [_ngrams(getattr(e, half), ORDER[half]) for e in questions.examples] for questions in (train, scored)
    )
    counts = Counter(ngram for ngrams in train_ngrams for ngram in ngrams)
    columns = {ngram: n for n, ngram in enumerate(sorted(g for g in counts if counts[g] > 1), start=1)}
    rows = _rows(train_ngrams, columns)

    def loss(weight: Floats) -> tuple[float, Floats]:
        # The intercept, column 0, is not penalised.
        scores, penalised = sign * (rows @ weight), np.append(0.0, weight[1:])
        value = penalised @ penalised / 2 - log_expit(scores).sum()
        return value, penalised - rows.T @ (sign * expit(-scores))  # as (log σ(x))' = σ(-x)

    fitted = minimize(loss, np.zeros(len(columns) + 1), jac=True, method="L-BFGS-B", options={"maxiter": 300})
    return np.asarray(_rows(scored_ngrams, columns) @ fitted.x)


def answerable(questions: QuestionSet) -> npt.NDArray[np.bool_]:
    return np.array([example.answerable for example in questions.examples])


def _ngrams(text: str, order: int) -> set[str]:
    words = _WORD.findall(text.lower())
    return {
        " ".join(words[start : start + n]) for n in range(1, order + 1) for start in range(len(words) - n + 1)
    }


def _rows(texts: Iterable[set[str]], columns: Mapping[str, int]) -> Any:
    """Sparse (N, V + 1) indicators of n-grams; the first column, all ones, is the intercept."""
    from scipy.sparse import csr_array

    ids = [[0, *sorted(columns[ngram] for ngram in ngrams if ngram in columns)] for ngrams in texts]
    ends, flat = np.cumsum([0, *map(len, ids)]), np.concatenate([*map(np.array, ids)])
    return csr_array((np.ones(len(flat)), flat, ends), shape=(len(ids), len(columns) + 1))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="baselines.artefacts", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--train", required=True, help="questions to fit on: a file or hub:NAME:SPLIT")
    parser.add_argument("--data", required=True, help="questions to rank, from other articles")
    args = parser.parse_args(argv)
    try:
        train, scored = (open_passages(source) for source in (args.train, args.data))
        require_disjoint(train=train, data=scored)
        for half in ORDER:
            values = auroc_values(rank(train, scored, half), answerable(scored))
            if values is None:
                raise DataError(f"{args.data}: needs both answerable and unanswerable questions")
            numbers = np.array(scored.article_numbers)
            # All are 0 in a single article, which says nothing of the variance between articles.
            low, high = mean_interval(100 * values[None], numbers if numbers.any() else None)
            print(f"{half} alone: AUC {100 * values.mean():.1f} (95% {low:.1f} to {high:.1f})")
    except QaArchError as error:
        print(f"baselines.artefacts: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
