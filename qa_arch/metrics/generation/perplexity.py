"""How surprised a model is by the tokens of a text; from probabilities, whatever gave them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from qa_arch.errors import DataError


def perplexity(values: Sequence[float], *, logs: bool = False) -> float:
    """exp of the mean negative log-probability of the tokens: the inverse of their geometric mean.

    ``values``: probabilities in 0..1, or with ``logs`` natural logarithms of such; one of probability 0
    makes it infinite. Raises DataError for none, or for one out of range.
    """
    if not values:
        raise DataError("perplexity: there is no token; give at least one probability")
    for value in values:
        if not (value <= 0 if logs else 0 <= value <= 1):
            expected = "a log-probability, at most 0" if logs else "a probability, 0 to 1"
            raise DataError(f"perplexity: {value} is not {expected}")
    total = math.fsum(values if logs else (math.log(v) if v else -math.inf for v in values))
    return math.inf if total == -math.inf else math.exp(-total / len(values))
