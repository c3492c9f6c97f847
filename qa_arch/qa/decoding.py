"""Logits of windows -> best spans or token sequences of each window -> ranked answers.

Axes: ``N`` windows, ``T`` tokens, ``K`` spans per window, ``L`` longest answer in tokens, ``S`` steps of a
sequence. Searches are vectorised over the batch and run on the device of the logits. Ties have a fixed
order, so that the same logits give the same spans on every machine and in every batch.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from qa_arch.config.schema import Decode
from qa_arch.errors import RunError
from qa_arch.features.windows import FeatureTable
from qa_arch.qa.ranking import Ranking, SpanCandidates, WindowColumns, char_spans, rank
from qa_arch.tensors import Batch, Logits, SpanLogits, StepLogits, log_choices
from qa_arch.types import Example, QuestionSet

Search = Literal["band", "grid", "greedy"]
NEG_INF = -torch.inf
log = logging.getLogger(__name__)


@torch.no_grad()
def best_spans(
    logits: SpanLogits,
    *,
    search: Search = "band",
    max_answer_tokens: int = 30,
    n_best: int = 20,
) -> SpanCandidates:
    """The ``n_best`` spans of every window with ``0 <= end - start < max_answer_tokens``, best first.

    ``band`` is exact: the best of all pairs; on a tie the earlier start wins, then the shorter span. ``grid``
    pairs the ``n_best`` best starts with the ``n_best`` best ends, like the common SQuAD script; on a tie
    the better start wins. ``greedy`` takes the best start and then the best end for it, one span per
    window. NaN and +inf logits count as -inf.
    """
    start, end = logits.start.float(), logits.end.float()
    valid = start < torch.inf, end < torch.inf  # False for NaN
    invalid = (~valid[0]).sum(1) + (~valid[1]).sum(1)
    start, end = (x.masked_fill(~ok, NEG_INF) for x, ok in zip((start, end), valid, strict=True))
    null_start, null_end = _null_halves(logits)
    k = 1 if search == "greedy" else n_best
    if search == "grid":
        first, last, score = _grid(start, end, null_start, null_end, max_answer_tokens, k)
    elif search == "band":
        first, last, score = _band(start, end, max_answer_tokens, k)
    else:  # mask all but the best start (the earliest on a tie)
        chosen = torch.zeros_like(start, dtype=torch.bool).scatter_(1, _stable_topk(start, 1)[1], True)
        first, last, score = _band(start.masked_fill(~chosen, NEG_INF), end, max_answer_tokens, k)
    unused = score == NEG_INF
    # An unused pair of the band may end beyond the window, where nothing can be gathered.
    first, last = first.masked_fill(unused, 0), last.masked_fill(unused, 0)
    padding = (0, k - score.shape[1])  # to k ranks
    tokens = (pad(x, padding).to(torch.int32) for x in (first, last))
    starts, ends = start.gather(1, first), end.gather(1, last)
    scores = (pad(x.masked_fill(unused, NEG_INF), padding, value=NEG_INF) for x in (starts, ends))
    return SpanCandidates(*(x.cpu().numpy() for x in (*tokens, *scores, null_start, null_end, invalid)))


def _null_halves(logits: SpanLogits) -> tuple[Tensor, Tensor]:
    """Start and end logit of the null, (N,) each; NaN becomes +inf, which a minimum over windows ignores."""
    end = logits.null_end.float()
    if logits.verifier is not None:
        end = end + logits.verifier_weight * logits.verifier.float()
    halves = torch.stack([logits.null_start.float(), end])
    halves = halves.masked_fill(halves.sum(0).isnan(), torch.inf)
    return halves[0], halves[1]


def _band(start: Tensor, end: Tensor, limit: int, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Exact ``k`` best pairs of the band: first tokens, last tokens, scores, (N, K) each.

    Only the ``k`` starts with the best pairs matter: the best pairs of these are ``k`` pairs that precede
    any pair of another start. That leaves K × L pairs to rank instead of T × L.
    """
    limit = min(limit, start.shape[1])
    # A running maximum gives the best end of every start without the T × L pairs.
    best_of_start = start + _sliding_max(end, limit)
    starts = _stable_topk(best_of_start, k)[1].sort(dim=1).values  # in text order, which breaks ties
    ends = starts[:, :, None] + torch.arange(limit, device=end.device)  # (N, K, L)
    # Past the last token there is no end: -inf, which no search selects.
    end_logit = pad(end, (0, limit - 1), value=NEG_INF).gather(1, ends.flatten(1)).view_as(ends)
    score, index = _stable_topk((end_logit + start.gather(1, starts)[:, :, None]).flatten(1), k)
    first = starts.gather(1, index // limit)
    return first, first + index % limit, score


def _sliding_max(values: Tensor, width: int) -> Tensor:
    """``out[t] = max(values[t : t + width])`` along the last axis, in log2(width) steps."""
    covered = 1
    while covered < width:
        # Windows may overlap in a maximum, so the last step need not be a power of two.
        step = min(covered, width - covered)
        ahead = pad(values[:, step:], (0, step), value=NEG_INF)
        values, covered = torch.maximum(values, ahead), covered + step
    return values


def _grid(
    start: Tensor, end: Tensor, null_start: Tensor, null_end: Tensor, limit: int, k: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Best pairs among ``k`` starts × ``k`` ends: first tokens, last tokens, scores, (N, K) each.

    As in the common script, the null token competes with context tokens for the ``k`` ranks of each list.
    """
    starts, s = _preselect(start, null_start, k)
    ends, e = _preselect(end, null_end, k)
    length = e[:, None, :] - s[:, :, None]
    pairs = starts[:, :, None] + ends[:, None, :]
    # The k starts and k ends were chosen apart, so a pair may run backwards or too long.
    pairs.masked_fill_((length < 0) | (length >= limit), NEG_INF)
    score, index = _stable_topk(pairs.flatten(1), k)
    width = s.shape[1]
    return s.gather(1, index // width), e.gather(1, index % width), score


def _preselect(logits: Tensor, null: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The ``k`` best logits and their tokens; a better null takes the last of ``k`` ranks."""
    top, token = _stable_topk(logits, k)
    if top.shape[1] == k:
        top[:, -1].masked_fill_(null > top[:, -1], NEG_INF)
    return top, token


def _stable_topk(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The ``k`` largest values of each row and their indices; ties in order of their index.

    ``topk`` returns ties in any order. The (k+1)-th value reveals which rows have ties; only these are fully
    sorted.
    """
    top, index = values.topk(min(k + 1, values.shape[1]))
    tied = ((top[:, 1:] == top[:, :-1]) & (top[:, 1:] > NEG_INF)).any(1).nonzero().squeeze(1)
    top, index = top[:, :k], index[:, :k]
    if len(tied):
        ordered = values[tied].sort(dim=1, descending=True, stable=True)
        top, index = top.clone(), index.clone()
        top[tied], index[tied] = ordered.values[:, :k], ordered.indices[:, :k]
    return top, index


@dataclass(frozen=True, slots=True, eq=False)
class SequenceCandidates(WindowColumns):
    """Best token sequence of each of N windows, and the score of "no answer"."""

    tokens: np.ndarray
    """(N, S) int32: chosen tokens in order, indices on the window's token axis; -1 after the last."""
    score: np.ndarray
    """(N,) float32: log-probability of the choices, including the stop; -inf without tokens."""
    null: np.ndarray
    """(N,) float32: log-probability of stopping at the first step."""


@torch.no_grad()
def best_sequences(logits: StepLogits) -> SequenceCandidates:
    """Greedy choice at each step, up to the first stop (Wang & Jiang 2016, section 2.3).

    The first choice is the best token even if "no answer" scores higher; that score is in ``null``.
    """
    choices = log_choices(logits)  # (N, S, T + 1)
    stop = choices.shape[2] - 1
    best, chosen = choices.max(dim=2)
    # Without this a model that prefers "no answer" has no span to score with a forced answer.
    best[:, 0], chosen[:, 0] = choices[:, 0, :stop].max(dim=1)
    stopped = (chosen == stop).cumsum(1)
    counted = (stopped - (chosen == stop).long()) == 0  # up to and including the first stop
    score = best.masked_fill(~counted, 0.0).sum(1)
    # NaN must lose against every other window, as an answer and as a null.
    score = score.masked_fill(score.isnan(), -torch.inf)
    tokens = chosen.masked_fill(stopped > 0, -1).to(torch.int32)
    null = choices[:, 0, stop]
    null = null.masked_fill(null.isnan(), torch.inf)
    return SequenceCandidates(tokens.cpu().numpy(), score.cpu().numpy(), null.cpu().numpy())


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

    ``origin``, ``char_start`` and ``char_end`` are those of ``char_spans``. Runs of consecutive tokens are
    spans of the text, joined by spaces.
    """
    tokens = np.where(candidates.tokens >= 0, candidates.tokens + origin[:, None], -1)
    # Each distinct sequence of a question is ranked as a "span" [n, n + 1), n being its first window here.
    keys = np.column_stack([example, tokens])
    _, first, group = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    number = first[group.ravel()][:, None]
    zeros = np.zeros(len(candidates), np.float32)
    starts = np.zeros((len(candidates), 1), np.int32)
    scores = candidates.score[:, None], zeros[:, None], candidates.null, zeros
    ranking = rank(
        SpanCandidates(starts, starts, *scores, invalid=zeros),
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
        runs = _runs(tokens[n][tokens[n] >= 0])
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


@dataclass(eq=False)
class SpanCollector:
    """Collects the best spans or sequences of windows, in any order; ``result`` ranks them by question."""

    questions: QuestionSet
    table: FeatureTable
    decode: Decode
    parts: list[tuple[np.ndarray, SpanCandidates | SequenceCandidates]] = field(default_factory=list)
    """Feature rows of the windows of each batch, and their candidates."""

    def add(self, batch: Batch, logits: Logits) -> None:
        """Decode one batch; its ``index`` holds the feature rows of its windows."""
        if isinstance(logits, StepLogits):
            candidates: SpanCandidates | SequenceCandidates = best_sequences(logits)
        else:
            candidates = best_spans(
                logits,
                search=self.decode.search,
                max_answer_tokens=self.decode.max_answer_tokens,
                n_best=self.decode.n_best,
            )
        self.parts.append((batch.index.cpu().numpy(), candidates))

    def result(self) -> Ranking:
        """Ranked candidates of each question, in the order of the set.

        Raises RunError if a window was never read.
        """
        if not self.parts:
            raise RunError(
                f"none of the {len(self.table)} windows of {self.questions.name} were read: run the model on"
                " every window of the set exactly once"
            )
        index = np.concatenate([rows for rows, _ in self.parts])
        # Batches come in any order, and with several ranks a padding row repeats a window.
        window, first = np.unique(index, return_index=True)
        parts: list[Any] = [part for _, part in self.parts]
        candidates = type(parts[0]).concatenate(parts).take(first)
        table, examples = self.table, self.questions.examples
        # Position in the window + origin = row in the table's token columns.
        origin = table.token_start[window] - table.context_at[window]
        common: Any = {
            "window": window,
            "example": table.example[window],
            "expected": np.bincount(table.example, minlength=len(examples)),
            "n_best": self.decode.n_best,
        }
        if isinstance(candidates, SequenceCandidates):
            return rank_sequences(candidates, examples, origin, table.char_start, table.char_end, **common)
        if invalid := int(candidates.invalid.sum()):
            log.warning("%d span logits are NaN or +inf and will not be chosen", invalid)
        if invalid := int((candidates.null == np.inf).sum()):
            log.warning("the null score of %d windows is NaN or +inf and is ignored", invalid)
        char_start, char_end = char_spans(candidates, origin, table.char_start, table.char_end)
        # The grid is run_qa's search, which keeps spans that overlapping windows repeat.
        dedupe = self.decode.search != "grid"
        return rank(candidates, examples, char_start=char_start, char_end=char_end, dedupe=dedupe, **common)
