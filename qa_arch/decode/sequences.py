"""Step logits of a sequence model -> chosen tokens -> one ranked list of answers per question.

Axes: ``N`` windows, ``S`` steps, ``T`` tokens of a window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from qa_arch.decode.answers import rank
from qa_arch.decode.candidates import Ranking, SpanCandidates, WindowRecord
from qa_arch.types.tensors import StepLogits, log_choices
from qa_arch.types.text import Example


@dataclass(frozen=True, slots=True, eq=False)
class SequenceCandidates(WindowRecord):
    """Best token sequence of each of N windows, and the score of "no answer"."""

    tokens: np.ndarray
    """(N, S) int32: the tokens chosen, in order, indices on the window's token axis; -1 after the last."""
    score: np.ndarray
    """(N,) float32: log-probability of the choices including the stop; -inf without tokens."""
    null: np.ndarray
    """(N,) float32: log-probability of stopping at the first step."""
    any_token: np.ndarray | None = None
    """(N,) float32: log-probability of not doing so; None where null odds are those against the best."""

    def __len__(self) -> int:
        return len(self.score)


@torch.no_grad()
def best_sequences(logits: StepLogits, *, any_span: bool = False) -> SequenceCandidates:
    """Greedy choice at each step, up to the first stop (Wang & Jiang 2016, section 3.3).

    The first choice is the best token even if "no answer" is better; ``null`` has that score. With
    ``any_span`` the probability of any sequence is given beside it.
    """
    choices = log_choices(logits)  # (N, S, T + 1)
    stop = choices.shape[2] - 1
    best, chosen = choices.max(dim=2)
    best[:, 0], chosen[:, 0] = choices[:, 0, :stop].max(dim=1)
    stopped = (chosen == stop).cumsum(1)
    counts = (stopped - (chosen == stop).long()) == 0  # up to and including the first stop
    score = best.masked_fill(~counts, 0.0).sum(1)
    score = score.masked_fill(score.isnan(), -torch.inf)
    tokens = chosen.masked_fill(stopped > 0, -1).to(torch.int32)
    null = choices[:, 0, stop]
    null = null.masked_fill(null.isnan(), torch.inf)
    any_token = choices[:, 0, :stop].logsumexp(1).cpu().numpy() if any_span else None
    return SequenceCandidates(tokens.cpu().numpy(), score.cpu().numpy(), null.cpu().numpy(), any_token)


def rank_sequences(
    candidates: SequenceCandidates,
    examples: Sequence[Example],
    origin: np.ndarray,
    char_start: np.ndarray,
    char_end: np.ndarray,
    *,
    window: np.ndarray,
    example: np.ndarray,
    expected: np.ndarray,
    n_best: int = 20,
) -> Ranking:
    """Merge the windows of each question as ``rank`` does, with one sequence per window.

    ``origin`` (N,) is the row, in the token columns ``char_start`` and ``char_end``, that position 0 of
    each window would have. Consecutive tokens form a span of the text; several such runs are joined by
    spaces.
    """
    number = np.arange(len(candidates))[:, None]
    zeros = np.zeros(len(candidates), np.float32)
    starts = np.zeros((len(candidates), 1), np.int32)
    # Sequence n is ranked as the unique "span" [n, n + 1).
    score, null, any_token = candidates.score[:, None], candidates.null, candidates.any_token
    spans = SpanCandidates(starts, starts, score, zeros[:, None], null, zeros, any_token)
    ranking = rank(
        spans,
        examples,
        window=window,
        example=example,
        char_start=number,
        char_end=number + 1,
        expected=expected,
        n_best=n_best,
    )
    start, end, texts = ranking.start.copy(), ranking.end.copy(), {}
    for row in np.flatnonzero(ranking.end > ranking.start).tolist():
        n = int(ranking.start[row])
        tokens = candidates.tokens[n]
        runs = _runs(tokens[tokens >= 0] + origin[n])
        cuts = [(int(char_start[first]), int(char_end[last])) for first, last in runs]
        if len(cuts) == 1:
            start[row], end[row] = cuts[0]
            continue
        start[row] = end[row] = -1
        context = examples[example[n]].context
        texts[row] = " ".join(context[first:last] for first, last in cuts)
    return replace(ranking, start=start, end=end, texts=texts)


def _runs(tokens: np.ndarray) -> list[tuple[int, int]]:
    """(first, last) of each run of consecutive tokens."""
    cuts = np.flatnonzero(np.diff(tokens) != 1) + 1
    return [(int(run[0]), int(run[-1])) for run in np.split(tokens, cuts)]
