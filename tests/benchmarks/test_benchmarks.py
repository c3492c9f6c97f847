"""The benchmarks' rows, table and peers. Nothing is timed: peers must agree, and the table be complete."""

import json
import math
import re

import pytest

from benchmarks import __main__ as runner
from benchmarks import decoding, growth, official, peers, timing
from benchmarks.preparation import differences
from benchmarks.registry import MEASURES
from benchmarks.report import TargetRow, describe_machine, markdown, summary
from benchmarks.targets import TARGETS, Measurement, NotMeasuredError
from benchmarks.timing import Timed
from qa_arch.data.question_sets import question_set
from qa_arch.data.squad import write
from qa_arch.features import tokenizers
from qa_arch.features.windows import prepare
from qa_arch.metrics.squad import score
from qa_arch.results.tables import fill_between
from qa_arch.types import Example, Gold

PASSAGE = "The bridge at Lowmere was built by Ada Stone in 1871, of oak and a little iron. " * 6
NAMES = [target.name for target in TARGETS]


def questions():
    def entry(number, question, text, nth=0):
        start = -1
        for _ in range(nth + 1):
            start = PASSAGE.find(text, start + 1)
        return Example(f"q{number}", question, PASSAGE, "Bridge", (Gold(text, start),))

    return question_set(
        "invented",
        [
            entry(0, "  Who built the bridge?", "Ada Stone"),
            entry(1, "When was it built?", "1871", nth=4),
            entry(2, "What is it made of?", "oak and a little iron", nth=5),
            entry(3, "What comes first?", "The bridge"),
            Example("q4", "Who sank it?", PASSAGE, "Bridge"),
        ],
        "2.0",
    )


def test_every_target_has_a_measure_and_published_rows_are_targets():
    rows = json.loads((runner.RESULTS / "table.json").read_text(encoding="utf-8"))["rows"]
    published = [row["name"] for row in rows]
    assert published == [name for name in NAMES if name in published]
    assert MEASURES.keys() == {*NAMES}


def test_page_shows_the_committed_results_and_names_unmeasured_targets():
    stored = json.loads((runner.RESULTS / "table.json").read_text(encoding="utf-8"))
    page = runner.PAGE.read_text(encoding="utf-8")
    assert page == fill_between(page, runner.MARK, summary(stored))
    stored["rows"] = [row for row in stored["rows"] if row["name"] != "cli-help"]
    assert re.search("Not measured there: .*`cli-help`", summary(stored))


def test_preparations_agree_and_differences_are_counted():
    squad = questions()
    tokenizer = tokenizers.build("wordpiece", [PASSAGE, *(e.question for e in squad.examples)], 200)
    table = prepare(squad, tokenizer, max_length=48, stride=12, max_question=24, segments=True)
    peer = peers.prepare(squad.examples, tokenizer, max_length=48, stride=12)
    assert len(table) > 2 * len(squad)
    assert 4 <= sum(start > 0 for start in peer.start) < len(table)
    assert differences(table, peer) == 0
    peer.end[0] += 1
    peer.ids[2][5] += 1
    assert differences(table, peer) == 2
    peer.ids.pop()
    assert differences(table, peer) == len(table)


def test_decodings_agree_and_a_difference_is_detected():
    inputs = decoding.random_inputs(12, 4)
    theirs = peers.post_process(*decoding.theirs(inputs))
    ours = decoding.ours(inputs)
    assert decoding.equal(ours, theirs)
    assert {text == "" for text in ours[0]} == {True, False}
    assert max(len(entries) for entries in ours[1]) >= 20
    assert list(inputs.sizes).count(2) == 4
    ours[1][3][1]["probability"] += 1e-4
    assert not decoding.equal(ours, theirs)


def test_scorers_agree():
    squad = questions()
    predictions = {"q0": "Stone", "q1": "in the 1871", "q2": "", "q3": "A bridge!", "q4": ""}
    scores = score(squad, predictions).official
    assert scores == official.evaluate(write(squad)["data"], predictions)
    assert scores["exact"] == 40.0
    assert 60 < scores["f1"] < 80


def test_alternate_takes_turns_and_discards_the_warm_up():
    calls: list[str] = []
    pairs = timing.alternate(lambda: calls.append("a"), lambda: calls.append("b"), 3)
    assert "".join(calls) == "ab" + "ab" + "ba" + "ab"
    assert len(pairs.ours) == len(pairs.theirs) == 3


def test_rows_and_table():
    machine = describe_machine() | {"load_after": [0.0]}
    reached = TargetRow(TARGETS[0], Measurement(9.0, 8.5, Timed(0.2, 0.3), Timed(1.8, 1.8), "tiny"))
    missed, missing = TargetRow(TARGETS[0], Measurement(7.0)), TargetRow(TARGETS[1], None, "no data")
    assert reached.record() | {"name": "prepare", "ratio": 9.0, "reached": True} == reached.record()
    assert missed.record()["reached"] is False
    assert (missing.record()["ratio"], missing.record()["reached"]) == (None, None)
    assert missing.record()["note"] == "not measured: no data"
    text = markdown([reached, missed, missing], machine)
    assert "| 9.00 × | ≥ 8 × | yes | 8.50 | 200 ms | 1800 ms | tiny |" in text
    assert "**no**" in text
    assert len({line.count("|") for line in text.splitlines() if line.startswith("|")}) == 1
    assert not math.isnan(json.loads(json.dumps(machine))["load"][0])


def test_runner_saves_only_full_runs_and_survives_failing_measures(monkeypatch, tmp_path, capsys):
    def not_measured(quick):
        raise NotMeasuredError("no data here")

    def fails(quick):
        raise ZeroDivisionError("oops")

    measures = {"prepare": fails, "cli-help": lambda quick: Measurement(0.1)}
    others = dict.fromkeys(MEASURES.keys() - {"prepare-130k"}, not_measured)
    monkeypatch.setattr(runner, "MEASURES", others | measures)
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
    page = readme.read_text()
    assert page == f"# Title\n\n<!-- bench -->\n\n{summary(stored)}\n<!-- end -->\n\nrest\n"
    assert "| qa-arch --help, whole process | - | 0.10 s | ≤ 0.3 s | yes |" in page
    assert page.count("\n| ") == 2
    assert "`prepare`, " in page
    assert [row["name"] for row in stored["rows"]] == NAMES
    by_name = {row["name"]: row for row in stored["rows"]}
    assert by_name["cli-help"]["reached"] is True
    assert by_name["prepare"]["note"] == "not measured: failed: ZeroDivisionError: oops"
    assert by_name["prepare-130k"]["note"] == "not measured: no function measures 'prepare-130k'"
    assert by_name["sampler-tokens"]["note"] == "not measured: no data here"
    assert (tmp_path / "results" / "table.md").read_text() in capsys.readouterr().out
    with pytest.raises(SystemExit):
        runner.main(["prepair"])


def test_slope_is_the_exponent_of_growth(monkeypatch):
    monkeypatch.setattr(growth, "generated_set", lambda size: None)
    monkeypatch.setattr(growth, "once", lambda run: Timed(run(), 0.0))
    assert growth.slope(lambda size: 3.0 * size, True).value == pytest.approx(1.0)
    assert growth.slope(lambda size: 0.5 * size**1.5, False).value == pytest.approx(1.5)
