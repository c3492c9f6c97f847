"""Kinds of errors, on a hand-made passage with answers."""

from pathlib import Path

import numpy as np
import pytest

from qa_arch.data.question_sets import question_set
from qa_arch.errors import DataError
from qa_arch.metrics.squad import score_questions
from qa_arch.results.errors import BOUNDARIES, OUTCOMES, Mistakes, boundary, mistakes
from qa_arch.results.systems import Questions
from qa_arch.types import Example, Gold
from tests.results.conftest import without_withheld

TEXT = "The old red mill by the ferry was sold to Ilva Morn in 1971, and the lamps to her son."


def gold(text: str) -> Gold:
    return Gold(text, TEXT.index(text))


def query(id_: str, *golds: str, kind: str | None = None, plausible: tuple[str, ...] = ()) -> Example:
    return Example(id_, "?", TEXT, "t", tuple(map(gold, golds)), tuple(map(gold, plausible)), kind)


CASES = [
    # example, best span or None, abstained -> outcome, boundary, near miss, plausible
    (query("exact", "red mill"), "red mill", False, "right", None, False, None),
    (query("article", "red mill", "old red mill"), "The old red mill", False, "right", None, False, None),
    (query("short", "old red mill"), "red", False, "wrong_span", "short", True, None),  # F1 1/2
    (query("shorter", "red mill by the ferry"), "red", False, "wrong_span", "short", False, None),  # F1 2/5
    (query("long", "1971"), "in 1971", False, "wrong_span", "long", True, None),
    (query("crossing", "Ilva Morn"), "Morn in", False, "wrong_span", "crossing", True, None),
    (query("apart", "Ilva Morn"), "her son", False, "wrong_span", "apart", False, None),
    (query("nearest", "1971", "ferry was sold"), "was", False, "wrong_span", "short", True, None),
    (query("wrong abstention", "red mill"), "red mill", True, "wrong_abstention", None, False, None),
    (query("missed", "red mill"), "red", True, "missed_answer", None, False, None),
    (query("no span", "red mill"), None, True, "missed_answer", None, False, None),
    (query("right abstention"), "red", True, "right", None, False, None),
    (query("undue"), "red", False, "undue_answer", None, False, None),
    (query("taken", plausible=("ferry", "red mill")), "red mill", False, "undue_answer", None, False, True),
    (query("an article", plausible=("ferry",)), "the ferry", False, "undue_answer", None, False, True),
    (query("elsewhere", plausible=("ferry",)), "her son", False, "undue_answer", None, False, False),
    (query("resisted", plausible=("ferry",)), "ferry", True, "right", None, False, None),
]


def rows_of(cases) -> dict[str, list]:
    """The columns that a run writes."""
    questions = question_set("made", [case[0] for case in cases], "2.0")
    spans = [(-1, -1) if text is None else (gold(text).start, gold(text).end) for _, text, *_ in cases]
    texts = {example.id: text or "" for example, text, *_ in cases}
    predictions = {example.id: "" if abstained else text for example, text, abstained, *_ in cases}
    span_scores, scores = (score_questions(questions, answers) for answers in (texts, predictions))
    return {
        "id": [s.id for s in scores],
        "kind": [s.kind for s in scores],
        "answerable": [s.answerable for s in scores],
        "abstained": [s.abstained for s in scores],
        "exact": [s.exact for s in scores],
        "f1": [s.f1 for s in scores],
        "start": [start for start, _ in spans],
        "end": [end for _, end in spans],
        "span_exact": [s.exact for s in span_scores],
        "span_f1": [s.f1 for s in span_scores],
    }


def judge(rows, questions=None) -> Mistakes:
    return mistakes(Questions.of(Path("run"), rows), questions)


def judged(result: Mistakes) -> list[list]:
    """Outcome, boundary, near miss and plausible of every question."""
    boundaries = [*BOUNDARIES, None]
    plausible = [None if np.isnan(value) else bool(value) for value in result.plausible]
    columns = zip(result.outcome, result.boundary, result.near_miss, plausible, strict=True)
    return [[list(OUTCOMES)[o], boundaries[b], bool(near), p] for o, b, near, p in columns]


def test_judge() -> None:
    questions, rows = question_set("made", [case[0] for case in CASES], "2.0"), rows_of(CASES[::-1])
    result = judge(rows, questions)
    assert (result.rows.ids, result.articles) == (tuple(rows["id"]), ["t"] * len(CASES))
    for own, id_, (example, _, _, *expected) in zip(judged(result), rows["id"], CASES[::-1], strict=True):
        assert id_ == example.id
        assert own == expected, example.id
    figures = result.figures()
    assert figures["questions"] == len(CASES) == sum(figures["outcomes"].values())
    assert figures["outcomes"] == {
        **{"right": 4, "wrong_span": 6, "wrong_abstention": 1, "missed_answer": 2},
        **{"undue_answer": 4},
    }
    assert figures["boundaries"] == {"short": 3, "long": 1, "crossing": 1, "apart": 1, "same": 0}
    assert (figures["near_misses"], figures["plausible"], figures["with_plausible"]) == (4, 2, 3)
    assert figures["overlapping"] == 5  # all wrong spans but "apart"


def test_plausible_answers_are_compared_by_the_rules_of_the_language() -> None:
    example = Example("q", "?", "In der Burg", "t", (), (Gold("Burg", 7),))
    rows = rows_of([(query("q"), "red", False)]) | {"start": [3], "end": [11]}
    sets = (question_set("made", [example], "2.0", language=language) for language in ("de", "en"))
    assert [judge(rows, questions).plausible[0] for questions in sets] == [True, False]


def test_judge_without_texts_finds_the_same_outcomes() -> None:
    questions, rows = question_set("made", [case[0] for case in CASES], "2.0"), rows_of(CASES)
    without_texts, with_texts = judge(rows), judge(rows, questions)
    for column in ("outcome", "near_miss", "overlaps"):
        assert np.array_equal(getattr(without_texts, column), getattr(with_texts, column)), column
    assert {(own[1], own[3]) for own in judged(without_texts)} == {(None, None)}
    assert without_texts.articles is None
    outcomes = judge(without_withheld(rows)).figures()["outcomes"]
    assert outcomes == {"right": 4, "wrong_span": 6, "unanswered": 3, "undue_answer": 4}


def test_touching_spans_do_not_overlap() -> None:
    span = gold("red mill")
    example = query("q", "red mill")
    assert (
        boundary(example, span.end, span.end + 3) == boundary(example, span.start - 2, span.start) == "apart"
    )
    assert boundary(example, span.start, span.end) == "same"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": ["other"]}, "1 scored questions are not in it, the first is other"),
        ({"start": [80], "end": [400]}, "question q: the recorded span 80..400 is not in its passage of 86"),
    ],
)
def test_rows_of_other_data_are_refused(change, message) -> None:
    rows = rows_of([(query("q", "red mill"), "red", False)]) | change
    with pytest.raises(DataError, match=message):
        judge(rows, question_set("made", [query("q", "red mill")], "2.0"))
