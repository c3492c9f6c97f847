"""Unusable records: every command that reads them names the file, the fault and the remedy."""

import json
import math
import random
from dataclasses import replace
from datetime import datetime
from itertools import cycle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from broken_records import changed

from qa_arch import records
from qa_arch.errors import RunError
from qa_arch.files import hold
from qa_arch.records import QUESTIONS, RECORD, read_questions, read_record, write_questions, write_record
from qa_arch.results.notebooks import Run
from qa_arch.results.systems import question_columns

COMMANDS = {
    "show": ["show", "{bad}"],
    "compare": ["compare", "{good}", "{bad}"],
    "baseline": ["compare", "{runs}", "--baseline", "bert"],
    "tables": ["tables", "{runs}"],
    "publish": ["tables", "{runs}", "--publish", "{runs}/../out"],
}


@pytest.fixture
def runs(make_run, question_set):
    """Folder with a good run and one for the test to damage."""
    good = make_run("good", question_set(), seed=1)
    make_run("worse", question_set(), model="albert", seed=1)
    return good.parent


@pytest.fixture
def call(runs, qa_arch):
    names = {"good": runs / "good", "bad": runs / "worse", "runs": runs}
    return lambda command: qa_arch(*(word.format(**names) for word in COMMANDS[command]))


def with_field(*path, value):
    return lambda record: json.dumps(changed(json.loads(record), path, value))


def nested(depth: int):
    deep = "[" * depth + "]" * depth
    return lambda record: record.replace('"config": {', f'"config": {{"deep": {deep}, ')


DAMAGE = {
    "nested beyond the recursion limit": (
        nested(100_000),
        "cannot be read (maximum recursion depth exceeded",
    ),
    "nested too deep": (nested(500), "cannot be read (nested more than 64 deep); run it again or delete"),
    "with a number of 400 digits": (
        with_field("seed", value=10**400),
        "cannot be read (int too large to convert to float)",
    ),
    "with a lone surrogate as model": (with_field("model", value="\ud800"), "surrogates not allowed"),
    "with a string as section": (
        with_field("config", "trainer", value="x"),
        "config.trainer: expected a mapping; score the",
    ),
    "with a split outside the run folder": (
        with_field("scores", "../../../esc", value={}),
        "'../../../esc' cannot be the name of a folder",
    ),
    "with rows outside the run folder": (
        with_field("rows", "../../../esc", value="0"),
        "'../../../esc' cannot be the name of a folder",
    ),
    "of an experiment outside the checkout": (
        with_field("name", value="trial/../../esc"),
        "'trial/../../esc' cannot be the name",
    ),
    "of an earlier schema": (
        with_field("schema", value=2),
        "record of schema 2, this version reads 4; migrate it: python experiments/migrate_records.py ",
    ),
    "of a later schema": (
        with_field("schema", value=7),
        "record of schema 7, this version reads 4; use the qa_arch version that wrote it",
    ),
    "with the weights of an epoch that it lacks": (
        with_field("best_epoch", value=9),
        "best_epoch: 9 is none of the 2 epochs",
    ),
    "half written": (lambda record: record[: len(record) // 2], "cannot be read"),
    "with an unknown status": (with_field("status", value="splendid"), "splendid"),
    "with an unknown field": (with_field("surprise", value=1), "surprise"),
}


@pytest.mark.parametrize(("damage", "command"), list(zip(DAMAGE, cycle(COMMANDS))))
def test_unreadable_record_is_refused_by_name_but_skipped_by_report(
    runs, call, qa_arch, tmp_path, damage, command
):
    change, message = DAMAGE[damage]
    path = runs / "worse" / RECORD
    path.write_text(change(path.read_text()))
    code, out, err = call(command)
    assert (code, out) == (5, "")
    assert err.startswith(f"qa-arch: {path}: ")
    assert message in err
    assert err.count("\n") == 1
    if damage in ("half written", "with a split outside the run folder"):
        code, out, err = qa_arch("report", runs, "--out", tmp_path / "report.html")
        assert code == 0
        assert f"not used: {path}: " in err
        assert ": 1 run," in out


def test_all_unreadable_records_are_named_at_once(runs, qa_arch):
    paths = sorted(runs.glob(f"*/{RECORD}"))
    for path in paths:
        path.write_text("{")
    code, _, err = qa_arch("tables", runs)
    assert (code, [str(path) in err for path in paths]) == (5, [True] * len(paths))
    assert len(paths) > 1


def test_damaged_or_missing_question_rows_are_refused(runs, call, make_record):
    path = runs / "worse" / QUESTIONS
    columns = read_questions(path.parent)
    pq.write_table(pa.table(columns | {"start": ["x"] * len(columns["start"])}), path)
    code, out, err = call("baseline")
    assert (code, out) == (5, "")
    assert f"{path}: not readable (a column has the wrong type: start is string)" in err
    path.write_bytes(path.read_bytes()[:100])
    code, out, err = call("compare")
    assert (code, out) == (5, "")
    assert f"{path}: not readable" in err
    assert "score the run again" in err
    path.unlink()
    code, out, err = call("baseline")
    assert (code, out) == (5, "")
    assert f"{path}: missing" in err
    assert f"qa-arch evaluate --run {path.parent}" in err
    with pytest.raises(RunError, match="qa-arch evaluate --run 'a run' --data FILE"):
        question_columns(Path("a run"), make_record())


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("id", ["a"], "id is list<"),
        ("id", {"a": 1}, "id is struct<"),
        ("id", b"\xff", "id is binary"),
        ("id", 7, "id is int64"),
        ("start", math.inf, "start is double"),
        ("f1", 2.0, "f1 is not between 0 and 1"),
        ("confidence", math.inf, "confidence is not between 0 and 1"),
        ("kind", [[1]], "kind is list<"),
        ("other", [1], "other is list<"),
    ],
)
def test_values_of_another_type_in_question_rows_are_refused(runs, call, name, value, message):
    path = runs / "worse" / QUESTIONS
    columns = read_questions(path.parent)
    pq.write_table(pa.table(columns | {name: [value] * len(columns["id"])}), path)
    code, out, err = call("baseline")
    assert (code, out, err.count("\n")) == (5, "", 1)
    assert f"{path}: " in err
    assert message in err


def test_questions_without_an_id_or_not_in_utf8_are_refused(runs, call):
    path = runs / "worse" / QUESTIONS
    columns = read_questions(path.parent)
    write_questions(path.parent, columns | {"id": [None, *columns["id"][1:]]})
    assert "a row has no id" in call("baseline")[2]
    write_questions(path.parent, columns)
    table = pq.read_table(path)
    _, offsets, text = table["id"].combine_chunks().buffers()
    invalid = pa.StringArray.from_buffers(len(table), offsets, pa.py_buffer(b"\xff" * text.size))
    pq.write_table(table.set_column(0, "id", invalid), path)
    code, _, err = call("baseline")
    assert (code, err.count("\n")) == (5, 1)
    assert f"{path}: not readable (" in err


@pytest.mark.parametrize(
    "ids", [["1", "2"] * 20, [f"{n:02d}" for n in range(40)]], ids=["listed", "prefixed"]
)
@pytest.mark.parametrize(
    ("limit", "message"), [("MOST_VALUES", "80 values"), ("MOST_BYTES", "MiB of values")]
)
def test_question_rows_that_repeat_a_long_text_are_refused(tmp_path, monkeypatch, ids, limit, message):
    """As an entry of the column's list of texts, or as a prefix of others: the file has it once."""
    write_questions(tmp_path, {"id": [10**5 * "x" + id_ for id_ in ids], "kind": ["answerable"] * 40})
    assert (tmp_path / QUESTIONS).stat().st_size < 2000
    assert len(read_questions(tmp_path)["id"]) == 40
    monkeypatch.setattr(records, limit, 10, raising=False)
    with pytest.raises(RunError, match=rf"not readable \(.*{message}"):
        read_questions(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(15))
def test_damaged_question_rows_are_never_a_bug(runs, call, seed, qa_arch, tmp_path):
    """150 files with changed bytes, or with a column of other values; none ends in exit 70."""
    rng, path = random.Random(seed), runs / "worse" / QUESTIONS
    content, columns = path.read_bytes(), read_questions(path.parent)
    values = (["a"], {"a": 1}, b"\xff", None, math.inf, math.nan, 2**62, -1, "x", True, datetime(2026, 1, 1))
    for number in range(10):
        if number % 2:
            damaged = bytearray(content)
            for _ in range(rng.choice([1, 1, 3, 20])):
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            path.write_bytes(damaged)
        else:
            name, value = rng.choice(list(columns)), rng.choice(values)
            pq.write_table(pa.table(columns | {name: [value] * len(columns["id"])}), path)
        for command in ("show", "compare", "baseline", "tables"):
            assert call(command)[0] in (0, 5)
        assert qa_arch("report", runs, "--out", tmp_path / "report.html")[0] in (0, 5)


@pytest.mark.parametrize("command", COMMANDS)
def test_rows_of_another_scoring_are_refused(runs, call, qa_arch, tmp_path, command):
    """As a command leaves them that was killed between rows and record."""
    folder = runs / "worse"
    record, columns = read_record(folder), read_questions(folder)
    write_record(folder, replace(record, rows={"dev": write_questions(folder, columns)}))
    assert call(command)[0] == 0
    write_questions(folder, columns | {"f1": columns["f1"][::-1]})
    code, out, err = call(command)
    assert (code, err.count("\n")) == (5, 1)
    assert out == "" or command == "publish"  # of the runs before it
    assert f"{folder / QUESTIONS}: are not the rows that the scores in {RECORD} belong to; score the" in err
    assert f"qa-arch evaluate --run {folder} --data FILE" in err
    with hold(folder, "run"):
        assert "it is being scored again; repeat this" in call(command)[2]
    assert "not used: " in qa_arch("report", runs, "--out", tmp_path / "report.html")[2]
    with pytest.raises(RunError, match="are not the rows"):
        question_columns(folder, read_record(folder))
    with pytest.raises(RunError, match="are not the rows"):
        Run(folder)


@pytest.mark.parametrize("change", [{"fingerprint": "other"}, {"protocol": "1.1"}], ids=str)
def test_runs_on_different_sets_or_protocols_are_not_comparable(runs, call, change):
    path = runs / "worse" / RECORD
    record = json.loads(path.read_text())
    record["data"]["dev"] |= change
    path.write_text(json.dumps(record))
    for command in ("compare", "baseline"):
        code, out, err = call(command)
        assert (code, out) == (5, "")
        assert "are not comparable" in err
        for folder in ("good", "worse"):
            assert str(runs / folder) in err


ESCAPES = "\x1b]0;owned\x07\x1b[2J"


@pytest.mark.parametrize("command", COMMANDS)
def test_terminal_escapes_in_a_record_are_not_printed(runs, call, command, monkeypatch):
    """In model, commit and error, also with the colours that rich draws on a terminal."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    path = runs / "worse" / RECORD
    values = json.loads(path.read_text())
    fields = {"model": f"al{ESCAPES}bert", "commit": ESCAPES, "status": "failed", "error": f"lost {ESCAPES}"}
    path.write_text(json.dumps(values | fields))
    code, out, err = call(command)
    assert "\x1b]" not in out + err
    assert "\x1b[2J" not in out + err
    assert "\x07" not in out + err
    assert code != 70
