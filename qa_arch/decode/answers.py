"""The spans of all windows -> one ranked list of answers per question.

Axes: ``N`` windows, ``K`` spans kept per window, ``Q`` questions, ``M`` candidates of all questions.
All questions are ranked at once, on flat columns; objects are made at the very end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from qa_arch.decode.candidates import Ranking, SpanCandidates
from qa_arch.errors import RunError
from qa_arch.types.text import Answer, Candidate, Example

NAMED = 5  # ids that a message names


def char_spans(
    spans: SpanCandidates, origin: np.ndarray, char_start: np.ndarray, char_end: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Character offsets in the context, end exclusive, of token spans: (N, K) each.

    ``origin`` (N,) is the row, in the token columns ``char_start`` and ``char_end``, that position 0 of
    each window would have. An unfilled place gets the columns' last row, which has no width.
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
    """Join the windows of each question: its ``n_best`` candidates over all of them.

    The null score is the minimum over the windows: one window that sees an answer is enough. "No
    answer" is always a candidate, beyond the ``n_best`` where it is not among them. Equal scores go to
    the earlier window, then keep the order that the search gave them, whatever the order of the
    windows here. ``dedupe`` keeps a span that several windows share once, at its best score; the common
    script keeps all of them.

    Args:
        spans: the N windows, in any order.
        examples: the Q questions; the ranking keeps their order.
        window: (N,) row of each window in its feature table; each may come once.
        example: (N,) row of the window's question in ``examples``.
        char_start, char_end: (N, K) offsets in the context, end exclusive. Spans without width are
            dropped.
        expected: (Q,) how many windows each question has in the feature table. With 0, the question
            is answered with "no answer".

    Raises RunError, naming the questions, where windows are missing or came twice.
    """
    _check_complete(window, example, examples, expected)
    order = np.lexsort((window, example))
    spans, example = spans.take(order), example[order]
    char_start, char_end = char_start[order], char_end[order]
    null_start, null_end = _lowest_null(spans, example, len(examples))

    score = spans.score
    row, place = np.nonzero((score > -np.inf) & (char_end > char_start))
    order = _by_question_and_score(example[row], score[row, place])
    row, place = row[order], place[order]
    question, start, end = example[row], char_start[row, place], char_end[row, place]
    if dedupe:
        kept = _first_of_equal(question, start, end)
        row, place, question, start, end = (x[kept] for x in (row, place, question, start, end))
    columns = start, end, spans.start_logit[row, place], spans.end_logit[row, place]
    return _with_null(examples, question, columns, (null_start, null_end), expected, n_best)


def _check_complete(
    window: np.ndarray, example: np.ndarray, examples: Sequence[Example], expected: np.ndarray
) -> None:
    """Raise RunError unless every question has all its windows, each once."""
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
    asked, first = np.unique(example[order], return_index=True)
    halves = np.full((2, questions), np.inf, dtype=np.float32)
    halves[:, asked] = spans.null_start[order[first]], spans.null_end[order[first]]
    return halves[0], halves[1]


def _by_question_and_score(question: np.ndarray, score: np.ndarray) -> np.ndarray:
    """The order by question, then falling score, equals as they come.

    Both go into one integer key, because windows come nearly in order and the stable integer sort
    is then a single pass: the bits of a float32 order like an integer once negatives are reversed.
    """
    bits = (np.float32(0) - score).view(np.int32).astype(np.int64)  # 0 - x: one zero, not two
    rising = np.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return np.argsort((question.astype(np.int64) << 32) + rising + 2**31, kind="stable")


def _first_of_equal(question: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Where each distinct (question, start, end) comes first, ascending."""
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
    """Cut each question's ranked spans at ``n_best`` and put "no answer" in its place among them."""
    Q = len(examples)
    null = null_halves[0] + null_halves[1]
    score = spans[2] + spans[3]
    counts = np.bincount(question, minlength=Q)
    place = np.arange(len(question)) - (np.cumsum(counts) - counts)[question]
    above = score >= null[question]  # of equals, the span stands first
    # "No answer" takes one of the n_best places if it is among them: the last span must then beat it.
    # The best span stays in any case.
    kept = (place < max(n_best - 1, 1)) | ((place == n_best - 1) & above)
    question, place, above, score = question[kept], place[kept], above[kept], score[kept]

    counts = np.bincount(question, minlength=Q)
    offsets = np.concatenate([[0], np.cumsum(counts + 1)])
    at = offsets[question] + place + ~above
    null_at = offsets[:-1] + np.bincount(question[above], minlength=Q)
    columns = []
    for column, empty in zip(spans, (0, 0, *null_halves), strict=True):
        merged = np.empty(offsets[-1], dtype=column.dtype)
        merged[at], merged[null_at] = column[kept], empty
        columns.append(merged)

    found = counts > 0
    best = np.where(found, offsets[:-1] + (null_at == offsets[:-1]), -1)
    null_odds = np.full(Q, np.inf)
    top = columns[2] + columns[3]
    null_odds[found] = null[found].astype(np.float64) - top[best[found]]
    start, end, start_logit, end_logit = columns
    probability = _softmax(top, offsets)
    return Ranking(
        examples, offsets, start, end, start_logit, end_logit, probability, best, null_odds, windows
    )


def _softmax(score: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Softmax within each segment, whose first score is its highest; a +inf score takes all; (M,)."""
    if not len(score):
        return np.zeros(0)
    begins = offsets[:-1]
    top = np.repeat(score[begins].astype(np.float64), np.diff(offsets))
    with np.errstate(invalid="ignore"):  # inf - inf is the top itself
        weight = np.exp(np.where(np.isinf(top), np.where(score == top, 0.0, -np.inf), score - top))
    return weight / np.repeat(np.add.reduceat(weight, begins), np.diff(offsets))


def answers(ranking: Ranking, *, candidates: bool = True) -> list[Answer]:
    """One Answer per question, in the order of the questions; ``candidates=False`` leaves the n-best out."""
    examples = ranking.examples
    bests: list[Candidate | None] = [None] * len(examples)
    found = np.flatnonzero(ranking.best >= 0)
    for q, best in zip(found.tolist(), _candidates(ranking, ranking.best[found], found), strict=True):
        bests[q] = best
    lists: list[tuple[Candidate, ...]] = [()] * len(examples)
    if candidates:
        sizes = np.diff(ranking.offsets)
        every = _candidates(ranking, np.arange(ranking.offsets[-1]), np.repeat(np.arange(len(sizes)), sizes))
        lists = [tuple(islice(every, size)) for size in sizes.tolist()]
    columns = zip(examples, bests, ranking.null_odds.tolist(), ranking.windows.tolist(), lists, strict=True)
    return [Answer(example.id, best, odds, windows, nbest) for example, best, odds, windows, nbest in columns]


def _candidates(ranking: Ranking, rows: np.ndarray, question: np.ndarray) -> Iterator[Candidate]:
    """The candidates ``rows`` of the ranking, each with the text it has in its question's context."""
    examples = ranking.examples
    columns = (np.arange(len(ranking.start)), ranking.start, ranking.end, ranking.score, ranking.probability)
    numbers = (column[rows].tolist() for column in columns)
    for q, row, start, end, score, probability in zip(question.tolist(), *numbers, strict=True):
        text = examples[q].context[start:end] if start >= 0 else ranking.texts[row]
        yield Candidate(text, start, end, score, probability)
