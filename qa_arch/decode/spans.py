"""Logits of a batch of windows -> the best spans of each window.

Axes: ``N`` windows, ``T`` tokens, ``K`` spans per window, ``L`` longest answer in tokens. Every search is
vectorised over the batch and runs on the device of the logits. Ties have a fixed order, so that the same
logits give the same spans on every machine and in every batch.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from qa_arch.decode.candidates import SpanCandidates
from qa_arch.errors import ConfigError
from qa_arch.types.tensors import LOWEST, SpanLogits, log_sum_of_spans, span_scores

Search = Literal["band", "grid", "greedy"]
NEVER = -torch.inf
log = logging.getLogger(__name__)


@torch.no_grad()
def best_spans(
    logits: SpanLogits,
    *,
    search: Search = "band",
    max_answer_tokens: int = 30,
    n_best: int = 20,
    any_span: bool = False,
) -> SpanCandidates:
    """The ``n_best`` spans of every window with ``0 <= end - start < max_answer_tokens``, best first.

    ``band`` is exact: the best of all pairs; on a tie the earlier start wins, then the
    shorter span. ``grid`` pairs the ``n_best`` best starts with the ``n_best`` best ends, as the common
    SQuAD script does; on a tie the better start wins. ``greedy`` takes the best start and then the
    best end it allows, one span per window. Where start and end are scored together (``pair``), each
    search adds that score to the sum of the two; ``band`` stays exact. NaN and +inf logits count as -inf,
    with a warning. ``any_span`` also sums up all spans from start to end, whatever the search and its limit.

    Raises ConfigError if ``search`` is unknown or a limit is below 1.
    """
    if n_best < 1 or max_answer_tokens < 1:
        raise ConfigError(
            f"decode: n_best={n_best} and max_answer_tokens={max_answer_tokens} must both be at least 1"
        )
    start, end = _usable(logits.start.float()), _usable(logits.end.float())
    pair = None if logits.pair is None else _usable(logits.pair.float())
    null_start, null_end = _null_halves(logits)
    if search == "band":
        spans = _band(start, end, pair, max_answer_tokens, n_best)
    elif search == "grid":
        spans = _grid(start, end, pair, null_start, null_end, max_answer_tokens, n_best)
    elif search == "greedy":
        spans = _band(_only_best(start), end, pair, max_answer_tokens, 1)
    else:
        raise ConfigError(f"decode: search={search!r} is unknown; choose band, grid or greedy")
    k = 1 if search == "greedy" else n_best
    candidates = _candidates(start, end, pair, *spans, null_start, null_end, k)
    return replace(candidates, any_span=_sum_of_spans(start, end, pair)) if any_span else candidates


def _sum_of_spans(start: Tensor, end: Tensor, pair: Tensor | None) -> np.ndarray:
    """(N,) log Σ exp(score) over all spans that end where they start or behind; -inf without any."""
    if pair is None:
        total = log_sum_of_spans(start, end)
        total = total.masked_fill(total <= LOWEST, NEVER)
    else:
        null = torch.zeros_like(start[:, 0])
        total = span_scores(SpanLogits(start, end, null, null, pair=pair)).flatten(1).logsumexp(1)
    return total.cpu().numpy()


def _usable(logits: Tensor) -> Tensor:
    """The logits with NaN and +inf replaced by -inf, in their shape."""
    if logits.numel() == 0 or logits.amax() < torch.inf:  # the maximum of a NaN is NaN
        return logits
    usable = logits < torch.inf
    log.warning("%d span logits are NaN or infinite and are never chosen", int((~usable).sum()))
    return logits.masked_fill(~usable, NEVER)


def _null_halves(logits: SpanLogits) -> tuple[Tensor, Tensor]:
    """The null's start and end logits, (N,) each; NaN becomes +inf, which a minimum over windows ignores."""
    end = logits.null_end.float()
    if logits.verifier is not None:
        end = end + logits.verifier_weight * logits.verifier.float()
    halves = torch.stack([logits.null_start.float(), end])
    broken = halves.sum(0).isnan()
    if broken.any():
        log.warning("the null score of %d windows is NaN and is left out", int(broken.sum()))
        halves = halves.masked_fill(broken, torch.inf)
    return halves[0], halves[1]


def _band(
    start: Tensor, end: Tensor, pair: Tensor | None, limit: int, k: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The exact ``k`` best pairs of the band: first tokens, last tokens, scores, (N, K) each.

    Only the ``k`` starts with the best pairs matter, since ``k`` better pairs, the best of each of these,
    precede any other start. That leaves K × L pairs to rank instead of T × L.
    """
    rows, tokens = start.shape
    limit = min(limit, tokens)
    if pair is None:
        reach = start + _sliding_max(end, limit)
    else:
        every = torch.arange(tokens, device=start.device).expand(rows, -1)
        reach = start + _ends_in_reach(end, pair, every, limit).amax(2)
    starts = _stable_topk(reach, k)[1].sort(dim=1).values  # in text order: it settles equal scores
    spans = _ends_in_reach(end, pair, starts, limit) + start.gather(1, starts)[:, :, None]
    score, place = _stable_topk(spans.flatten(1), k)
    first = starts.gather(1, place // limit)
    return first, first + place % limit, score


def _ends_in_reach(end: Tensor, pair: Tensor | None, starts: Tensor, limit: int) -> Tensor:
    """Scores of the ends of spans from ``starts`` (N, K), by length: (N, K, L); -inf beyond the window."""
    ends = starts[:, :, None] + torch.arange(limit, device=end.device)
    scores = pad(end, (0, limit - 1), value=NEVER).gather(1, ends.flatten(1)).view_as(ends)
    return scores if pair is None else scores + _together(pair, starts[:, :, None], ends)


def _together(pair: Tensor, starts: Tensor, ends: Tensor) -> Tensor:
    """``pair`` of the spans from ``starts`` (N, K, 1) to ``ends`` (N, K or 1, L): (N, K, L)."""
    row = torch.arange(len(pair), device=pair.device)[:, None, None]
    return pair[row, starts, ends.clamp(max=pair.shape[2] - 1)]


def _sliding_max(values: Tensor, width: int) -> Tensor:
    """``out[t] = max(values[t : t + width])`` along the last axis, in log2(width) steps."""
    reached = 1
    while reached < width:
        step = min(reached, width - reached)
        ahead = pad(values[:, step:], (0, step), value=NEVER)
        values, reached = torch.maximum(values, ahead), reached + step
    return values


def _grid(
    start: Tensor,
    end: Tensor,
    pair: Tensor | None,
    null_start: Tensor,
    null_end: Tensor,
    limit: int,
    k: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Best pairs among ``k`` starts × ``k`` ends: first tokens, last tokens, scores, (N, K) each.

    As in the common script, the null token competes with the context tokens for the ``k`` places of each
    list.
    """
    starts, s = _preselect(start, null_start, k)
    ends, e = _preselect(end, null_end, k)
    length = e[:, None, :] - s[:, :, None]
    pairs = (
        ends[:, None, :] if pair is None else ends[:, None, :] + _together(pair, s[:, :, None], e[:, None])
    )
    pairs = starts[:, :, None] + pairs
    pairs.masked_fill_((length < 0) | (length >= limit), NEVER)
    score, index = _stable_topk(pairs.flatten(1), k)
    width = s.shape[1]
    return s.gather(1, index // width), e.gather(1, index % width), score


def _preselect(logits: Tensor, null: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The ``k`` best logits and their tokens, the null competing for the last of ``k`` places."""
    top, token = _stable_topk(logits, k)
    if top.shape[1] == k:
        top[:, -1].masked_fill_(null > top[:, -1], NEVER)
    return top, token


def _only_best(start: Tensor) -> Tensor:
    """The start logits with all but the best (the earliest on a tie) at -inf."""
    chosen = torch.zeros_like(start, dtype=torch.bool).scatter_(1, _stable_topk(start, 1)[1], True)
    return start.masked_fill(~chosen, NEVER)


def _stable_topk(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The ``k`` largest values of each row and their indices; ties in order of their index.

    ``topk`` returns ties in any order. The (k+1)-th value shows which rows have ties, and only these are
    sorted in full.
    """
    top, index = values.topk(min(k + 1, values.shape[1]))
    tied = ((top[:, 1:] == top[:, :-1]) & (top[:, 1:] > NEVER)).any(1).nonzero().squeeze(1)
    top, index = top[:, :k], index[:, :k]
    if len(tied):
        ordered = values[tied].sort(dim=1, descending=True, stable=True)
        top, index = top.clone(), index.clone()
        top[tied], index[tied] = ordered.values[:, :k], ordered.indices[:, :k]
    return top, index


def _candidates(
    start: Tensor,
    end: Tensor,
    pair: Tensor | None,
    first: Tensor,
    last: Tensor,
    score: Tensor,
    null_start: Tensor,
    null_end: Tensor,
    k: int,
) -> SpanCandidates:
    """The record of the best spans, (N, K') each with K' <= ``k``, filled up to ``k`` places.

    What a start and an end score together counts with the end.
    """
    empty = score == NEVER
    first, last = first.masked_fill(empty, 0), last.masked_fill(empty, 0)
    fill = (0, k - score.shape[1])
    tokens = (pad(x, fill).to(torch.int32) for x in (first, last))
    starts, ends = start.gather(1, first), end.gather(1, last)
    if pair is not None:
        ends = ends + pair.flatten(1).gather(1, first * pair.shape[2] + last)
    logits = (pad(x.masked_fill(empty, NEVER), fill, value=NEVER) for x in (starts, ends))
    return SpanCandidates(*(x.cpu().numpy() for x in (*tokens, *logits, null_start, null_end)))
