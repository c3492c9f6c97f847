"""Best spans of all windows -> one ranked list of answers per question.

Axes: ``N`` windows, ``K`` spans per window, ``Q`` questions, ``M`` candidates of all questions. The
ranking is vectorised over all questions, on flat columns; ``Ranking.answers`` makes objects of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qa_arch.decode.candidates import Ranking, SpanCandidates
from qa_arch.errors import RunError
from qa_arch.metrics.confidence import softmax
from qa_arch.types.text import Example

NAMED = 5  # ids listed in a message


def char_spans(
    spans: SpanCandidates, origin: np.ndarray, char_start: np.ndarray, char_end: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Character offsets in the context, end exclusive, of token spans: (N, K) each.

    ``origin`` (N,) is the row, in the token columns ``char_start`` and ``char_end``, that position 0 of
    each window would have. An empty place gets the last row of the columns, which has zero width.
    """
    filled = spans.score > -np.inf
    first = np.where(filled, origin[:, None] + spans.start, -1)
    last = np.where(filled, origin[:, None] + spans.end, -1)
    return char_start[first], char_end[last]


def rank(
    spans: SpanCandidates,
    examples: Sequence[Example],
    *,
    window: np.ndarray,
    example: np.ndarray,
    char_start: np.ndarray,
    char_end: np.ndarray,
    expected: np.ndarray,
    n_best: int = 20,
    dedupe: bool = True,
) -> Ranking:
    """Merge the windows of each question: its ``n_best`` candidates over all windows.

    The null score is the minimum over the windows, since one window with an answer is enough. "No answer"
    is always a candidate, as an extra one if it is not among the ``n_best``. Ties are ordered by window,
    then by the order of the search, independent of the order of the windows here. With ``dedupe`` a span
    of several windows counts once, with its best score; the common script keeps duplicates.

    Null odds are the null score minus that of the best span over all windows. Where the windows come with
    ``any_span`` they are, within a window, log P("no answer") - log P(any span), exact because the window's
    normaliser falls out; and of a question the lowest over its windows, as one window with an answer is
    enough. No normaliser is shared between windows, and those that overlap hold the same spans: a sum over
    windows would count both twice.

    Args:
        spans: the N windows, in any order.
        examples: the Q questions; the ranking keeps their order.
        window: (N,) row of each window in its feature table, without repetition.
        example: (N,) row of the window's question in ``examples``.
        char_start, char_end: (N, K) offsets in the context, end exclusive. Spans of zero width
            are dropped.
        expected: (Q,) number of windows of each question in the feature table. With 0 the answer is
            "no answer".

    Raises RunError that names the questions if windows are missing or repeated.
    """
    _check_complete(window, example, examples, expected)
    order = np.lexsort((window, example))
    spans, example = spans.take(order), example[order]
    char_start, char_end = char_start[order], char_end[order]
    null_start, null_end = _lowest_null(spans, example, len(examples))

    score = spans.score
    row, column = np.nonzero((score > -np.inf) & (char_end > char_start))
    order = _by_question_and_score(example[row], score[row, column])
    row, column = row[order], column[order]
    question, start, end = example[row], char_start[row, column], char_end[row, column]
    if dedupe:
        unique = _first_of_equal(question, start, end)
        row, column, question, start, end = (x[unique] for x in (row, column, question, start, end))
    columns = start, end, spans.start_logit[row, column], spans.end_logit[row, column]
    ranking = _with_null(examples, question, columns, (null_start, null_end), expected, n_best)
    if spans.any_span is None:
        return ranking
    return replace(ranking, null_odds=_odds_of_any(spans.null, spans.any_span, example, ranking.best))


def _odds_of_any(null: np.ndarray, any_span: np.ndarray, example: np.ndarray, best: np.ndarray) -> np.ndarray:
    """(Q,) lowest null - any_span over the windows of each question; +inf where it has no span to answer."""
    odds = np.full(len(null), np.inf)
    np.subtract(null, any_span, out=odds, where=any_span > -np.inf, dtype=np.float64)
    lowest = np.full(len(best), np.inf)
    np.minimum.at(lowest, example, odds)
    return np.where(best >= 0, lowest, np.inf)


def _check_complete(
    window: np.ndarray, example: np.ndarray, examples: Sequence[Example], expected: np.ndarray
) -> None:
    """Raise RunError unless every question has each of its windows exactly once."""
    wrong = np.bincount(example, minlength=len(examples)) != expected
    if len(np.unique(window)) != len(window):
        wrong[example[np.bincount(window)[window] > 1]] = True
    if wrong.any():
        rows = np.flatnonzero(wrong)
        names = ", ".join(examples[q].id for q in rows[:NAMED]) + (", ..." if len(rows) > NAMED else "")
        raise RunError(
            f"{len(rows)} of {len(examples)} questions have windows that were not read, or read twice "
            f"({names}): run the model on every window of the set once"
        )


def _lowest_null(spans: SpanCandidates, example: np.ndarray, questions: int) -> tuple[np.ndarray, np.ndarray]:
    """(Q,) start and end logit of "no answer" in the window where it scores lowest; +inf without windows."""
    order = np.lexsort((spans.null, example))
    present, first = np.unique(example[order], return_index=True)
    halves = np.full((2, questions), np.inf, dtype=np.float32)
    halves[:, present] = spans.null_start[order[first]], spans.null_end[order[first]]
    return halves[0], halves[1]


def _by_question_and_score(question: np.ndarray, score: np.ndarray) -> np.ndarray:
    """Stable order by question, then falling score.

    Both are packed into one integer key, because the windows are nearly in order and a stable integer sort
    is then a single pass. The bits of a float32 order like an integer once negatives are reversed.
    """
    bits = (np.float32(0) - score).view(np.int32).astype(np.int64)  # 0 - x: one zero, not two
    rising = np.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return np.argsort((question.astype(np.int64) << 32) + rising + 2**31, kind="stable")


def _first_of_equal(question: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """First position of each distinct (question, start, end), ascending."""
    width = int(end.max(initial=0)) + 1
    key = (question.astype(np.int64) * width + start) * width + end
    return np.sort(np.unique(key, return_index=True)[1])


def _with_null(
    examples: Sequence[Example],
    question: np.ndarray,
    spans: tuple[np.ndarray, ...],
    null_halves: tuple[np.ndarray, np.ndarray],
    windows: np.ndarray,
    n_best: int,
) -> Ranking:
    """Truncate the ranked spans of each question to ``n_best`` and insert "no answer" at its rank."""
    Q = len(examples)
    null = null_halves[0] + null_halves[1]
    score = spans[2] + spans[3]
    counts = np.bincount(question, minlength=Q)
    position = np.arange(len(question)) - (np.cumsum(counts) - counts)[question]
    above = score >= null[question]  # on a tie the span ranks first
    # "No answer" may take one of the n_best places: the last span must beat it. The best span always stays.
    selected = (position < max(n_best - 1, 1)) | ((position == n_best - 1) & above)
    question, position, above = (x[selected] for x in (question, position, above))

    counts = np.bincount(question, minlength=Q)
    offsets = np.concatenate([[0], np.cumsum(counts + 1)])
    target = offsets[question] + position + ~above
    null_target = offsets[:-1] + np.bincount(question[above], minlength=Q)
    columns = []
    for column, empty in zip(spans, (0, 0, *null_halves), strict=True):
        merged = np.empty(offsets[-1], dtype=column.dtype)
        merged[target], merged[null_target] = column[selected], empty
        columns.append(merged)

    has_span = counts > 0
    best = np.where(has_span, offsets[:-1] + (null_target == offsets[:-1]), -1)
    null_odds = np.full(Q, np.inf)
    top = columns[2] + columns[3]
    null_odds[has_span] = null[has_span].astype(np.float64) - top[best[has_span]]
    start, end, start_logit, end_logit = columns
    probability = softmax(top, offsets)
    return Ranking(
        examples, offsets, start, end, start_logit, end_logit, probability, best, null_odds, windows
    )
