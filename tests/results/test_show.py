"""``qa-arch show``: all parts of a run on one screen, unfinished and failed runs included."""

import json
import math
from dataclasses import replace
from functools import partial
from math import inf, nan

import pytest

from qa_arch.data.question_sets import question_set as build_set
from qa_arch.data.squad import write
from qa_arch.records import QUESTIONS, SplitFacts, read_record, write_record
from qa_arch.types import Gold


@pytest.fixture
def show(qa_arch):
    return partial(qa_arch, "show")


def test_show_takes_the_path_of_a_record(make_run, question_set, show):
    folder = make_run("bert-s13", question_set())
    assert show(folder / "run.json") == show(folder)


def test_errors_are_of_calibration_until_dev_is_scored(make_run, question_set, show):
    questions = question_set()
    record = read_record(folder := make_run("bert-s13", questions))
    dev = record.data["dev"], record.scores["dev"]
    held_out = replace(record, data={"calibration": dev[0]}, scores={"calibration": dev[1]})
    write_record(folder, held_out)
    (folder / "sets" / "calibration").mkdir(parents=True)
    (folder / QUESTIONS).rename(folder / "sets" / "calibration" / QUESTIONS)
    assert "questions of calibration" in show(folder)[1]
    code, _, err = show(folder, "--split", "dev")
    assert (code, "was not scored on 'dev' (scored: calibration)" in err) == (5, True)


@pytest.mark.parametrize("status", ["oom", "failed", "killed", "running"])
def test_show_prints_the_error_of_an_unfinished_run(make_record, tmp_path, show, status):
    write_record(tmp_path, make_record(exact=None, status=status, error="MemoryError: too much"))
    code, out, _ = show(tmp_path)
    assert code == 0
    assert status in out
    assert "MemoryError: too much" in out


def test_missing_question_rows_are_mentioned_without_an_error(make_run, question_set, show):
    folder = make_run("a", question_set())
    (folder / QUESTIONS).unlink()
    code, out, _ = show(folder)
    assert code == 0
    assert "wrong span" not in out
    assert "score the set again" in out
    assert json.loads(show(folder, "--json")[1])["errors"] is None


ROWS = {
    "exact": [1, 0, 0, 0, 1, 0],
    "f1": [1, 0.5, 0, 0, 1, 0],
    "abstained": [False, False, False, True, True, False],
    "span_exact": [1, 0, 0, 1, 0, 0],
    # "1871", "Ada", "burnt", "old bridge", "known", "1871"
    "start": [18, 24, 13, 24, 11, 18],
    "end": [22, 27, 18, 34, 16, 22],
}
"""Rows of ``question_set()``: right, boundary error, false answer, wrong abstention, right, false answer."""


def test_json_has_null_for_numbers_that_are_not_finite(make_record, tmp_path, show):
    epochs = [{"epoch": epoch, "calibration_loss": loss} for epoch, loss in enumerate((1.0, inf))]
    point = {"exact": 60.0, "f1": nan, "threshold": None, "protocol": "2.0", "metric_version": "1"}
    write_record(tmp_path, make_record(epochs=epochs, scores={"dev": {"calibrated": point}}))
    page = json.loads(show(tmp_path, "--json")[1], parse_constant=pytest.fail)
    assert (page["scores"][0]["f1"], page["curves"]) == (None, {"calibration loss": [1.0, None]})


def test_unknown_number_of_blocks_is_shown_as_zero(make_record, tmp_path, show):
    facts = SplitFacts(protocol="masked_lm:1")
    write_record(tmp_path, replace(make_record(exact=None), data={"calibration": facts}))
    assert "0 tokens, 0 bytes, 0 blocks" in show(tmp_path)[1]


def test_abstentions_of_adopted_systems_are_not_split(make_run, question_set, show):
    rows = {**ROWS, "span_exact": [1, 0, 0, math.nan, math.nan, 0]}
    out = show(make_run("a", question_set(), rows=rows, keep_spans=False))[1]
    assert "missed answer  " not in out
    assert "answerable, not answered" in out


def test_data_option_splits_errors_by_boundary_article_and_plausible_answer(
    make_run, question_set, tmp_path, show
):
    questions = question_set()
    plausible = Gold("1871", 18)
    examples = [replace(e, plausible=(plausible,)) if e.id == "q6-0" else e for e in questions.examples]
    questions = build_set("made-up", examples, "2.0")
    folder, file = make_run("a", questions, rows=ROWS), tmp_path / "data.json"
    file.write_text(json.dumps(write(questions)))
    code, out, _ = show(folder, "--data", file)
    assert code == 0
    for part in ("part of the gold", "plausible, of 1", "By article, the worst first", "Title 1", "negation"):
        assert part in out
    errors = json.loads(show(folder, "--data", file, "--json")[1])["mistakes"]
    assert errors["boundaries"] == {"short": 1, "long": 0, "crossing": 0, "apart": 0, "same": 0}
    assert (errors["plausible"], errors["with_plausible"]) == (1, 1)
    first, second = (errors["by_article"][f"Title {n}"] for n in (0, 1))
    assert (first["questions"], first["outcomes"]["right"], first["outcomes"]["undue_answer"]) == (4, 1, 2)
    assert (second["questions"], second["outcomes"]["wrong_abstention"]) == (2, 1)
    assert errors["by_kind"]["negation"]["outcomes"]["right"] == 1
    assert sum(kind["questions"] for kind in errors["by_kind"].values()) == 6
    errors = json.loads(show(folder, "--json")[1])["mistakes"]
    assert errors["by_article"] == {}
    assert "boundaries" not in errors
    german = make_run("b", build_set("made-up", examples, "2.0", language="de"), rows=ROWS)
    assert show(german, "--data", file)[0] == 0, "the record knows the language"
