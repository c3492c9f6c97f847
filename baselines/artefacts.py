"""How well answerability is told from half of the input: from the question alone, or from the passage alone.

    python -m baselines.artefacts --train TRAIN --data DATA

Whether a passage answers a question cannot be known without reading both. What these rankers get above an AUC
of 50 is an artefact of how questions were written (Gururangan et al. 2018; Kaushik & Lipton 2018); a model is
to be judged by what it adds.
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
from qa_arch.metrics.confidence import auroc_values
from qa_arch.metrics.significance import mean_interval
from qa_arch.types.text import QuestionSet

_WORD = re.compile(r"\w+|[^\w\s]")
ORDER = {"question": 2, "context": 1}
"""Words of the longest n-gram, by what is read."""
Floats = npt.NDArray[np.float64]


def rank(train: QuestionSet, scored: QuestionSet, half: str, l2: float = 1.0) -> Floats:
    """(N,) log odds of "answerable" of ``scored``, by a logistic regression fitted on ``train``.

    Its features are the n-grams of ``half``, in lower case, that occur in two training questions or more.
    ``l2`` weighs half the squared norm beside the summed log loss. Raises DataError where all training
    questions are answerable, or none is.
    """
    from scipy.optimize import minimize
    from scipy.special import expit, log_expit

    sign = np.where(answerable(train), 1.0, -1.0)
    if abs(sign.sum()) == len(sign):
        raise DataError(f"{train.name}: answerable and unanswerable questions are needed to fit on")
    grams, others = (
        [_grams(getattr(e, half), ORDER[half]) for e in questions.examples] for questions in (train, scored)
    )
    often = Counter(gram for own in grams for gram in own)
    places = {gram: place for place, gram in enumerate(sorted(g for g in often if often[g] > 1), start=1)}
    rows = _rows(grams, places)

    def loss(weight: Floats) -> tuple[float, Floats]:
        scores, penalised = sign * (rows @ weight), np.append(0.0, weight[1:])
        value = l2 / 2 * penalised @ penalised - log_expit(scores).sum()
        return value, l2 * penalised - rows.T @ (sign * expit(-scores))

    fitted = minimize(loss, np.zeros(len(places) + 1), jac=True, method="L-BFGS-B", options={"maxiter": 300})
    return np.asarray(_rows(others, places) @ fitted.x)


def answerable(questions: QuestionSet) -> npt.NDArray[np.bool_]:
    return np.array([example.answerable for example in questions.examples])


def _grams(text: str, order: int) -> set[str]:
    words = _WORD.findall(text.lower())
    return {
        " ".join(words[start : start + n]) for n in range(1, order + 1) for start in range(len(words) - n + 1)
    }


def _rows(grams: Iterable[set[str]], places: Mapping[str, int]) -> Any:
    """Sparse (N, V + 1): 1 for an n-gram that occurs, and in the first column, the intercept's."""
    from scipy.sparse import csr_array

    known = [[0, *sorted(places[gram] for gram in own if gram in places)] for own in grams]
    ends, ids = np.cumsum([0, *map(len, known)]), np.concatenate([*map(np.array, known)])
    return csr_array((np.ones(len(ids)), ids, ends), shape=(len(known), len(places) + 1))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="baselines.artefacts", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--train", required=True, help="questions to fit on: a file or hub:NAME:SPLIT")
    parser.add_argument("--data", required=True, help="questions to rank, of other articles")
    args = parser.parse_args(argv)
    try:
        train, scored = (open_passages(source) for source in (args.train, args.data))
        require_disjoint(train=train, data=scored)
        for half in ORDER:
            values = auroc_values(rank(train, scored, half), answerable(scored))
            if values is None:
                raise DataError(f"{args.data}: answerable and unanswerable questions are needed")
            numbers = np.array(scored.article_numbers)
            low, high = mean_interval(100 * values[None], numbers if numbers.any() else None)
            print(f"{half} alone: AUC {100 * values.mean():.1f} (95% {low:.1f} .. {high:.1f})")
    except QaArchError as error:
        print(f"baselines.artefacts: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
