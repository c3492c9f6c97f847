"""Sequences out of a model that scores the next token: greedily, or by beam search.

Axes: ``B`` rows, ``K`` beams of a row, ``N`` prefixes, ``T`` tokens so far, ``V`` vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

NextScores = Callable[[Int[Tensor, "N T"], Int[Tensor, "N"]], Float[Tensor, "N V"]]
"""Scores (logits) of the token that follows each prefix, given the row of the batch that it belongs to."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A sequence that a model wrote."""

    ids: tuple[int, ...]
    """What follows the prompt, without the end token."""
    finished: bool
    """Whether the end token followed; False where the sequence was cut at the largest length."""
    log_prob: float
    """Sum of the log-probabilities of ``ids`` and of the end token."""

    def score(self, alpha: float) -> float:
        """log P(Y) / ((5 + |Y|) / 6)^alpha (Wu et al. 2016, eq. 14); |Y| counts the end token.

        The reward for length that keeps short sequences from winning by having fewer factors; none at 0.
        """
        return self.log_prob / ((5 + len(self.ids) + self.finished) / 6) ** alpha


@torch.inference_mode()
def greedy(
    next_scores: NextScores, prompt: Int[Tensor, "B T"], *, end: int, max_length: int
) -> list[Hypothesis]:
    """For each row the most probable token at each step, up to ``end`` or ``max_length`` tokens."""
    ids, log_prob = prompt, torch.zeros(len(prompt), device=prompt.device)
    alive = torch.ones_like(log_prob, dtype=torch.bool)
    for _ in range(max_length):
        row = alive.nonzero()[:, 0]
        if not len(row):
            break
        best, token = next_scores(ids[row], row).float().log_softmax(-1).max(-1)
        log_prob[row] += best
        alive[row] = token != end
        ids = torch.cat([ids, torch.full_like(ids[:, :1], end)], dim=1)
        ids[row, -1] = token
    return _hypotheses(ids[:, prompt.shape[1] :], ~alive, log_prob, end)


@torch.inference_mode()
def beam_search(
    next_scores: NextScores,
    prompt: Int[Tensor, "B T"],
    *,
    end: int,
    max_length: int,
    beams: int = 4,
    alpha: float = 0.6,
) -> list[list[Hypothesis]]:
    """For each row up to ``beams`` hypotheses, the one of the highest ``score(alpha)`` first.

    A hypothesis that ends keeps its place among the ``beams`` and is read no further: the search goes on with
    the others, and with a single beam it is ``greedy``. Within a step hypotheses compete by probability;
    the penalty ranks the results, among them those that are cut at ``max_length`` tokens.
    """
    B, K, device = len(prompt), beams, prompt.device
    ids = prompt[:, None].repeat(1, K, 1)
    log_prob = torch.full((B, K), -math.inf, device=device)  # -inf: nothing there yet
    log_prob[:, 0] = 0.0
    finished = torch.zeros(B, K, dtype=torch.bool, device=device)
    for _ in range(max_length):
        row, beam = (~finished & log_prob.isfinite()).nonzero(as_tuple=True)
        if not len(row):
            break
        following = next_scores(ids[row, beam], row).float().log_softmax(-1)
        V = following.shape[1]
        longer = torch.full((B, K, V), -math.inf, device=device)
        longer[row, beam] = log_prob[row, beam, None] + following
        # A finished hypothesis comes before all others, in place of what would follow its end.
        longer[..., end] = longer[..., end].masked_fill(finished, math.inf)
        best, choice = longer.flatten(1).topk(min(K, K * V), dim=1)
        parent, token = choice // V, choice % V
        ids = torch.cat([_take(ids, parent), token[..., None]], dim=2)
        over = best == math.inf
        log_prob = torch.where(over, _take(log_prob, parent), best)
        finished = over | ((token == end) & best.isfinite())
    written = ids[..., prompt.shape[1] :]
    results = []
    for b in range(B):
        some = log_prob[b].isfinite()
        hypotheses = _hypotheses(written[b, some], finished[b, some], log_prob[b, some], end)
        results.append(sorted(hypotheses, key=lambda h: h.score(alpha), reverse=True))
    return results


def _take(x: Tensor, beam: Int[Tensor, "B K"]) -> Tensor:
    """``x`` (B, K, ...) of the chosen beams."""
    return x[torch.arange(len(x), device=x.device)[:, None], beam]


def _hypotheses(ids: Tensor, finished: Tensor, log_prob: Tensor, end: int) -> list[Hypothesis]:
    """Rows of ``ids`` up to their first end token."""
    rows = zip(ids.tolist(), finished.tolist(), log_prob.tolist(), strict=True)
    return [
        Hypothesis(tuple(tokens[: tokens.index(end)] if done else tokens), done, total)
        for tokens, done, total in rows
    ]
