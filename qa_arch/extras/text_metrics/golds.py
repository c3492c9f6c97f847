"""Shared by the text metrics: the words of a text, and the check of predictions against golds."""

from __future__ import annotations

import re
from collections.abc import Sequence

from qa_arch.errors import DataError

References = Sequence[Sequence[str]]
"""One or more gold texts for each prediction, in the order of the predictions."""

_WORD = re.compile(r"\w+")


def words(text: str) -> list[str]:
    """The words of ``text`` in lower case: runs of letters, digits and underscores."""
    return _WORD.findall(text.lower())


def require_golds(predictions: Sequence[str], references: References) -> None:
    """Raise DataError without predictions, or if a prediction has no golds."""
    if not predictions or len(predictions) != len(references) or not all(references):
        raise DataError(
            f"{len(predictions)} predictions against {len(references)} lists of golds, of which"
            f" {sum(not golds for golds in references)} are empty; give each prediction its golds"
        )
