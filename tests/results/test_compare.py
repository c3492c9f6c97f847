"""Two systems compared, or all with a baseline: right subsets, right direction, right questions."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from qa_arch import compare as compare_folders
from qa_arch.data.question_sets import question_set as made_set
from qa_arch.data.squad import write
from qa_arch.errors import RunError
from qa_arch.metrics.confidence import area_values, auroc, auroc_values, thresholds
from qa_arch.metrics.significance import contrast, holm
from qa_arch.records import QUESTIONS, RECORD, find_runs, read_questions, write_questions
from qa_arch.results.comparisons import FITTED, SINGLE_RUN, against_baseline, changed_table, compare
from qa_arch.results.questions import load_aligned, load_questions
from qa_arch.results.samples import MEASURES
from qa_arch.results.systems import find_system, group_by_system, two_systems
from qa_arch.results.tables import markdown, render
from qa_arch.types.text import question_word

NUMBERS = np.arange(120) // 10
"""Of the articles of ``with_articles``."""


@pytest.fixture
def with_articles(sides):
    """The two systems of ``sides``, whose rows tell which of 12 articles a question is of."""
    folder, a, b, _ = sides
    for run in (path for path, _ in [*a.runs, *b.runs]):
        rows = read_questions(run)
        partly = [max(f1, 0.25) for f1 in rows["f1"]]  # F1 is not exact match
        write_questions(run, {**rows, "f1": partly, "article": NUMBERS.tolist()})
    return folder, a, b


@pytest.mark.parametrize(("unit", "drawn"), [("question", "120 questions"), (None, "12 articles")])
def test_every_figure_is_over_its_own_questions_and_articles(with_articles, unit, drawn):
    _, a, b = with_articles
    table = compare(a, b, unit=unit)
    rows = {side: load_aligned(system.runs, "dev") for side, system in (("a", a), ("b", b))}
    first, everything = rows["a"][0], np.ones(120, dtype=bool)
    answerable, kinds = first.answerable, np.array([kind or "" for kind in first.kind])
    expected = {
        f"{prefix}{name}": (lambda run, key=key: getattr(run, key), where)
        for (prefix, where), (name, key) in product(
            (("", everything), ("HasAns ", answerable), ("NoAns ", ~answerable)),
            (("EM", "exact"), ("F1", "f1")),
        )
    } | {
        MEASURES["spans"]: (lambda run: run.span_f1, answerable),
        MEASURES["auroc"]: (lambda run: auroc_values(-run.null_odds, run.answerable), everything),
        MEASURES["aurc"]: (lambda run: area_values(run.null_odds, run.span_f1, run.answerable), everything),
        "entity_swap": (lambda run: run.f1, kinds == "entity_swap"),
        "negation": (lambda run: run.f1, kinds == "negation"),
    }
    assert [row["name"] for row in table.rows] == list(expected)
    for row, (of, where) in zip(table.rows, expected.values(), strict=True):
        scores = {side: 100 * np.stack([of(run)[where] for run in runs]) for side, runs in rows.items()}
        tested = contrast([-scores["a"], scores["b"]], articles=None if unit else NUMBERS[where])
        assert row["questions"] == where.sum()
        for side, own in scores.items():
            assert (row[f"{side}_mean"], row[f"{side}_sd"]) == pytest.approx(
                (own.mean(), own.mean(1).std(ddof=1)), abs=1e-6
            )
        figures = (row["delta"], row["delta_95_low"], row["delta_95_high"], row["p"])
        assert figures == pytest.approx((tested.delta, *tested.interval, tested.p), abs=1e-6)
    last = table.rows[-2:]
    assert [row["p_holm"] for row in last] == pytest.approx(holm([row["p"] for row in last]), abs=1e-6)
    for made in (table, against_baseline([a, b], a, unit=unit)):
        assert any(f"over {drawn} and seeds" in note for note in made.notes)
        assert SINGLE_RUN not in made.notes


def test_untagged_questions_are_sorted_by_question_word(make_run, question_set):
    plain = [replace(example, kind=None) for example in question_set(again=2).examples]
    assert [question_word(text) for text in ("Who's there?", "In how many?", "Name it.")] == [
        "who",
        "how many",
        "other",
    ]
    questions = made_set("made-up", plain, "2.0")
    made = [make_run(name, questions, model=name, right=right) for name, right in (("a", 0.2), ("b", 0.9))]
    sides = two_systems(*(find_runs([run]) for run in made))
    assert compare(*sides).rows[-1]["name"] == "AURC"
    found = compare(*sides, questions=questions, unit="question").rows[9:]
    counts = {"how many": 2, "when": 4, "which": 2, "who": 4}
    assert {row["name"]: row["questions"] for row in found} == counts
    rows = load_questions(*sides[1].runs[0])
    asked = np.array([example.question.startswith("Who") for example in plain])
    assert found[3]["b_mean"] == pytest.approx(100 * rows.f1[asked].mean(), abs=1e-6)
    words = {"word": [question_word(example.question) for example in plain]}
    told = [make_run(f"told-{name}", questions, model=name, rows=words) for name in "ab"]
    without_texts = compare(*two_systems(*(find_runs([run]) for run in told)))
    assert {row["name"]: row["questions"] for row in without_texts.rows[9:]} == counts


def test_the_questions_that_changed_most_come_first(make_run, question_set):
    questions = question_set()
    columns = {"abstained": [False] * 6, "null_odds": [0.0] * 6}
    mixed = {"exact": [1, 0, 0, 1, 0, 1], "f1": [1, 0.5, 0, 1, 0, 1], "abstained": [False] * 4 + [True] * 2}
    a = make_run("a", questions, rows={"exact": [1] * 6, "f1": [1] * 6, **columns}, model="a")
    b = make_run("b", questions, rows={**columns, **mixed, "null_odds": [0, 9, 1, 9, 5, 9]}, model="b")
    sides = two_systems(find_runs([a]), find_runs([b]))
    outcomes = "both right: 3; A right, B wrong: 3; A wrong, B right: 0; both wrong: 0"
    assert outcomes in compare(*sides).notes
    # Furthest in F1 first, of equals the one whose null odds moved most; equals in F1 did not change.
    changed = changed_table(*sides, questions=questions)
    assert [(row["id"], row["a"], row["b"]) for row in changed.rows] == [
        ("q5-0", 1, 0),
        ("q3-0", 1, 0),
        ("q2-0", 1, 0.5),
    ]
    rows, example = read_questions(b), {e.id: e for e in questions.examples}
    texts = [example[i].context[slice(rows["start"][n], rows["end"][n])] for n, i in enumerate(rows["id"])]
    assert [row["b_answers"] for row in changed.rows] == ["no answer", texts[2], texts[1]]
    assert changed.rows[2]["gold"] == "Ada Stone"
    assert [row["id"] for row in changed_table(*sides, top=1).rows] == ["q5-0"]


def test_calibration_compares_where_dev_is_held_out(sides):
    folder, a, b, _ = sides
    on_dev = compare(a, b)
    assert FITTED not in against_baseline([a, b], a).notes
    for run in (path for path, _ in [*a.runs, *b.runs]):
        text = (run / RECORD).read_text().replace('"dev": {', '"calibration": {')
        (run / RECORD).write_text(text)
        (run / "sets" / "calibration").mkdir(parents=True)
        (run / QUESTIONS).rename(run / "sets" / "calibration" / QUESTIONS)
    groups = group_by_system(find_runs([path for path, _ in [*a.runs, *b.runs]]))
    assert compare(*groups, split="calibration").rows == on_dev.rows
    assert against_baseline(groups, groups[0], split="calibration").notes[-1] == FITTED
    (folder / "poor-1" / "sets" / "calibration" / QUESTIONS).unlink()
    with pytest.raises(RunError, match=r"calibration.*missing.*train --config-from"):
        compare(*groups, split="calibration")


def test_rows_that_do_not_fit_are_refused_by_name(make_run, question_set):
    questions = question_set()
    a = make_run("a", questions)
    shuffled = make_run("c", questions, rows={"id": read_questions(a)["id"][::-1]})
    with pytest.raises(RunError, match="another order"):
        load_aligned(find_runs([a, shuffled]), "dev")
    point = {"ranked": {"accuracy": 50.0, "mrr": 0.6, "protocol": "selection", "metric_version": "1"}}
    about = {"dev": {"name": "d", "fingerprint": "f", "protocol": "selection", "questions": 6}}
    selects = make_run("d", questions, scores={"dev": point}, data=about)
    with pytest.raises(RunError, match=r"selects answers.*qa-arch tables"):
        load_questions(*find_runs([selects])[0])


def test_the_command_with_texts(sides, qa_arch, tmp_path):
    folder, _, _, questions = sides
    data = tmp_path / "made-up.json"
    data.write_text(json.dumps(write(questions)))
    arguments = ["compare", folder / "poor-*", folder / "good-*", "--data", data]
    code, out, _ = qa_arch(*arguments, "--top", 3)
    assert code == 0
    for part in ("B − A", "2 seeds of A, 2 seeds of B", "The 3 questions that changed most"):
        assert part in out
    assert any(example.question in out for example in questions.examples)
    code, out, _ = qa_arch(*arguments, "--json")
    measures, settings, changed = json.loads(out)
    row = measures["rows"][1]
    assert row["delta"] == pytest.approx(row["b_mean"] - row["a_mean"], abs=1e-5)
    assert {"name": "model.name", "a": "poor", "b": "good"} in settings["rows"]
    assert changed["rows"][0]["question"] in [example.question for example in questions.examples]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["{}/poor-1"], 2, "name two runs"),
        (["{}/poor-1", "{}/nowhere"], 5, "no such run"),
        (["{}", "{}/x"], 5, "A: these runs differ in more than the seed (model"),
        (["{}", "--baseline", "nobody"], 5, "no system is called"),
        (["{}/poor-1", "{}/good-1", "--split", "test"], 5, "no scores of test"),
        (["{}/poor-1", "{}/good-1", "--spans"], 2, "a comparison of two shows every measure"),
        (["{}", "--baseline", "poor", "--order", "good,nobody"], 2, "'nobody' is not one of the systems"),
        (["{}/poor-1", "{}/good-1", "--unit", "article"], 5, "lack the article"),
    ],
)
def test_wrong_calls(sides, qa_arch, arguments, code, said):
    found = qa_arch("compare", *(word.format(sides[0]) for word in arguments))
    assert found[0] == code
    assert said in found[2]


def test_a_run_that_is_not_finished_is_left_out_with_a_note(sides, qa_arch, make_run, question_set):
    folder, *_ = sides
    before = json.loads(qa_arch("compare", folder, "--baseline", "poor", "--json")[1])[0]
    late = make_run("late", question_set(), model="good", seed=3, status="running", scores={}, data={})
    (table,) = json.loads(qa_arch("compare", folder, "--baseline", "poor", "--json")[1])
    note = f"left out, no scores of dev yet: {late} (running)"
    assert table == {**before, "notes": [*before["notes"], note]}
    assert compare_folders(folder, "poor").notes[-1] == note
    pair = qa_arch("compare", f"{folder}/poor-*", f"{folder}/[gl]*", "--json")
    assert json.loads(pair[1])[0]["notes"][-1] == note
    with pytest.raises(RunError, match=r"no scores of dev \(status running"):
        compare_folders(late, "good")


@pytest.mark.parametrize("measure", ["spans", "auroc", "aurc"])
def test_what_needs_no_threshold_is_tested_as_in_a_comparison_of_two(with_articles, measure):
    _, a, b = with_articles
    table = against_baseline([a, b], a, measure=measure)
    pair = next(row for row in compare(a, b).rows if row["name"] == MEASURES[measure])
    row = next(row for row in table.rows if row["model"] == b.label)
    for key in ("delta", "delta_95_low", "delta_95_high", "p"):
        assert row[key] == pair[key]
    assert "f1_mean" not in row
    runs = load_aligned(b.runs, "dev")
    area = {
        "auroc": lambda run: 100 * auroc(-run.null_odds, run.answerable),
        "aurc": lambda run: thresholds(run.null_odds, run.span_f1, run.answerable).area,
        "spans": lambda run: 100 * run.span_f1[run.answerable].mean(),
    }[measure]
    assert row[f"{measure}_mean"] == pytest.approx(np.mean([area(run) for run in runs]), abs=1e-6)


def test_systems_are_tested_in_a_fixed_order_and_for_equivalence(with_articles):
    _, a, b = with_articles
    systems = [replace(a, label="plain"), replace(b, label="good"), replace(a, label="same")]
    table = against_baseline(systems, systems[0], order=["same"], equivalence=1.0)
    rows = {row["model"]: row for row in table.rows}
    assert rows["good"]["p"] < rows["same"]["p"] == 1.0
    assert rows["good"]["p_holm"] == 1.0, "tested only after one that did not differ"
    assert rows["same"]["p_equivalent"] < rows["good"]["p_equivalent"]
    assert "tested in this order: same" in table.notes
    assert "p, in order" in [column.heading for column in table.columns]


def test_a_run_is_compared_with_the_run_of_its_seed_and_no_seed_counts_twice(sides):
    folder, *_ = sides
    systems = group_by_system(find_runs([folder / "poor-1", folder / "poor-2", folder / "good-1"]))
    parent, child = find_system(systems, "poor"), find_system(systems, "good")
    table = against_baseline(systems, parent, paired=True)
    f1 = [100 * np.mean(read_questions(folder / name)["f1"]) for name in ("poor-1", "good-1")]
    (delta,) = (row["delta"] for row in table.rows if row["model"] == "good")
    assert delta == pytest.approx(f1[1] - f1[0], abs=1e-6)
    assert "against poor, run by run of the same seed; " in table.notes[1]
    alone = replace(parent, runs=parent.runs[1:])
    with pytest.raises(RunError, match="good: no run of poor has the seed 1"):
        against_baseline([alone, child], alone, paired=True)
    twice = replace(child, runs=(*child.runs, (folder / "copy", child.record)))
    with pytest.raises(RunError, match=r"good: seed 1 occurs twice \(.*good-1, .*copy\)"):
        against_baseline([parent, twice], parent)


def test_programs_read_numbers_where_people_read_intervals(sides):
    _, a, b, _ = sides
    table = against_baseline([a, replace(b, runs=b.runs[:1])], a)
    poor, good = json.loads(render([table], "json"))[0]["rows"]
    figures = [f"{key}_{part}" for key in ("exact", "f1") for part in ("mean", "sd", "95_low", "95_high")]
    tests = ["delta", "delta_95_low", "delta_95_high", "p", "p_holm"]
    assert list(poor) == ["model", "seeds", *figures]
    assert list(good) == ["model", "seeds", *figures, *tests]
    assert (good["exact_sd"], good["f1_sd"]) == (None, None)
    numbers = [value for row in (poor, good) for value in row.values() if isinstance(value, float)]
    assert numbers == [round(value, 6) for value in numbers], "committed tables differ by no machine's sums"
    first, second = markdown(table).splitlines()[4:6]
    mean, sd, low, high = (poor[f"f1_{part}"] for part in ("mean", "sd", "95_low", "95_high"))
    assert f"| {mean:.2f} ± {sd:.2f} | {low:.2f} .. {high:.2f} | – | – | – | – |" in first
    low, high = good["delta_95_low"], good["delta_95_high"]
    assert f"| {good['delta']:+.2f} | {low:+.2f} .. {high:+.2f} |" in second
    assert SINGLE_RUN in table.notes


def test_articles_come_from_the_scored_set_where_rows_do_not_tell_them(sides):
    _, a, b, questions = sides
    with pytest.raises(RunError, match=r"lack the article.*--data FILE"):
        compare(a, b, unit="article")
    row = compare(a, b, unit="article", questions=questions).rows[1]
    numbers = np.array([int(example.title == "Title 1") for example in questions.examples])
    x, y = (100 * np.stack([run.f1 for run in load_aligned(s.runs, "dev")]) for s in (a, b))
    assert row["p"] == pytest.approx(contrast([-x, y], articles=numbers).p, abs=1e-6)
    alone = made_set("made-up", [replace(e, title="") for e in questions.examples], "2.0")
    with pytest.raises(RunError, match="all questions come from one article"):
        compare(a, b, unit="article", questions=alone)
