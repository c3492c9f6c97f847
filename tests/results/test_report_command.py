"""``qa-arch report``: what it goes on without, what it refuses, and every committed collection of records."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from kills import check_recovery, killed_at_each_step, killed_at_sizes
from reports import page_parts

from qa_arch.data.squad import write
from qa_arch.records import QUESTIONS, RECORD, write_record
from qa_arch.results import figures
from qa_arch.results.experiments import experiment_figures
from qa_arch.results.samples import MEASURES

ANSWER = Path(__file__).parents[2] / "experiments" / "answer"
COMMITTED = sorted((Path(__file__).parents[2] / "experiments").glob("*/records"))


@pytest.fixture
def call(command):
    return partial(command, "report")


def test_the_command_goes_on_without_what_it_cannot_use(runs, call, tmp_path, make_record):
    folder, questions = runs
    broken, newer = folder / "broken" / RECORD, folder / "newer" / RECORD
    broken.parent.mkdir()
    broken.write_text('{"schema": 1, "stat')
    newer.parent.mkdir()
    newer.write_text('{"schema": 7}')
    (folder / "bert-1" / QUESTIONS).unlink()
    write_record(folder / "late", make_record("late", None, status="oom", error="CUDA out of memory"))
    data = tmp_path / "d.json"
    data.write_text(json.dumps(write(questions)))
    code, out, err = call(folder, "-o", tmp_path / "r.html", "--data", data)
    assert code == 0
    assert "5 runs" in out
    for named in (str(broken), str(newer), "schema 7", str(folder / "bert-1" / QUESTIONS)):
        assert named in err
    value, packs = page_parts(tmp_path / "r.html")
    assert len(value["problems"]) == 3
    assert [run["status"] for run in value["runs"]].count("oom") == 1
    assert "0-run0" not in packs
    assert value["runs"][0]["scores"]["dev"]["calibrated"]["f1"] > 0


def test_wrong_calls(runs, call, tmp_path):
    for arguments, said in (
        ([runs[0] / "none"], "no such run"),
        ([runs[0], "--baseline", "gpt"], "bert; proposed"),
    ):
        code, _, err = call(*arguments, "-o", tmp_path / "r.html")
        assert (code, said in err) == (5, True)
        assert not (tmp_path / "r.html").exists()


def test_one_setting_is_one_number_everywhere(call, command, tmp_path, monkeypatch):
    """Report, ``compare``, committed table, what the figure draws, and README, of one experiment."""
    drawn = {}
    monkeypatch.setattr(figures, "difference_figure", lambda panels, *_, **__: drawn.update(panels) or ())
    experiment_figures(ANSWER)
    committed = json.loads((ANSWER / "table.json").read_text(encoding="utf-8"))
    readme = (ANSWER.parents[1] / "README.md").read_text(encoding="utf-8").replace("**", "")
    assert call(ANSWER / "records", "--baseline", "bert", "-o", tmp_path / "r.html", "--spans")[0] == 0
    value, _ = page_parts(tmp_path / "r.html")
    (dev,) = (one for one in value["sets"] if one["split"] == "dev")
    assert (value["measure"], dev["unit"]) == ("spans", "articles")
    for place, measure in enumerate(("f1", "spans")):
        compared = command(
            "compare", ANSWER / "records", "--baseline", "bert", "--measure", measure, "--json"
        )
        tables = [
            json.loads(compared[1])[0]["rows"],
            committed[1 + place]["rows"],
            drawn[MEASURES[measure]].rows,
        ]
        for group, effect in dev["tests"][measure]["effects"].items():
            name, (low, high) = value["groups"][int(group)]["label"], effect["interval"]
            shown = {"delta": effect["delta"], "delta_95_low": low, "delta_95_high": high}
            shown |= {"p": effect["p"], "p_holm": effect["holm"]}
            for rows in tables:
                (row,) = (row for row in rows if row["model"] == name)
                assert {key: row[key] for key in shown} == pytest.approx(shown, abs=1e-6)
            if name == "proposed":
                assert f"{effect['delta']:+.1f} ({low:+.1f} .. {high:+.1f})" in readme
    asked = (ANSWER / "records", "--baseline", "bert", "-o", tmp_path / "q.html", "--unit", "question")
    assert call(*asked)[0] == 0
    assert page_parts(tmp_path / "q.html")[0]["sets"][0]["unit"] == "questions"


def test_a_page_that_was_killed_is_made_whole_by_the_same_call(runs, call, tmp_path, monkeypatch):
    target = tmp_path / "page"
    page = "qa_arch.results.report.page"
    monkeypatch.setattr(f"{page}._plotly", lambda: b"")  # most of the page
    monkeypatch.setattr(f"{page}.now", lambda: "2026-01-01T00:00:00")

    def report():
        assert call(runs[0], "-o", target / "r.html")[0] == 0

    old = {"r.html": b"<html>old"}
    assert check_recovery(killed_at_each_step(report, target), target, report, old) >= 5
    assert check_recovery(killed_at_sizes(report, [0, 50_000]), target, report, old) == 2


@pytest.mark.parametrize(
    "names",
    [
        ("demo",),
        pytest.param(tuple(folder.parent.name for folder in COMMITTED), marks=pytest.mark.slow),
    ],
    ids=["demo", "all"],
)
def test_committed_collections_are_reported_together_against_a_baseline(call, tmp_path, names):
    folders = [folder for folder in COMMITTED if folder.parent.name in names]
    code, out, err = call(*folders, "--baseline", "bert", "-o", tmp_path / "r.html")
    assert code == 0
    assert "Traceback" not in err
    value = page_parts(tmp_path / "r.html")[0]
    assert f"{len(value['runs'])} runs" in out
    assert any(one["tests"]["f1"]["effects"] for one in value["sets"])
    assert all(one["untested"] or one["baseline"] is not None or not one["curves"] for one in value["sets"])
    figures = [epoch[key] for run in value["runs"] for epoch in run["epochs"] for key in epoch]
    assert all(figure is None or isinstance(figure, float) for figure in figures)
