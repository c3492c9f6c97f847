"""The benchmarks' rows, timing and peers. Nothing is timed here: the peers must agree, the table be whole."""

from __future__ import annotations

import json
import math

import pytest

from benchmarks import __main__ as runner
from benchmarks import decoding, growth, official, peers, timing
from benchmarks.preparation import differences
from benchmarks.registry import MEASURES
from benchmarks.report import Row, describe_machine, markdown, summary
from benchmarks.targets import TARGETS, Measurement, NotMeasuredError
from benchmarks.timing import Timed
from qa_arch.data.question_sets import question_set
from qa_arch.data.squad import write
from qa_arch.features import tokenizers
from qa_arch.features.windows import prepare
from qa_arch.metrics.squad import score
from qa_arch.types.text import Example, Gold

PASSAGE = "The bridge at Lowmere was built by Ada Stone in 1871, of oak and a little iron. " * 6
NAMES = [target.name for target in TARGETS]


def questions():
    def entry(number, question, text, nth=0):
        start = -1
        for _ in range(nth + 1):
            start = PASSAGE.find(text, start + 1)
        return Example(f"q{number}", question, PASSAGE, "Bridge", (Gold(text, start),))

    return question_set(
        "made up",
        [
            entry(0, "  Who built the bridge?", "Ada Stone"),
            entry(1, "When was it built?", "1871", nth=4),
            entry(2, "What is it made of?", "oak and a little iron", nth=5),
            entry(3, "What comes first?", "The bridge"),
            Example("q4", "Who sank it?", PASSAGE, "Bridge"),
        ],
        "2.0",
    )


def test_every_row_has_a_measure_and_none_that_was_published_is_left_out():
    rows = json.loads((runner.RESULTS / "table.json").read_text(encoding="utf-8"))["rows"]
    published = [row["name"] for row in rows]
    assert published == [name for name in NAMES if name in published]
    assert MEASURES.keys() == {*NAMES}


def test_the_preparations_agree_and_a_planted_difference_is_counted():
    squad = questions()
    tokenizer = tokenizers.build("wordpiece", [PASSAGE, *(e.question for e in squad.examples)], 200)
    table = prepare(squad, tokenizer, max_length=48, stride=12, max_question=24, segments=True)
    theirs = peers.prepare(squad.examples, tokenizer, max_length=48, stride=12)
    assert len(table) > 2 * len(squad)
    assert 4 <= sum(start > 0 for start in theirs.start) < len(table)
    assert differences(table, theirs) == 0
    theirs.end[0] += 1
    theirs.ids[2][5] += 1
    assert differences(table, theirs) == 2
    theirs.ids.pop()
    assert differences(table, theirs) == len(table)


def test_the_decodings_agree_and_a_planted_difference_is_seen():
    made = decoding.random_inputs(12, 4)
    theirs = peers.post_process(*decoding.theirs(made))
    ours = decoding.ours(made)
    assert decoding.equal(ours, theirs)
    assert {text == "" for text in ours[0]} == {True, False}
    assert max(len(entries) for entries in ours[1]) >= 20
    assert list(made.sizes).count(2) == 4
    ours[1][3][1]["probability"] += 1e-4
    assert not decoding.equal(ours, theirs)


def test_the_scorers_agree():
    squad = questions()
    given = {"q0": "Stone", "q1": "in the 1871", "q2": "", "q3": "A bridge!", "q4": ""}
    scores = score(squad, given).official
    assert scores == official.evaluate(write(squad)["data"], given)
    assert scores["exact"] == 40.0
    assert 60 < scores["f1"] < 80


def test_alternating_runs_take_turns_and_warm_up_uncounted():
    calls: list[str] = []
    pairs = timing.alternate(lambda: calls.append("a"), lambda: calls.append("b"), 3)
    assert "".join(calls) == "ab" + "ab" + "ba" + "ab"
    assert len(pairs.ours) == len(pairs.theirs) == 3


def test_rows_and_table():
    machine = describe_machine() | {"load_after": [0.0]}
    done = Row(TARGETS[0], Measurement(9.0, 8.5, Timed(0.2, 0.3), Timed(1.8, 1.8), "tiny"))
    late, missing = Row(TARGETS[0], Measurement(7.0)), Row(TARGETS[1], None, "no data")
    assert done.record() | {"name": "prepare", "ratio": 9.0, "reached": True} == done.record()
    assert late.record()["reached"] is False
    assert (missing.record()["ratio"], missing.record()["reached"]) == (None, None)
    assert missing.record()["note"] == "not measured: no data"
    text = markdown([done, late, missing], machine)
    assert "| 9.00 × | ≥ 8 × | yes | 8.50 | 200 ms | 1800 ms | tiny |" in text
    assert "**no**" in text
    assert len({line.count("|") for line in text.splitlines() if line.startswith("|")}) == 1
    assert not math.isnan(json.loads(json.dumps(machine))["load"][0])


def test_the_runner_keeps_whole_runs_only_and_survives_a_fault(monkeypatch, tmp_path, capsys):
    def absent(quick):
        raise NotMeasuredError("no data here")

    def broken(quick):
        raise ZeroDivisionError("oops")

    made = dict.fromkeys(MEASURES, absent) | {"prepare": broken, "cli-help": lambda quick: Measurement(0.1)}
    monkeypatch.setattr(runner, "MEASURES", made)
    readme = tmp_path / "README.md"
    readme.write_text("# Title\n\n<!-- bench -->\nold\n<!-- end -->\n\nrest\n")
    monkeypatch.setattr(runner, "PAGE", readme)
    monkeypatch.setattr(runner, "RESULTS", tmp_path / "results")
    assert runner.main(["cli-help"]) == 0
    assert runner.main(["--quick"]) == 0
    assert not (tmp_path / "results").exists()
    assert "\nold\n" in readme.read_text()
    assert runner.main([]) == 0
    stored = json.loads((tmp_path / "results" / "table.json").read_text())
    shown = readme.read_text()
    assert shown == f"# Title\n\n<!-- bench -->\n\n{summary(stored)}\n<!-- end -->\n\nrest\n"
    assert "| qa-arch --help, whole process | - | 0.10 s | ≤ 0.3 s | yes |" in shown
    assert shown.count("\n| ") == 2
    assert "`prepare`, " in shown
    assert [row["name"] for row in stored["rows"]] == NAMES
    by_name = {row["name"]: row for row in stored["rows"]}
    assert by_name["cli-help"]["reached"] is True
    assert by_name["prepare"]["note"] == "not measured: failed: ZeroDivisionError: oops"
    assert by_name["sampler-tokens"]["note"] == "not measured: no data here"
    assert (tmp_path / "results" / "table.md").read_text() in capsys.readouterr().out
    with pytest.raises(SystemExit):
        runner.main(["prepair"])


def test_a_slope_is_that_of_the_power(monkeypatch):
    monkeypatch.setattr(growth, "generated_set", lambda size: None)
    monkeypatch.setattr(growth, "once", lambda run: Timed(run(), 0.0))
    assert growth.slope(lambda size: 3.0 * size, True).value == pytest.approx(1.0)
    assert growth.slope(lambda size: 0.5 * size**1.5, False).value == pytest.approx(1.5)
