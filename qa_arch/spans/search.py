"""Logits of windows -> the best spans or token sequences of each window -> ranked answers, by a collector.

Axes: ``N`` windows, ``T`` tokens, ``K`` spans per window, ``L`` longest answer in tokens, ``S`` steps of a
sequence. Every search is vectorised over the batch and runs on the device of the logits. Ties have a fixed
order, so that the same logits give the same spans on every machine and in every batch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from qa_arch.config.schema import Decode
from qa_arch.errors import ConfigError, RunError
from qa_arch.features.windows import FeatureTable
from qa_arch.spans.ranking import Ranking, SpanCandidates, WindowRecord, char_spans, rank
from qa_arch.types.tensors import (
    LOWEST,
    Batch,
    SpanLogits,
    StepLogits,
    log_choices,
    log_sum_of_spans,
)
from qa_arch.types.text import Example, QuestionSet

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

    ``band`` is exact: the best of all pairs; on a tie the earlier start wins, then the shorter span. ``grid``
    pairs the ``n_best`` best starts with the ``n_best`` best ends, as the common SQuAD script does; on a tie
    the better start wins. ``greedy`` takes the best start and then the best end it allows, one span per
    window. NaN and +inf logits count as -inf, with a warning. ``any_span`` also sums up all spans from start
    to end, whatever the search and its limit.

    Raises ConfigError if ``search`` is unknown or a limit is below 1.
    """
    if n_best < 1 or max_answer_tokens < 1:
        raise ConfigError(
            f"decode: n_best={n_best} and max_answer_tokens={max_answer_tokens} must both be at least 1"
        )
    start, end = _usable(logits.start.float()), _usable(logits.end.float())
    null_start, null_end = _null_halves(logits)
    k = 1 if search == "greedy" else n_best
    if search == "grid":
        first, last, score = _grid(start, end, null_start, null_end, max_answer_tokens, k)
    elif search == "band":
        first, last, score = _band(start, end, max_answer_tokens, k)
    elif search == "greedy":  # all but the best start (the earliest on a tie) are closed
        chosen = torch.zeros_like(start, dtype=torch.bool).scatter_(1, _stable_topk(start, 1)[1], True)
        first, last, score = _band(start.masked_fill(~chosen, NEVER), end, max_answer_tokens, k)
    else:
        raise ConfigError(f"decode: search={search!r} is unknown; choose band, grid or greedy")
    empty = score == NEVER
    first, last = first.masked_fill(empty, 0), last.masked_fill(empty, 0)
    places = (0, k - score.shape[1])  # filled up to k
    tokens = (pad(x, places).to(torch.int32) for x in (first, last))
    starts, ends = start.gather(1, first), end.gather(1, last)
    scores = (pad(x.masked_fill(empty, NEVER), places, value=NEVER) for x in (starts, ends))
    columns = [*tokens, *scores, null_start, null_end]
    if any_span:
        total = log_sum_of_spans(start, end)
        columns.append(total.masked_fill(total <= LOWEST, NEVER))
    return SpanCandidates(*(x.cpu().numpy() for x in columns))


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


def _band(start: Tensor, end: Tensor, limit: int, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The exact ``k`` best pairs of the band: first tokens, last tokens, scores, (N, K) each.

    Only the ``k`` starts with the best pairs matter, since ``k`` better pairs, the best of each of these,
    precede any other start. That leaves K × L pairs to rank instead of T × L.
    """
    limit = min(limit, start.shape[1])
    reach = start + _sliding_max(end, limit)
    starts = _stable_topk(reach, k)[1].sort(dim=1).values  # in text order: it settles equal scores
    ends = starts[:, :, None] + torch.arange(limit, device=end.device)  # (N, K, L)
    reached = pad(end, (0, limit - 1), value=NEVER).gather(1, ends.flatten(1)).view_as(ends)
    score, place = _stable_topk((reached + start.gather(1, starts)[:, :, None]).flatten(1), k)
    first = starts.gather(1, place // limit)
    return first, first + place % limit, score


def _sliding_max(values: Tensor, width: int) -> Tensor:
    """``out[t] = max(values[t : t + width])`` along the last axis, in log2(width) steps."""
    reached = 1
    while reached < width:
        step = min(reached, width - reached)
        ahead = pad(values[:, step:], (0, step), value=NEVER)
        values, reached = torch.maximum(values, ahead), reached + step
    return values


def _grid(
    start: Tensor, end: Tensor, null_start: Tensor, null_end: Tensor, limit: int, k: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Best pairs among ``k`` starts × ``k`` ends: first tokens, last tokens, scores, (N, K) each.

    As in the common script, the null token competes with the context tokens for the ``k`` places of each
    list.
    """
    starts, s = _preselect(start, null_start, k)
    ends, e = _preselect(end, null_end, k)
    length = e[:, None, :] - s[:, :, None]
    pairs = starts[:, :, None] + ends[:, None, :]
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


Part = tuple[np.ndarray, SpanCandidates | SequenceCandidates]


@dataclass(eq=False)
class SpanCollector:
    """The best spans or sequences of windows, in any order; ``result`` joins them by question."""

    questions: QuestionSet
    table: FeatureTable
    decode: Decode
    parts: list[Part] = field(default_factory=list)

    def add(self, batch: Batch, logits: SpanLogits | StepLogits) -> None:
        """Decode one batch; its ``index`` holds the feature rows of its windows."""
        any_span = self.decode.null_odds == "any"
        if isinstance(logits, StepLogits):
            candidates: SpanCandidates | SequenceCandidates = best_sequences(logits, any_span=any_span)
        else:
            candidates = best_spans(
                logits,
                search=self.decode.search,
                max_answer_tokens=self.decode.max_answer_tokens,
                n_best=self.decode.n_best,
                any_span=any_span,
            )
        self.parts.append((batch.index.cpu().numpy(), candidates))

    def merge(self, others: Iterable[list[Part]]) -> None:
        """Replace the parts by those of all processes."""
        self.parts = [part for parts in others for part in parts]

    def result(self) -> Ranking:
        """The candidates of each question, in the order of the set.

        Raises RunError where a window was never read, naming the questions unless none was.
        """
        if not self.parts:
            raise RunError(
                f"none of the {len(self.table)} windows of {self.questions.name} was read: run the model on"
                " every window of the set once"
            )
        index = np.concatenate([rows for rows, _ in self.parts])
        window, first = np.unique(index, return_index=True)
        candidates = SpanCandidates.concatenate([part for _, part in self.parts]).take(first)
        table, examples = self.table, self.questions.examples
        origin = table.token_start[window] - table.context_at[window]
        about: Any = {
            "window": window,
            "example": table.example[window],
            "expected": np.bincount(table.example, minlength=len(examples)),
            "n_best": self.decode.n_best,
        }
        if isinstance(candidates, SequenceCandidates):
            return rank_sequences(candidates, examples, origin, table.char_start, table.char_end, **about)
        char_start, char_end = char_spans(candidates, origin, table.char_start, table.char_end)
        dedupe = self.decode.search != "grid"
        return rank(candidates, examples, char_start=char_start, char_end=char_end, dedupe=dedupe, **about)
