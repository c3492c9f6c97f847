"""How a passage attends to a question: what the service answers with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, eq=False)
class AttentionMap:
    """Attention of a match-LSTM over the question, in the window that holds the best span."""

    weights: npt.NDArray[np.floating]
    """(2, C, Q + 1): direction, unit of the passage, unit of the question and, last, the word "nothing". Each
    unit's sum to 1."""
    context: npt.NDArray[np.int32]
    """(C, 2) characters of each unit in the passage, end exclusive."""
    question: npt.NDArray[np.int32]
    """(Q, 2) the same in the question."""
