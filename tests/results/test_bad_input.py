"""Records that cannot be used: every command that reads them says which file, what is wrong, what to do."""

from __future__ import annotations

import json
from itertools import cycle

import pytest

from qa_arch.records import QUESTIONS, RECORD

COMMANDS = {
    "show": ["show", "{bad}"],
    "compare": ["compare", "{good}", "{bad}"],
    "baseline": ["compare", "{runs}", "--baseline", "bert"],
    "tables": ["tables", "{runs}"],
    "publish": ["tables", "{runs}", "--publish", "{runs}/../out"],
}


@pytest.fixture
def runs(make_run, question_set):
    """A good run and one that a test damages."""
    good = make_run("good", question_set(), seed=1)
    make_run("worse", question_set(), model="albert", seed=1)
    return good.parent


@pytest.fixture
def call(runs, qa_arch):
    names = {"good": runs / "good", "bad": runs / "worse", "runs": runs}
    return lambda command: qa_arch(*(word.format(**names) for word in COMMANDS[command]))


def with_fields(**fields):
    return lambda record: json.dumps(json.loads(record) | fields)


def with_a_word_for_a_section(record: str) -> str:
    values = json.loads(record)
    return json.dumps(values | {"config": values["config"] | {"trainer": "x"}})


def with_a_set_outside(record: str) -> str:
    values = json.loads(record)
    return json.dumps(values | {"scores": values["scores"] | {"../../../esc": values["scores"]["dev"]}})


def nested(depth: int):
    return lambda record: record.replace(
        '"config": {', '"config": {"deep": ' + "[" * depth + "]" * depth + ", "
    )


DAMAGE = {
    "nested too deep to be read": (nested(100_000), "cannot be read (maximum recursion depth exceeded"),
    "nested too deep": (nested(500), "cannot be read (nested more than 64 deep); run it again or delete"),
    "with a number of 400 digits": (
        with_fields(seed=10**400),
        "cannot be read (int too large to convert to float)",
    ),
    "named by half a surrogate pair": (with_fields(model="\ud800"), "surrogates not allowed"),
    "with a word for a section": (with_a_word_for_a_section, "config.trainer: expected a mapping; score the"),
    "with a set outside": (with_a_set_outside, "'../../../esc' cannot be the name of a folder"),
    "of an experiment outside": (
        with_fields(name="trial/../../esc"),
        "'trial/../../esc' cannot be the name",
    ),
    "of an older schema": (with_fields(schema=0), "record of schema 0, this version reads 2 and 1"),
    "half written": (lambda record: record[: len(record) // 2], "cannot be read"),
}


@pytest.mark.parametrize(("damage", "command"), list(zip(DAMAGE, cycle(COMMANDS))))
def test_a_record_that_cannot_be_read_is_refused_by_name_and_a_report_goes_on(
    runs, call, qa_arch, tmp_path, damage, command
):
    change, said = DAMAGE[damage]
    path = runs / "worse" / RECORD
    path.write_text(change(path.read_text()))
    code, out, err = call(command)
    assert (code, out) == (5, "")
    assert err.startswith(f"qa-arch: {path}: ")
    assert said in err
    assert err.count("\n") == 1
    if damage in ("half written", "with a set outside"):
        code, out, err = qa_arch("report", runs, "--out", tmp_path / "report.html")
        assert code == 0
        assert f"not used: {path}: " in err
        assert ": 1 run," in out


def test_rows_of_questions_that_are_half_written_or_missing(runs, call):
    path = runs / "worse" / QUESTIONS
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


@pytest.mark.parametrize("change", [{"fingerprint": "other"}, {"protocol": "1.1"}], ids=str)
def test_other_sets_and_protocols_are_never_averaged(runs, call, change):
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


ORDER = "\x1b]0;owned\x07\x1b[2J"


@pytest.mark.parametrize("command", COMMANDS)
def test_names_in_a_record_give_the_terminal_no_orders(runs, call, command, monkeypatch):
    """Model, title, name and set; also where rich draws, as in a terminal."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    path = runs / "worse" / RECORD
    values = json.loads(path.read_text())
    named = {"model": f"al{ORDER}bert", "commit": ORDER, "status": "failed", "error": f"lost {ORDER}"}
    path.write_text(json.dumps(values | named))
    code, out, err = call(command)
    assert "\x1b]" not in out + err
    assert "\x1b[2J" not in out + err
    assert "\x07" not in out + err
    assert code != 70
