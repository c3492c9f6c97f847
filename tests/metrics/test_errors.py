"""The kinds of mistakes, on a passage and answers made by hand."""

from __future__ import annotations

import pytest

from qa_arch.data.question_sets import question_set
from qa_arch.errors import DataError
from qa_arch.metrics.error_analysis import boundary, count, judge
from qa_arch.metrics.squad import score_questions
from qa_arch.types.text import Example, Gold

TEXT = "The old red mill by the ferry was sold to Ilva Morn in 1971, and the lamps to her son."


def at(text: str) -> Gold:
    return Gold(text, TEXT.index(text))


def asked(id_: str, *golds: str, kind: str | None = None, plausible: tuple[str, ...] = ()) -> Example:
    return Example(id_, "?", TEXT, "t", tuple(map(at, golds)), tuple(map(at, plausible)), kind)


CASES = [
    # example, best span (None: there was none), abstained -> outcome, boundary, near miss, plausible
    (asked("exact", "red mill"), "red mill", False, "right", None, False, None),
    (asked("article", "red mill", "old red mill"), "The old red mill", False, "right", None, False, None),
    (asked("short", "old red mill"), "red", False, "wrong_span", "short", True, None),  # F1 1/2
    (asked("shorter", "red mill by the ferry"), "red", False, "wrong_span", "short", False, None),  # F1 2/5
    (asked("long", "1971"), "in 1971", False, "wrong_span", "long", True, None),
    (asked("crossing", "Ilva Morn"), "Morn in", False, "wrong_span", "crossing", True, None),
    (asked("apart", "Ilva Morn"), "her son", False, "wrong_span", "apart", False, None),
    (asked("nearest", "1971", "ferry was sold"), "was", False, "wrong_span", "short", True, None),
    (asked("silent", "red mill"), "red mill", True, "wrong_abstention", None, False, None),
    (asked("missed", "red mill"), "red", True, "missed_answer", None, False, None),
    (asked("nothing", "red mill"), None, True, "missed_answer", None, False, None),
    (asked("silence is right"), "red", True, "right", None, False, None),
    (asked("undue"), "red", False, "undue_answer", None, False, None),
    (asked("taken", plausible=("ferry", "red mill")), "red mill", False, "undue_answer", None, False, True),
    (asked("an article", plausible=("ferry",)), "the ferry", False, "undue_answer", None, False, True),
    (asked("elsewhere", plausible=("ferry",)), "her son", False, "undue_answer", None, False, False),
    (asked("resisted", plausible=("ferry",)), "ferry", True, "right", None, False, None),
]


def rows_of(cases) -> dict[str, list]:
    """The columns that a run writes."""
    questions = question_set("made", [case[0] for case in cases], "2.0")
    spans = [(-1, -1) if text is None else (at(text).start, at(text).end) for _, text, *_ in cases]
    texts = {example.id: text or "" for example, text, *_ in cases}
    given = {example.id: "" if abstained else text for example, text, abstained, *_ in cases}
    best, final = (score_questions(questions, answers) for answers in (texts, given))
    return {
        "id": [s.id for s in final],
        "kind": [s.kind for s in final],
        "answerable": [s.answerable for s in final],
        "abstained": [s.abstained for s in final],
        "exact": [s.exact for s in final],
        "f1": [s.f1 for s in final],
        "start": [start for start, _ in spans],
        "end": [end for _, end in spans],
        "span_exact": [s.exact for s in best],
    }


def old(rows) -> dict[str, list]:
    """As records had them before the scores of the best spans were kept."""
    return {name: values for name, values in rows.items() if name != "span_exact"}


def test_each_question_is_judged_with_and_without_the_scores_of_spans() -> None:
    questions, rows = question_set("made", [case[0] for case in CASES], "2.0"), rows_of(CASES[::-1])
    judged = judge(rows, questions)
    assert judge(old(rows), questions) == judged
    for found, (example, _, _, *expected) in zip(judged[::-1], CASES, strict=True):
        assert (found.id, found.article) == (example.id, "t")
        assert [found.outcome, found.boundary, found.near_miss, found.plausible] == expected, example.id
    found = count(judged)
    assert found.questions == len(CASES) == sum(found.outcomes.values())
    assert found.outcomes == {
        **{"right": 4, "wrong_span": 6, "wrong_abstention": 1, "missed_answer": 2},
        **{"undue_answer": 4, "unanswered": 0},
    }
    assert found.boundaries == {"short": 3, "long": 1, "crossing": 1, "apart": 1, "same": 0}
    assert (found.near_misses, found.plausible, found.with_plausible) == (4, 2, 3)
    assert found.overlapping == 5  # all wrong spans but "apart"


def test_a_plausible_answer_is_compared_by_the_rules_of_the_language() -> None:
    example = Example("q", "?", "In der Burg", "t", (), (Gold("Burg", 7),))
    rows = rows_of([(asked("q"), "red", False)]) | {"start": [3], "end": [11]}
    sets = (question_set("made", [example], "2.0", language=language) for language in ("de", "en"))
    assert [judge(rows, questions)[0].plausible for questions in sets] == [True, False]


def test_scores_alone_tell_the_same_outcomes_and_old_ones_tell_no_abstentions_apart() -> None:
    questions, rows = question_set("made", [case[0] for case in CASES], "2.0"), rows_of(CASES)
    alone, beside = judge(rows), judge(rows, questions)
    shown = ("id", "kind", "outcome", "near_miss", "overlaps", "answerable")
    assert [[getattr(row, name) for name in shown] for row in alone] == [
        [getattr(row, name) for name in shown] for row in beside
    ]
    assert {(row.boundary, row.plausible, row.article) for row in alone} == {(None, None, None)}
    found = count(judge(old(rows))).outcomes
    assert (found["unanswered"], found["wrong_abstention"], found["missed_answer"]) == (3, 0, 0)
    assert (found["right"], found["wrong_span"], found["undue_answer"]) == (4, 6, 4)


def test_spans_that_only_touch_are_apart() -> None:
    gold = at("red mill")
    example = asked("q", "red mill")
    assert (
        boundary(example, gold.end, gold.end + 3) == boundary(example, gold.start - 2, gold.start) == "apart"
    )
    assert boundary(example, gold.start, gold.end) == "same"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": ["other"]}, "1 scored questions are not in it, the first is other"),
        ({"start": [80], "end": [400]}, "question q: the recorded span 80..400 is not in its passage of 86"),
    ],
)
def test_rows_of_other_data_are_refused(change, message) -> None:
    rows = rows_of([(asked("q", "red mill"), "red", False)]) | change
    with pytest.raises(DataError, match=message):
        judge(rows, question_set("made", [asked("q", "red mill")], "2.0"))
