"""Merging the windows of a question, and the odds of "no answer" against its best span."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from qa.synthetic_windows import make_windows, rank_windows

from qa_arch.errors import RunError
from qa_arch.qa.ranking import SpanCandidates, char_spans, rank
from qa_arch.types import Example, QuestionSet

INF = float("inf")
CONTEXT = "Ada met  Bob in Rome"


def questions(count=1, context=CONTEXT) -> QuestionSet:
    return QuestionSet("two", tuple(Example(f"id{q}", "who", context) for q in range(count)), "2.0")


def spans(*windows, null) -> tuple[SpanCandidates, np.ndarray, np.ndarray]:
    """Candidates and offsets of windows, each a list of (character start, end, score)."""
    K = max(map(len, windows))
    padded = [[*window, *[(0, 0, -INF)] * (K - len(window))] for window in windows]
    start, end, score = np.moveaxis(np.array(padded, dtype=np.float64), 2, 0)
    half = (score / 2).astype(np.float32)
    nulls = np.array(null, dtype=np.float32) / 2
    tokens = np.zeros(score.shape, np.int32)
    return SpanCandidates(tokens, tokens, half, half, nulls, nulls, nulls), start.astype(int), end.astype(int)


def ranked_answers(requested, example, result, start, end, window=None, expected=None, **options):
    """Answers of ``rank``; by default the windows come in order and none is missing."""
    window = np.arange(len(example)) if window is None else window
    expected = np.bincount(example, minlength=len(requested)) if expected is None else expected
    columns = {"window": window, "example": example, "char_start": start, "char_end": end}
    return rank(result, requested.examples, **columns, expected=expected, **options).predictions()


def test_two_windows_by_hand():
    """Two windows: the second has the better span and the lower null."""
    result, start, end = spans([(0, 3, 4.0), (16, 20, 1.0)], [(9, 12, 5.0)], null=[3.0, 2.0])
    (answer,) = ranked_answers(questions(), np.array([0, 0]), result, start, end)
    assert answer.id == "id0"
    assert answer.windows == 2
    assert answer.null_odds == 2.0 - 5.0
    assert (answer.best.text, answer.best.start, answer.best.end, answer.best.score) == ("Bob", 9, 12, 5.0)
    assert [c.text for c in answer.candidates] == ["Bob", "Ada", "", "Rome"]
    total = sum(math.exp(s) for s in (5, 4, 2, 1))
    for candidate, score in zip(answer.candidates, (5, 4, 2, 1), strict=True):
        assert candidate.probability == pytest.approx(math.exp(score) / total)
    assert answer.text(-3.0) == "Bob"
    assert answer.text(-3.0001) == ""


def test_null_is_appended_if_not_among_the_n_best():
    result, start, end = spans([(0, 3, 4.0), (4, 7, 3.0), (16, 20, 1.0)], null=[0.0])
    (answer,) = ranked_answers(questions(), np.array([0]), result, start, end, n_best=2)
    assert [c.text for c in answer.candidates] == ["Ada", "met", ""]
    (answer,) = ranked_answers(
        questions(), np.array([0]), replace(result, null_start=np.float32([3.5])), start, end, n_best=2
    )
    assert [c.text for c in answer.candidates] == ["Ada", ""]
    (answer,) = ranked_answers(
        questions(), np.array([0]), replace(result, null_start=np.float32([9])), start, end, n_best=1
    )
    assert [c.text for c in answer.candidates] == ["", "Ada"]
    assert answer.best.text == "Ada"


def test_span_wins_a_tie_with_the_null():
    result, start, end = spans([(0, 3, 2.0)], null=[2.0])
    (answer,) = ranked_answers(questions(), np.array([0]), result, start, end)
    assert answer.null_odds == 0.0
    assert [c.text for c in answer.candidates] == ["Ada", ""]
    assert answer.text(0.0) == "Ada"  # only odds above the threshold mean no answer
    assert answer.text(-1e-9) == ""


def test_spans_shared_by_windows_are_kept_once_with_their_best_score():
    result, start, end = spans([(0, 3, 1.0), (4, 7, 0.5)], [(0, 3, 2.0)], null=[0.0, 0.0])
    (once,) = ranked_answers(questions(), np.array([0, 0]), result, start, end)
    assert [(c.text, c.score) for c in once.candidates] == [("Ada", 2.0), ("met", 0.5), ("", 0.0)]
    (twice,) = ranked_answers(questions(), np.array([0, 0]), result, start, end, dedupe=False)
    assert [c.text for c in twice.candidates] == ["Ada", "Ada", "met", ""]


def test_spans_sharing_one_boundary_are_different_answers():
    result, start, end = spans([(0, 3, 2.0), (0, 7, 1.0), (4, 7, 0.5)], null=[0.0])
    (answer,) = ranked_answers(questions(), np.array([0]), result, start, end)
    assert [c.text for c in answer.candidates] == ["Ada", "Ada met", "met", ""]


@pytest.mark.parametrize("null", [0.0, -INF, INF])
def test_windows_without_spans_have_no_answer(null):
    result, start, end = spans([(0, 0, -INF)], [(3, 3, 7.0)], null=[null, null])
    (answer,) = ranked_answers(questions(), np.array([0, 0]), result, start, end)
    assert answer.best is None
    assert answer.null_odds == INF
    assert answer.text(1e30) == ""
    assert [(c.text, c.probability) for c in answer.candidates] == [("", 1.0)]


def test_missing_windows_are_named():
    result, start, end = spans([(0, 3, 1.0)], null=[0.0])
    with pytest.raises(RunError, match=r"2 of 3 questions .*\(id0, id2\)"):
        ranked_answers(questions(3), np.array([1]), result, start, end, expected=np.array([1, 1, 2]))
    result, start, end = spans([(0, 3, 1.0)], [(0, 3, 1.0)], [(0, 3, 1.0)], null=[0.0] * 3)
    example, window = np.array([0, 1, 1]), np.array([0, 4, 4])
    with pytest.raises(RunError, match=r"1 of 2 questions .*\(id1\)"):  # read twice
        ranked_answers(questions(2), example, result, start, end, window)


def test_offsets_come_from_the_tokens_of_the_window():
    """The third window of question 1 begins at word 12; position 3 is its first context token."""
    _, table, _ = make_windows([1, 3], tokens=12, before=3)
    result, _, _ = spans([(0, 0, 1.0), (0, 0, -INF)], null=[0.0])
    result = replace(result, start=np.array([[3, 0]]), end=np.array([[4, 0]]))
    origin = (table.token_start - table.context_at)[[3]]
    char_start, char_end = char_spans(result, origin, table.char_start, table.char_end)
    first = sum(len(f"b{w} ") for w in range(12))
    assert (char_start[0, 0], char_end[0, 0]) == (first, first + len("b12 b13"))
    assert char_start[0, 1] == char_end[0, 1]


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    seed=st.integers(0, 999),
    search=st.sampled_from(["band", "grid", "greedy"]),
    n_best=st.integers(1, 300),
    data=st.data(),
)
def test_invariants_of_all_answers(sizes, seed, search, n_best, data):
    windows = make_windows(sizes, seed=seed)
    answers = rank_windows(windows, search, n_best=n_best).predictions()
    order = data.draw(st.permutations(range(sum(sizes))))
    assert rank_windows(windows, search, order, n_best=n_best).predictions() == answers
    assert [a.id for a in answers] == [e.id for e in windows[0].examples]
    assert [a.windows for a in answers] == sizes
    for answer, example in zip(answers, windows[0].examples, strict=True):
        assert sum(c.probability for c in answer.candidates) == pytest.approx(1)
        scores = [c.score for c in answer.candidates]
        assert scores == sorted(scores, reverse=True)
        assert sum(c.text == "" for c in answer.candidates) == 1
        assert len(answer.candidates) <= n_best + 1
        for candidate in answer.candidates:
            assert candidate.text == example.context[candidate.start : candidate.end]
        real = [c for c in answer.candidates if c.text]
        assert answer.best == (real[0] if real else None)
        assert real or search == "grid"  # the best starts and ends need not form a span
        if search != "grid":
            assert len({(c.start, c.end) for c in real}) == len(real)
