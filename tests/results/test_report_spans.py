"""The report's third measure: F1 on the answerable questions where "no answer" is never allowed."""

from __future__ import annotations

from functools import partial

import pytest
from reports import page_parts

from qa_arch.records import find_runs
from qa_arch.results.comparisons import against_baseline, compare
from qa_arch.results.questions import load_questions
from qa_arch.results.report.page import write_report
from qa_arch.results.samples import MEASURES
from qa_arch.results.systems import find_system, group_by_system


@pytest.fixture
def page(tmp_path):
    """``page(folder, ...)`` -> the plain value of the report of all runs there."""
    return lambda folder, **given: page_parts(
        write_report(find_runs([folder]), tmp_path / "r.html", **given).path
    )[0]


def test_rows_that_tell_no_best_spans_go_untested(make_run, question_set, page):
    questions = question_set(again=3)
    make = partial(make_run, questions=questions)
    folder = make("a", model="bert").parent
    make("b", model="proposed")
    make("old", model="roberta", keep_spans=False, right=0.1)
    (one,) = page(folder, baseline="bert")["sets"]
    assert list(one["spans"]) == ["0", "1"]
    assert list(one["tests"]["spans"]["intervals"]) == ["0", "1"]
    assert list(one["tests"]["spans"]["effects"]) == ["1"]
    assert list(one["tests"]["f1"]["effects"]) == ["1", "2"]
    (told,) = page(folder, baseline="bert", questions=questions)["sets"]
    assert list(told["spans"]) == ["0", "1", "2"]


def test_the_page_and_the_terminal_say_the_same_of_a_difference(page, runs):
    folder, _ = runs
    records = find_runs([folder])
    groups = group_by_system(records)
    value = page(folder, baseline="bert")
    assert value["spans"] == MEASURES["spans"]
    (one,) = value["sets"]
    for number, (path, record) in enumerate(records):
        rows = load_questions(path, record)
        assert one["spans"][str(number)] == pytest.approx(100 * rows.span_f1[rows.answerable].mean())
    a, b = (find_system(groups, name) for name in ("bert", "proposed"))
    compared = {row["name"]: row for row in compare(a, b).rows}
    for name, key in (("EM", "exact"), ("F1", "f1"), (MEASURES["spans"], "spans")):
        shown = one["tests"][key]["effects"][str(groups.index(b))]
        row = compared[name]
        figures = (shown["delta"], *shown["interval"], shown["p"])
        expected = (row["delta"], row["delta_95_low"], row["delta_95_high"], row["p"])
        assert figures == pytest.approx(expected, abs=1e-6)
        table = against_baseline(groups, a, measure=key)
        for place, row in enumerate(table.rows):
            interval = [round(end, 6) for end in one["tests"][key]["intervals"][str(place)]]
            assert interval == [row[f"{key}_95_low"], row[f"{key}_95_high"]]
