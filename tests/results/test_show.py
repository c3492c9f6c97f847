"""One run: the kinds of its errors, ``qa-arch show``, and its objects, frames and tables in Python."""

import json
import math
import shutil
from dataclasses import replace
from functools import partial
from math import inf, nan
from pathlib import Path

import numpy as np
import pytest
from broken_records import change_record

import qa_arch
import qa_arch.results.notebooks
from qa_arch.cli.main import main
from qa_arch.data.question_sets import question_set as build_set
from qa_arch.errors import ConfigError, DataError, RunError
from qa_arch.metrics.squad import score_questions
from qa_arch.records import QUESTIONS, RECORD, SplitFacts, find_runs, read_record, run_named, write_record
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
    questions = build_set("made", [case[0] for case in cases], "2.0")
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
    questions, rows = build_set("made", [case[0] for case in CASES], "2.0"), rows_of(CASES[::-1])
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


def test_judge_of_other_languages_and_of_golds_without_a_place() -> None:
    example = Example("q", "?", "In der Burg", "t", (), (Gold("Burg", 7),))
    rows = rows_of([(query("q"), "red", False)]) | {"start": [3], "end": [11]}
    sets = (build_set("made", [example], "2.0", language=language) for language in ("de", "en"))
    assert [judge(rows, questions).plausible[0] for questions in sets] == [True, False]
    example = Example("q", "?", TEXT, "t", (Gold("Ilva Mourne", -1),))
    result = judge(rows_of([(example, "Ilva", False)]), build_set("made", [example], "2.0"))
    assert judged(result) == [["wrong_span", None, True, None]]


def test_judge_without_texts_finds_the_same_outcomes() -> None:
    questions, rows = build_set("made", [case[0] for case in CASES], "2.0"), rows_of(CASES)
    without_texts, with_texts = judge(rows), judge(rows, questions)
    for column in ("outcome", "near_miss", "overlaps"):
        assert np.array_equal(getattr(without_texts, column), getattr(with_texts, column)), column
    assert {(own[1], own[3]) for own in judged(without_texts)} == {(None, None)}
    assert without_texts.articles is None
    outcomes = judge(without_withheld(rows)).figures()["outcomes"]
    assert outcomes == {"right": 4, "wrong_span": 6, "unanswered": 3, "undue_answer": 4}


def test_touching_spans_do_not_overlap() -> None:
    span, example = gold("red mill"), query("q", "red mill")
    places = (span.end, span.end + 3), (span.start - 2, span.start), (span.start, span.end)
    assert [boundary(example, *place) for place in places] == ["apart", "apart", "same"]


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
        judge(rows, build_set("made", [query("q", "red mill")], "2.0"))


@pytest.fixture
def show(qa_arch):
    return partial(qa_arch, "show")


def test_errors_are_of_calibration_until_dev_is_scored(make_run, question_set, show):
    record = read_record(folder := make_run("bert-s13", question_set()))
    assert show(folder / RECORD) == show(folder)
    data, scores = ({"calibration": values["dev"]} for values in (record.data, record.scores))
    write_record(folder, replace(record, data=data, scores=scores))
    (folder / "sets" / "calibration").mkdir(parents=True)
    (folder / QUESTIONS).rename(folder / "sets" / "calibration" / QUESTIONS)
    assert "questions of calibration" in show(folder)[1]


def test_unfinished_runs_and_missing_rows_are_shown(make_record, make_run, question_set, tmp_path, show):
    for status in ("oom", "running"):
        write_record(tmp_path, make_record(exact=None, status=status, error="MemoryError: too much"))
        code, out, _ = show(tmp_path)
        assert (code, status in out, "MemoryError: too much" in out) == (0, True, True)
    facts = SplitFacts(protocol="masked_lm:1")  # of an unknown number of blocks
    write_record(tmp_path, replace(make_record(exact=None), data={"calibration": facts}))
    assert "0 tokens, 0 bytes, 0 blocks" in show(tmp_path)[1]
    folder = make_run("a", question_set())
    (folder / QUESTIONS).unlink()
    code, out, _ = show(folder)
    assert (code, "wrong span" in out, "score the set again" in out) == (0, False, True)
    assert json.loads(show(folder, "--json")[1])["errors"] is None


def test_json_has_null_for_numbers_that_are_not_finite(make_record, tmp_path, show):
    epochs = [{"epoch": epoch, "calibration_loss": loss} for epoch, loss in enumerate((1.0, inf))]
    point = {"exact": 60.0, "f1": nan, "threshold": None, "protocol": "2.0", "metric_version": "1"}
    write_record(tmp_path, make_record(epochs=epochs, scores={"dev": {"calibrated": point}}))
    page = json.loads(show(tmp_path, "--json")[1], parse_constant=pytest.fail)
    assert (page["scores"][0]["f1"], page["curves"]) == (None, {"calibration loss": [1.0, None]})


def test_abstentions_of_adopted_systems_are_not_split(make_run, question_set, show):
    rows = {"exact": [1, 0, 0, 0, 1, 0], "f1": [1, 0.5, 0, 0, 1, 0]}
    rows["abstained"] = [False, False, False, True, True, False]
    rows["span_exact"] = [1, 0, 0, math.nan, math.nan, 0]
    out = show(make_run("a", question_set(), rows=rows, keep_spans=False))[1]
    assert "missed answer  " not in out
    assert "answerable, not answered" in out


ANSWER, DEMO = (Path(__file__).parents[2] / "experiments" / name / "records" for name in ("answer", "demo"))


@pytest.fixture(scope="module")
def demo() -> qa_arch.Run:
    (folder,) = DEMO.glob("bert-s13-*")
    return qa_arch.Run(folder)


@pytest.fixture
def changed(demo, tmp_path):
    """``changed(**fields)``: a copy of the demo's BERT run with these fields in its record."""

    def copy(name="copy", **fields):
        folder = Path(shutil.copytree(demo.folder, tmp_path / name))
        change_record(folder, **fields)
        return folder

    return copy


def test_frame_rows_match_the_committed_tables():
    frame = qa_arch.runs(ANSWER)
    rows = json.loads((ANSWER.parent / "table.json").read_text())[0]["rows"]
    committed = {row["run"]: row for row in rows if "run" in row}
    assert len(frame) == len(committed) > 10
    keys = ["model", "seed", "exact", "f1", "HasAns_f1", "NoAns_f1", "null_threshold", "seconds"]
    for folder, row in frame.iterrows():
        expected = committed[str(Path(str(folder)).relative_to(ANSWER.parent))]
        assert [row[key] for key in keys] == [expected[key] for key in keys]


def test_only_varying_settings_have_a_column(changed, demo):
    config = json.loads((demo.folder / RECORD).read_text())["config"]
    config["optim"]["lr"] *= 2
    frame = qa_arch.runs([demo, changed(config=config)])
    assert frame["optim.lr"].tolist()[1] == 2 * frame["optim.lr"].tolist()[0]
    assert [column for column in frame if "." in column] == ["optim.lr"]
    assert frame["system"].nunique() == 2


def test_question_columns_are_optional_and_unscored_runs_have_a_row(demo, changed):
    assert "auroc" not in qa_arch.runs(demo)
    assert 0 < qa_arch.runs(demo, columns="auroc")["auroc"].item() <= 100
    with pytest.raises(RunError, match=r"split: no run was scored on 'test' \(known: calibration, dev"):
        qa_arch.runs(demo, split="test")
    frame = qa_arch.runs(changed(scores={}, status="failed", error="ValueError: no"))
    assert frame["status"].tolist() == ["failed"]
    assert "f1" not in frame


def test_question_rows_average_to_the_score(demo):
    questions, point = demo.questions, demo.record.compared_point("dev")
    assert demo.scores.loc[("dev", "calibrated"), "f1"] == point.f1
    assert demo.scores.loc[("dev", "calibrated"), "threshold"] == point.threshold
    assert questions["f1"].mean() == pytest.approx(point.f1)
    assert questions["span_f1"].max() == 100 >= questions["confidence"].max() * 100
    assert questions.index.is_unique
    assert ((questions["outcome"] == "right") == (questions["exact"] == 100)).all()
    false_answer = ~questions["answerable"] & ~questions["abstained"]
    assert ((questions["outcome"] == "false answer") == false_answer).all()
    run = qa_arch.Run(ANSWER / "seed13-bert")
    assert set(run.questions_of("calibration").index).isdisjoint(run.questions.index)


def test_run_is_path_like_and_has_its_settings_and_curves(demo):
    run = qa_arch.Run(demo.folder / RECORD)
    assert (Path(run), run.record) == (demo.folder, demo.record)
    assert (demo.seed, demo.config["model"]["name"]) == (13, "bert")
    epochs = demo.record.epochs
    assert demo.curves["train_loss"].tolist() == [epoch.train_loss for epoch in epochs]
    assert demo.curves["calibration_f1"].tolist() == [epoch.metrics["calibration_f1"] for epoch in epochs]
    point = demo.record.compared_point("dev")
    assert f"bert, seed 13, ok: dev EM {point.exact:.1f}, F1 {point.f1:.1f}" in repr(demo)
    assert len(repr(demo.record)) < 100
    assert "F1" in demo._repr_html_()
    with pytest.raises(RunError, match="no such run folder"):
        qa_arch.Run(DEMO / "nothing")
    for name, call in {
        "folder": qa_arch.Run,
        "folders": qa_arch.runs,
        "columns": lambda wrong: qa_arch.runs(DEMO, columns=wrong),
        "order": lambda wrong: qa_arch.effects(DEMO, "bert", order=wrong),
        "overrides": qa_arch.train,
        "config_dir": lambda wrong: qa_arch.train(["model=bert"], config_dir=wrong),
    }.items():
        with pytest.raises(ConfigError, match=f"^{name}: expected a string, got 3"):
            call(3)
    with pytest.raises(RunError, match=r"^split: no run was scored on"):
        qa_arch.runs(DEMO, split=["dev"])


def test_answer_texts_come_from_the_scored_set(demo):
    questions = demo.questions_of(data="synthetic:dev")
    answered = questions[~questions["abstained"]]
    right = answered[answered["exact"] == 100]
    assert len(right) > 20
    assert all(row.answer in row.gold for row in right.itertuples())
    assert (questions[questions["abstained"]]["answer"] == "").all()
    assert [len(gold) > 0 for gold in questions["gold"]] == questions["answerable"].tolist()
    with pytest.raises(DataError, match="not the questions that the runs were scored on"):
        demo.questions_of(data="synthetic:calibration")


def test_question_rows_of_another_record_are_refused(changed, demo):
    data = json.loads((demo.folder / RECORD).read_text())["data"]
    data["dev"]["questions"] += 1
    with pytest.raises(RunError, match="do not belong together"):
        _ = qa_arch.Run(changed(data=data)).questions
    with pytest.raises(RunError, match="missing"):
        demo.questions_of("other")


def test_comparison_is_a_table_and_a_frame():
    table = qa_arch.effects(DEMO, "bert", measure="forced_f1")
    frame, rows = table.to_frame().set_index("model"), {row["model"]: row for row in table.rows}
    assert frame.loc["proposed", "delta"] == rows["proposed"]["delta"] != 0
    with pytest.raises(RunError, match="no system is called 'brt'"):
        qa_arch.effects(DEMO, "brt")
    for option, value in (("measure", "F1"), ("unit", "articles")):
        with pytest.raises(ConfigError, match=f"{option}: '{value}' is not a choice"):
            qa_arch.effects(DEMO, "bert", **{option: value})


def test_the_beginning_of_a_name_is_enough(demo, tmp_path, monkeypatch):
    for name in ("trial/bert-s1", "trial/bert-s2", "other/proposed-s1", "other/deep/bert-x-s1"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        shutil.copy(demo.folder / RECORD, tmp_path / "runs" / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(qa_arch.results.notebooks, "read_scored", read_record)  # without their questions
    for name, folder in {
        "prop": "other/proposed-s1",
        "bert-x": "other/deep/bert-x-s1",
        "runs/trial/bert-s2": "trial/bert-s2",
        "runs/other/p": "other/proposed-s1",
    }.items():
        assert qa_arch.Run(name).folder == Path("runs", folder)
        assert [path for path, _ in find_runs([name], read_run=read_record)] == [Path("runs", folder)]
    several = "bert-s: begins the names of 2 runs; name one: runs/trial/bert-s1, runs/trial/bert-s2"
    for use in (qa_arch.Run, lambda name: find_runs([name]), qa_arch.load, run_named):
        with pytest.raises(RunError, match=several):
            use("bert-s")
    assert main(["show", "bert-s"]) == RunError.exit_code
    assert run_named("albert") == "albert"
    with pytest.raises(RunError, match="no such run folder"):
        qa_arch.Run("albert")


def test_html_in_a_record_is_escaped(changed):
    evil = '<script>alert("&1")</script>'
    run = qa_arch.Run(changed(evil.replace("/", "|"), model=evil, status="failed", error=evil, scores={}))
    assert "<script" not in run._repr_html_()
    assert run._repr_html_().count("&lt;script") == 3
