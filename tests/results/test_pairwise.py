"""Comparisons: right subsets, right direction, right questions; and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from itertools import chain

import numpy as np
import pytest

from qa_arch.data.question_sets import question_set as made_set
from qa_arch.data.squad import write
from qa_arch.errors import RunError
from qa_arch.metrics.confidence import area_values, auroc, auroc_values, thresholds
from qa_arch.metrics.significance import effect, holm
from qa_arch.records import QUESTIONS, RECORD, find_runs, read_questions, write_questions
from qa_arch.results.comparisons import FITTED, SINGLE_RUN, against_baseline, compare, measures_table
from qa_arch.results.questions import load_aligned, load_questions
from qa_arch.results.samples import MEASURES
from qa_arch.results.systems import group_by_system, one_system
from qa_arch.types.text import question_word


def test_every_figure_is_over_its_own_questions(sides):
    folder, a, b, questions = sides
    found = compare(a, b)
    rows = {name: [read_questions(folder / f"{name}-{s}") for s in (1, 2)] for name in ("poor", "good")}
    for run in chain(*rows.values()):
        odds, spans, has_answer = (np.array(run[key]) for key in ("null_odds", "span_f1", "answerable"))
        run |= {"auroc": auroc_values(-odds, has_answer), "aurc": area_values(odds, spans, has_answer)}
    answerable = [e.answerable for e in questions.examples]
    kinds = [e.kind for e in questions.examples]
    tests = {
        "EM": ("exact", [True] * 120),
        "F1": ("f1", [True] * 120),
        "HasAns EM": ("exact", answerable),
        "HasAns F1": ("f1", answerable),
        "NoAns EM": ("exact", [not x for x in answerable]),
        "NoAns F1": ("f1", [not x for x in answerable]),
        "HasAns F1, never null": ("span_f1", answerable),
        "AUROC, answerable": ("auroc", [True] * 120),
        "AURC": ("aurc", [True] * 120),
        "entity_swap": ("f1", [kind == "entity_swap" for kind in kinds]),
        "negation": ("f1", [kind == "negation" for kind in kinds]),
    }
    measured = [*found.measures, *found.kinds]
    assert [one.name for one in measured] == list(tests)
    for one in measured:
        key, where = tests[one.name]
        scores = {
            name: 100 * np.array([np.array(run[key], float)[where] for run in runs])
            for name, runs in rows.items()
        }
        assert one.questions == sum(where)
        assert one.a == pytest.approx(scores["poor"].mean())
        assert one.b == pytest.approx(scores["good"].mean())
        assert one.a_sd == pytest.approx(scores["poor"].mean(1).std(ddof=1))
        tested = effect(scores["poor"], scores["good"])
        assert (one.effect.delta, one.effect.error) == pytest.approx((tested.delta, tested.error))
    assert [k.p_holm for k in found.kinds] == holm([k.effect.p for k in found.kinds])
    assert found.measures[1].effect.delta > 0
    assert sum(found.outcomes.values()) == 120


def test_exact_match_and_f1_are_read_from_columns_of_their_own(sides):
    """On data where they differ: partly right spans score in F1 alone."""
    folder, a, b, _ = sides
    for name in ("poor-1", "poor-2", "good-1", "good-2"):
        rows = read_questions(folder / name)
        partial_f1 = [max(f1, 0.25) for f1 in rows["f1"]]
        write_questions(folder / name, {**rows, "f1": partial_f1})
    measures = {measured.name: measured for measured in compare(a, b).measures}
    for name in ("", "HasAns ", "NoAns "):
        exact, f1 = measures[f"{name}EM"], measures[f"{name}F1"]
        assert exact.a < f1.a
        assert exact.b < f1.b


def test_untagged_questions_are_sorted_by_question_word_where_texts_are_given(make_run, question_set):
    plain = [replace(example, kind=None) for example in question_set(again=2).examples]
    questions = made_set("made-up", plain, "2.0")
    folders = [make_run(name, questions, model=name, right=right) for name, right in (("a", 0.2), ("b", 0.9))]
    sides = [one_system(find_runs([folder]), "A") for folder in folders]
    assert compare(*sides).kinds == ()
    found = compare(*sides, questions=questions, unit="question")
    assert found.sorted_by == "question word"
    assert [(one.name, one.questions) for one in found.kinds] == [
        ("how many", 2),
        ("when", 4),
        ("which", 2),
        ("who", 4),
    ]
    rows = load_questions(*sides[1].runs[0])
    asked = np.array([example.question.startswith("Who") for example in plain])
    assert found.kinds[3].b == pytest.approx(100 * rows.f1[asked].mean())
    words = {"word": [question_word(example.question) for example in plain]}
    told = [make_run(f"told-{name}", questions, model=name, rows=words) for name in "ab"]
    without_texts = compare(*(one_system(find_runs([one]), "A") for one in told))
    assert without_texts.sorted_by == "question word"
    assert [(one.name, one.questions) for one in without_texts.kinds] == [
        (one.name, one.questions) for one in found.kinds
    ]
    tagged = question_set()
    sides = [one_system(find_runs([make_run(n, tagged, model=n)]), n) for n in ("tag-a", "tag-b")]
    assert compare(*sides, questions=tagged).sorted_by == "kind of question"


def test_outcomes_and_changed_questions(make_run, question_set):
    questions = question_set()
    columns = {"abstained": [False] * 6, "null_odds": [0.0] * 6}
    mixed = {"exact": [1, 0, 0, 1, 0, 1], "f1": [1, 0.5, 0, 1, 0, 1]}
    a = make_run("a", questions, rows={"exact": [1] * 6, "f1": [1] * 6, **columns}, model="a")
    b = make_run("b", questions, rows={**mixed, **columns, "null_odds": [0, 9, 1, 9, 5, 9]}, model="b")
    sides = [one_system(find_runs([folder]), name) for folder, name in ((a, "A"), (b, "B"))]
    found = compare(*sides)
    assert found.outcomes == {"both right": 3, "A right, B wrong": 3, "A wrong, B right": 0, "both wrong": 0}
    # Furthest in F1 first, of equals the one whose null odds moved most; equals in F1 did not change.
    assert [(one.id, one.a, one.b) for one in found.changed] == [
        ("q5-0", 1, 0),
        ("q3-0", 1, 0),
        ("q2-0", 1, 0.5),
    ]
    assert [one.id for one in compare(*sides, top=1).changed] == ["q5-0"]


def test_abstained_answers_have_no_span(sides):
    _, a, b, _ = sides
    rows = load_questions(*b.runs[0])
    for one in compare(a, b).changed:
        q = rows.ids.index(one.id)
        expected = None if rows.abstained[q] else (rows.start[q], rows.end[q])
        assert one.spans[1][0] == expected


def test_calibration_compares_where_dev_stays_closed(sides):
    folder, a, b, _ = sides
    on_dev = compare(a, b)
    assert FITTED not in against_baseline([a, b], a).notes
    for run in (path for path, _ in [*a.runs, *b.runs]):
        text = (run / RECORD).read_text().replace('"dev": {', '"calibration": {')
        (run / RECORD).write_text(text)
        (run / "sets" / "calibration").mkdir(parents=True)
        (run / QUESTIONS).rename(run / "sets" / "calibration" / QUESTIONS)
    groups = group_by_system(find_runs([path for path, _ in [*a.runs, *b.runs]]))
    found = compare(*groups, split="calibration")
    assert found.measures == on_dev.measures
    table = against_baseline(groups, groups[0], split="calibration")
    assert table.notes[-1] == FITTED
    (folder / "poor-1" / "sets" / "calibration" / QUESTIONS).unlink()
    with pytest.raises(RunError, match=r"calibration.*missing.*train --config-from"):
        compare(*groups, split="calibration")


def test_rows_that_do_not_fit_are_refused_by_name(make_run, question_set, tmp_path):
    questions, other = question_set(), question_set(extra=" Really?")
    a, b = make_run("a", questions), make_run("b", other)
    runs = find_runs([a, b])
    with pytest.raises(RunError, match="do not compare"):
        compare(one_system(runs[:1], "A"), one_system(runs[1:], "B"))
    rows = read_questions(a)
    shuffled = make_run("c", questions, rows={"id": rows["id"][::-1]})
    with pytest.raises(RunError, match="another order"):
        load_aligned(find_runs([a, shuffled]), "dev")


def test_runs_that_select_answers_have_no_spans_to_compare(make_run, question_set):
    point = {"ranked": {"accuracy": 50.0, "mrr": 0.6, "protocol": "selection", "metric_version": "1"}}
    about = {"dev": {"name": "d", "fingerprint": "f", "protocol": "selection", "questions": 6}}
    folder = make_run("a", question_set(), scores={"dev": point}, data=about)
    with pytest.raises(RunError, match=r"selects answers.*qa-arch tables"):
        load_questions(*find_runs([folder])[0])


@pytest.fixture
def call(command):
    return partial(command, "compare")


def test_the_command_with_texts(sides, call, tmp_path):
    folder, _, _, questions = sides
    data = tmp_path / "made-up.json"
    data.write_text(json.dumps(write(questions)))
    sides_ = ["--a", folder / "poor-*", "--b", folder / "good-1", folder / "good-2"]
    code, out, _ = call(*sides_, "--data", data, "--top", 3)
    assert code == 0
    assert "B − A" in out
    assert "2 seeds of A, 2 seeds of B" in out
    assert "The 3 questions that changed most" in out
    assert any(example.question in out for example in questions.examples)
    code, out, _ = call(*sides_, "--json", "--data", data)
    found = json.loads(out)
    assert code == 0
    assert found["measures"][1]["delta"] == pytest.approx(
        found["measures"][1]["b"] - found["measures"][1]["a"]
    )
    first = found["changed"][0]
    example = next(e for e in questions.examples if e.id == first["id"])
    assert first["gold"] == [gold.text for gold in example.answers]
    spans = first["spans"][0]
    assert set(first["a_answers"]) == {example.context[slice(*s)] if s else "no answer" for s in spans}


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["{}/poor-1"], 2, "give two runs"),
        (["{}/poor-1", "{}/nowhere"], 5, "no such run"),
        (["--a", "{}/poor-1", "{}/good-1", "--b", "{}/x"], 5, "more than the seed"),
        (["{}", "--baseline", "nobody"], 5, "no system is called"),
        (["{}/poor-1", "{}/good-1", "--split", "test"], 5, "no scores of test"),
        (["{}/poor-1", "{}/good-1", "--spans"], 2, "a comparison of two shows every measure"),
        (["{}", "--baseline", "poor", "--order", "good,nobody"], 2, "'nobody' is none of the systems"),
    ],
)
def test_wrong_calls(sides, call, arguments, code, said):
    found = call(*(word.format(sides[0]) for word in arguments))
    assert found[0] == code
    assert said in found[2]


@pytest.fixture
def sides_with_articles(sides):
    """The two systems of ``sides``, whose rows tell which of 12 articles a question is of."""
    folder, a, b, questions = sides
    articles = [n // 10 for n in range(len(questions))]
    for name in ("poor-1", "poor-2", "good-1", "good-2"):
        write_questions(folder / name, {**read_questions(folder / name), "article": articles})
    return a, b, np.array(articles)


def test_over_articles_every_figure_is_tested_over_its_own_articles(sides_with_articles):
    a, b, articles = sides_with_articles
    result = compare(a, b)
    rows = {system.label: load_aligned(system.runs, "dev") for system in (a, b)}
    first = rows[a.label][0]
    by_name = {measured.name: measured for measured in (*result.measures, *result.kinds)}
    for name, key, where in (
        ("F1", "f1", np.ones(120, dtype=bool)),
        ("NoAns EM", "exact", ~first.answerable),
        ("HasAns F1, never null", "span_f1", first.answerable),
        ("negation", "f1", np.array([kind == "negation" for kind in first.kind])),
    ):
        x, y = (100 * np.stack([getattr(run, key) for run in rows[s.label]])[:, where] for s in (a, b))
        assert by_name[name].effect == effect(x, y, articles=articles[where])
    assert result.as_dict()["unit"] == "article"
    assert "over 12 articles and seeds, crossed" in measures_table(result).notes[1]


@pytest.mark.parametrize(("unit", "drawn"), [("question", "120 questions"), (None, "12 articles")])
def test_tables_say_what_they_are_over(sides_with_articles, unit, drawn):
    a, b, _ = sides_with_articles
    for table in (measures_table(compare(a, b, unit=unit)), against_baseline([a, b], a, unit=unit)):
        assert any(f"over {drawn} and seeds" in note for note in table.notes)
        assert SINGLE_RUN not in table.notes


@pytest.mark.parametrize("measure", ["auroc", "aurc"])
def test_areas_are_tested_against_a_baseline_as_scores_are(sides_with_articles, measure):
    a, b, _ = sides_with_articles
    table = against_baseline([a, b], a, measure=measure)
    pair = {figure.name: figure for figure in compare(a, b).measures}
    figure = pair[MEASURES[measure]]
    row = next(row for row in table.rows if row["model"] == b.label)
    assert row["delta"] == pytest.approx(figure.effect.delta, abs=1e-6)
    assert row["p"] == pytest.approx(figure.effect.p, abs=1e-6)
    runs = load_aligned(b.runs, "dev")
    area = {"auroc": lambda run: 100 * auroc(-run.null_odds, run.answerable)}.get(
        measure, lambda run: thresholds(run.null_odds, run.span_f1, run.answerable).area
    )
    assert row[f"{measure}_mean"] == pytest.approx(np.mean([area(run) for run in runs]), abs=1e-6)


def test_systems_are_tested_in_a_fixed_order_and_for_equivalence(sides_with_articles, command):
    a, b, _ = sides_with_articles
    names = {"a": replace(a, label="plain"), "b": replace(b, label="good"), "same": replace(a, label="same")}
    table = against_baseline(list(names.values()), names["a"], order=["same"], equivalence=1.0)
    rows = {row["model"]: row for row in table.rows}
    assert rows["good"]["p"] < rows["same"]["p"] == 1.0
    assert rows["good"]["p_holm"] == 1.0, "tested only after one that did not differ"
    assert rows["same"]["p_equivalent"] < rows["good"]["p_equivalent"]
    assert "tested in this order: same" in table.notes
    assert "p, in order" in [column.heading for column in table.columns]


def test_over_articles_the_spans_are_of_the_answerable_questions(sides_with_articles):
    a, b, articles = sides_with_articles
    table = against_baseline([a, b], a, measure="spans")
    rows = [load_aligned(system.runs, "dev") for system in (a, b)]
    where = rows[0][0].answerable
    x, y = (100 * np.stack([run.span_f1 for run in runs])[:, where] for runs in rows)
    tested = effect(x, y, articles=articles[where])
    row = next(row for row in table.rows if row["model"] == b.label)
    assert (row["delta_95_low"], row["delta_95_high"]) == pytest.approx(tested.interval, abs=1e-6)


def test_articles_come_from_the_scored_set_where_rows_do_not_tell_them(sides, command, tmp_path):
    folder, a, b, questions = sides
    with pytest.raises(RunError, match=r"lack the article.*--data FILE"):
        compare(a, b, unit="article")
    result = compare(a, b, unit="article", questions=questions)
    numbers = [0 if example.title == "Title 0" else 1 for example in questions.examples]
    assert questions.article_numbers == numbers
    x, y = (100 * np.stack([run.f1 for run in load_aligned(s.runs, "dev")]) for s in (a, b))
    assert result.measures[1].effect == effect(x, y, articles=np.array(numbers))
    alone = made_set("made-up", [replace(e, title="") for e in questions.examples], "2.0")
    with pytest.raises(RunError, match="all questions are of one article"):
        compare(a, b, unit="article", questions=alone)
    runs = ["--a", folder / "poor-1", "--b", folder / "good-1"]
    code, _, error = command("compare", *runs, "--unit", "article")
    assert (code != 0, "lack the article" in error) == (True, True)
