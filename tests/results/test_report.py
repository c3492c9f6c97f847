"""The report: its parts, their numbers and sizes, and what the command leaves out with a note."""

import base64
import json
import re
import shutil
import subprocess
import zlib
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from reports import page_parts

from qa_arch.config.files import write_json
from qa_arch.data.question_sets import question_set as build_set
from qa_arch.data.squad import write
from qa_arch.errors import RunError
from qa_arch.records import QUESTIONS, RECORD, find_runs, read_questions, write_questions, write_record
from qa_arch.results import experiments
from qa_arch.results.effects import MEASURES
from qa_arch.results.errors import mistakes, scores_table
from qa_arch.results.experiments import experiment_figures
from qa_arch.results.report import page as pack
from qa_arch.results.report.collect import breakdowns
from qa_arch.results.report.page import embed, write_report
from qa_arch.results.systems import load_questions
from qa_arch.types.text import Gold

EVIL = '</script><img src=x onerror=alert(1)> <!-- <script> {{data}} & \u2028 "'


def test_packed_rows_round_trip(make_run, question_set):
    odds = [0.004, -327.0, 5.5, float("inf"), float("-inf"), -0.5]
    rows = {"null_odds": odds, "start": [70_000, 0, 24, -1, 3, 5], "end": [70_010, 22, 33, -1, 4, 9]}
    folder = make_run("a", question_set(), rows={**rows, "f1": [0.4, 1, 0, 0, 1, 0.667]})
    loaded = load_questions(*find_runs([folder])[0])
    unpacked = json.loads(zlib.decompress(base64.b64decode(pack.pack_run(loaded, mistakes(loaded)))))
    assert unpacked["start"] == [70_000, 0, 24, -1, 3, 5]
    assert unpacked["end"] == [70_010, 22, 33, -1, 4, 9]
    assert unpacked["odds"] == [0, -327, 5.5, 1e9, -1e9, -0.5]
    assert unpacked["f1"] == [0.4, 1, 0, 0, 1, 0.667]
    assert unpacked["exact"] == (loaded.exact > 0).tolist()
    assert unpacked["abstained"] == loaded.abstained.tolist()


def test_packed_mistakes_round_trip(make_run, question_set, tmp_path):
    """Outcome, boundary, near miss and plausible answer of every question, and their counts in the page."""
    questions = question_set()
    examples = [replace(e, plausible=(Gold("1871", 18),)) if not e.answers else e for e in questions.examples]
    questions = build_set("made-up", examples, "2.0")
    rows = {
        "exact": [0, 0, 0, 0, 1, 0],
        "f1": [0.0, 0.66, 0, 0, 1, 0],
        "abstained": [False, False, False, True, True, False],
        "span_exact": [0, 0, 0, 1, 0, 0],
        "span_f1": [0.0, 0.66, 0, 1, 0, 0],
        # "mill", "Ada", "1871", "old bridge", -, "burnt"
        "start": [4, 24, 18, 24, -1, 9],
        "end": [8, 27, 22, 34, -1, 14],
    }
    folder = make_run("a", questions, rows=rows)
    value, packs = page_parts(
        write_report(find_runs([folder]), tmp_path / "r.html", questions=questions).path
    )
    packed = json.loads(packs["0-run0"])
    columns = (packed[name] for name in ("outcome", "boundary", "overlaps", "near", "plausible"))
    assert list(zip(*columns, strict=True)) == [
        ("wrong_span", "apart", False, False, None),
        ("wrong_span", "short", True, True, None),
        ("undue_answer", None, False, False, True),
        ("wrong_abstention", None, False, False, None),
        ("right", None, False, False, None),
        ("undue_answer", None, False, False, False),
    ]
    counts = value["sets"][0]["errors"]["0"]
    assert counts["outcomes"]["wrong_span"] == 2
    assert (counts["overlapping"], counts["near_misses"]) == (1, 1)
    assert (counts["plausible"], counts["with_plausible"]) == (1, 2)
    without_texts = page_parts(write_report(find_runs([folder]), tmp_path / "r.html").path)
    assert without_texts[0]["sets"][0]["errors"]["0"]["outcomes"] == counts["outcomes"]
    assert json.loads(without_texts[1]["0-run0"])["outcome"] == packed["outcome"]


@pytest.mark.parametrize(("unit", "unit_name"), [("question", "questions"), (None, "articles")])
def test_page_holds_the_records_and_their_scores(runs, tmp_path, unit, unit_name):
    folder, questions = runs
    records = find_runs([folder])
    report = write_report(records, tmp_path / "r.html", questions=questions, baseline="bert", unit=unit)
    value, packs = page_parts(report.path)
    shared, own = value["settings"]["all"], value["settings"]["own"]
    assert shared["trainer.batch_size"] == "8"
    assert [settings["seed"] for settings in own] == [str(record.seed) for _, record in records]
    assert not set(shared) & set().union(*own)
    assert report.bytes == report.path.stat().st_size
    assert [run["name"] for run in value["runs"]] == ["bert-1", "bert-2", "proposed-1", "proposed-2"]
    assert [group["label"] for group in value["groups"]] == ["bert", "proposed"]
    assert [run["margin"] for run in value["runs"]] == [0.5] * 4
    (dev,) = value["sets"]
    assert (dev["texts"], dev["baseline"], dev["unit"]) == (True, 0, unit_name)
    assert list(dev["tests"]["f1"]["effects"]) == ["1"]
    texts = json.loads(packs["0-texts"])
    assert [row[0] for row in texts["questions"]] == [e.question for e in questions.examples]
    assert [texts["contexts"][row[1]] for row in texts["questions"]] == [
        e.context for e in questions.examples
    ]
    for number, (path, record) in enumerate(records):
        rows = load_questions(path, record)
        assert json.loads(packs[f"0-run{number}"])["start"] == rows.start.tolist()
        curve = dev["curves"][str(number)]["thresholds"]
        # At the run's own threshold the curve has the recorded score.
        index = max(i for i, margin in enumerate(curve["margin"]) if margin <= 0.5)
        assert curve["score"][index] == pytest.approx(100 * rows.f1.mean(), abs=0.01)
        assert curve["exact"][index] == pytest.approx(100 * rows.exact.mean(), abs=0.01)
        levels_by_facet = np.split(np.frombuffer(packs["0-facets"], np.uint8), len(dev["facets"]))
        for facet, levels in zip(dev["facets"], levels_by_facet, strict=True):
            for level, f1 in enumerate(facet["runs"][str(number)][1]):
                assert f1 == pytest.approx(100 * rows.f1[levels == level].mean(), abs=0.01)
                assert facet["count"][level] == (levels == level).sum()


def test_page_contains_no_local_path(runs, make_run, question_set, tmp_path, monkeypatch):
    """Settings, errors and problems name files by their last parts or relative to the working folder."""
    monkeypatch.chdir(tmp_path)
    folder, questions = runs
    config = {"data": {"train": "squad:/home/ada/sets/train.json"}, "encoder": {"name": "/opt/models/mini"}}
    config["compression"] = [{"method": "int8"}]
    make_run("failed-1", questions, model="failed", config=config, error="OSError: /mnt/disk/a/b.bin is gone")
    (folder / "bert-1" / QUESTIONS).write_bytes(b"torn")
    report = write_report(find_runs([folder]), tmp_path / "r.html")
    value, _ = page_parts(report.path)
    texts = json.dumps({key: item for key, item in value.items() if key != "sets"})
    for private in (str(tmp_path), "/home", "/opt", "/mnt/"):
        assert private not in texts
    run = next(run for run in value["runs"] if run["model"] == "failed")
    assert run["folder"] == "runs/failed-1"
    assert [run["trainable"] for run in value["runs"]] == [run["model"] != "failed" for run in value["runs"]]
    assert run["error"] == "OSError: …/a/b.bin is gone"
    own = value["settings"]["own"][value["runs"].index(run)]
    assert own["data.train"] == "squad:…/sets/train.json"
    assert own["encoder.name"] == "…/models/mini"
    assert any(str(folder) in problem for problem in report.problems), (
        "the full path is reported outside the page"
    )


def test_duplicate_runs_and_reordered_rows_are_left_out_with_a_note(runs, tmp_path):
    """Tests and breakdowns pair rows by position, so equal ids are not enough."""
    folder, _ = runs
    copy = shutil.copytree(folder / "bert-1", tmp_path / "copies" / "bert-1")
    rows = read_questions(folder / "proposed-2")
    write_questions(folder / "proposed-2", {name: values[::-1] for name, values in rows.items()})
    report = write_report(find_runs([folder, copy]), tmp_path / "r.html", baseline="bert")
    value, _ = page_parts(report.path)
    assert [run["name"] for run in value["runs"]] == ["bert-1", "bert-2", "proposed-1", "proposed-2"]
    assert report.problems == (
        f"{copy}: seed 1 of bert repeats {folder / 'bert-1'}; left out",
        f"{folder / 'proposed-2'}: its dev rows belong to other questions; left out",
    )
    (scored,) = value["sets"]
    assert sorted(scored["curves"]) == ["0", "1", "2"]


def test_every_view_names_the_language_of_the_answers(make_run, question_set, qa_arch, tmp_path):
    german = build_set("german", question_set(copies=2).examples, "2.0", language="de")
    runs = [str(make_run(name, german, model=name)) for name in ("bert", "proposed")]
    sentence = "answers compared by the rules of language de"
    for command in (["show", runs[0]], ["compare", *runs], ["compare", *runs, "--baseline", "bert"]):
        assert sentence in " ".join(qa_arch(*command)[1].split()), command
    assert scores_table(find_runs(runs)[0][1]).notes == [f"dev, {sentence}"]
    value, _ = page_parts(write_report(find_runs(runs), tmp_path / "r.html").path)
    assert value["sets"][0]["rules"] == f", {sentence}"
    file = write_json(tmp_path / "german.json", write(german))
    command = ("report", *runs, "-o", tmp_path / "r.html", "--data", file)
    assert "the --language if it was not English" in qa_arch(*command)[2]
    assert qa_arch(*command, "--language", "de")[0] == 0


def test_page_escapes_html_in_texts_and_names(make_run, question_set, tmp_path):
    questions = question_set(suffix=EVIL)
    folder = make_run("evil", questions, model=EVIL, error=EVIL)
    report = write_report(find_runs([folder]), tmp_path / "r.html", questions=questions)
    page = report.path.read_text(encoding="utf-8")
    value, packs = page_parts(report.path)
    assert value["groups"][0]["label"] == EVIL
    assert json.loads(packs["0-texts"])["questions"][0][0].endswith(EVIL)
    assert "onerror=alert(1)>" not in page
    scripts = len(re.findall(r"<script\b", page))
    assert scripts == len(re.findall(r"</script>", page)) == len(packs) + 2
    assert "<!--" not in embed({EVIL: EVIL})


DRAWN = """
globalThis.ResizeObserver = class { observe() {} };
globalThis.css = () => "";
globalThis.Plotly = {
  react(_, traces, changes) {
    console.log(JSON.stringify([traces, changes]));
    return { then() {} };
  },
};
globalThis.evil = process.argv[1];
(0, eval)(require("fs").readFileSync(0, "utf8") + `
  const texts = { x: [evil], text: [evil], name: evil, customdata: [[evil, 2]] };
  const axes = { xaxis: { title: evil }, yaxis: { ticktext: [evil] } };
  draw({}, [{ ...texts, y: [1], hovertemplate: "%{text}<br>" }], layout(axes));`);
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="no node")
def test_text_of_figures_is_escaped():
    """Plotly reads the text of a figure as HTML: article titles, names of runs and of strategies."""
    charts = (Path(pack.__file__).parent / "page/charts.js").read_text()
    drawn = subprocess.check_output(["node", "-e", DRAWN, EVIL], input=charts, text=True)
    ((trace,), changes) = json.loads(drawn)
    assert trace.pop("hovertemplate") == "%{text}<br>"
    assert trace["customdata"][0][1] == 2
    for value in (trace, changes["xaxis"]["title"], changes["yaxis"]["ticktext"]):
        assert "img src" in json.dumps(value)
        assert "<" not in json.dumps(value)


@pytest.mark.slow
def test_page_of_200_runs_of_full_dev_is_below_30_mb(make_run, question_set, tmp_path):
    """Every run has its own answers and null odds, the part that does not compress."""
    questions = question_set(copies=1762)
    first = make_run("run-000", questions, seed=0)
    record, rows = find_runs([first])[0][1], read_questions(first)
    for seed in range(1, 200):
        rng, folder = np.random.default_rng(seed), first.parent / f"run-{seed:03}"
        order = rng.permutation(len(questions))
        shuffled = {
            key: [rows[key][i] for i in order] for key in ("exact", "f1", "abstained", "start", "end")
        }
        write_record(folder, replace(record, seed=seed, model=f"model-{seed % 10}"))
        write_questions(folder, rows | shuffled | {"null_odds": rng.normal(0, 5, len(questions))})
    report = write_report(find_runs([first.parent]), tmp_path / "r.html", questions=questions)
    assert report.path.stat().st_size == report.bytes < 30e6
    value, packs = page_parts(report.path)
    assert len(value["runs"]) == 200
    assert sum("run" in name for name in packs) == 200


def test_runs_without_spans_are_left_out_with_a_note(runs, make_record, make_language_run, tmp_path):
    folder, _ = runs
    write_record(folder / "selecting", make_record("qa_lstm_c", protocol="selection"))
    make_language_run(folder / "mlm", "mlm", seed=1)
    value, _ = page_parts(write_report(find_runs([folder]), tmp_path / "r.html").path)
    assert [run["model"] for run in value["runs"]] == ["bert", "bert", "proposed", "proposed"]
    assert value["problems"] == ["runs without spans, for which see qa-arch tables: 2"]
    with pytest.raises(RunError, match=r"no run with spans .* qa-arch tables"):
        write_report(find_runs([folder / "selecting", folder / "mlm"]), tmp_path / "none.html")


def test_each_question_set_has_its_own_section(make_run, question_set, tmp_path):
    first, second = question_set(), question_set(copies=2)
    make_run("a", first)
    folder = make_run("b", second).parent  # the same seed of the same system, and yet no duplicate
    report = write_report(find_runs([folder]), tmp_path / "r.html", questions=second)
    assert (report.runs, report.problems) == (2, ())
    value, packs = page_parts(report.path)
    assert [page_set["runs"] for page_set in value["sets"]] == [[0], [1]]
    assert [page_set["texts"] for page_set in value["sets"]] == [False, True]
    assert {name for name in packs if "texts" in name} == {"1-texts"}
    with pytest.raises(RunError, match="no run was scored on"):
        write_report(find_runs([folder]), tmp_path / "r.html", questions=question_set(copies=3))


def test_breakdowns_assign_every_question_to_one_level(make_run, question_set):
    questions = question_set()
    rows = load_questions(*find_runs([make_run("a", questions)])[0])
    facets = {facet.key: facet for facet in breakdowns(rows, questions)}
    assert [f.key for f in breakdowns(rows, None)] == ["answerable", "kind"]
    levels = {key: [facet.names[level] for level in facet.level] for key, facet in facets.items()}
    assert levels["kind"] == ["answerable", "answerable", "entity_swap", "answerable", "negation", "negation"]
    assert levels["word"] == ["when", "who", "who", "which", "when", "how many"]
    assert levels["type"] == ["date", "name", "no answer", "phrase", "no answer", "no answer"]
    assert levels["answer"] == ["1", "2", "no answer", "2", "no answer", "no answer"]
    assert levels["question"] == ["1–6"] * 6
    assert levels["article"] == [example.title for example in questions.examples]
    assert all(len(facet.level) == 6 for facet in facets.values())


ANSWER = Path(__file__).parents[2] / "experiments" / "answer"
COMMITTED = sorted((Path(__file__).parents[2] / "experiments").glob("*/records"))


@pytest.fixture
def call(qa_arch):
    return partial(qa_arch, "report")


def test_report_skips_unusable_records_with_a_note(runs, call, tmp_path, make_record):
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


def test_invalid_report_calls_are_refused(runs, call, tmp_path):
    for arguments, message in (
        ([runs[0] / "none"], "no such run"),
        ([runs[0], "--baseline", "gpt"], "bert; proposed"),
    ):
        code, _, err = call(*arguments, "-o", tmp_path / "r.html")
        assert (code, message in err) == (5, True)
        assert not (tmp_path / "r.html").exists()


def test_report_compare_table_figure_and_readme_agree(call, qa_arch, tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr(experiments, "draw_differences", lambda panels, *_: drawn.update(panels))
    monkeypatch.setattr(experiments, "save_figure", lambda draw, _: draw() or ())
    experiment_figures(ANSWER)
    committed = json.loads((ANSWER / "table.json").read_text(encoding="utf-8"))
    readme = (ANSWER.parents[1] / "README.md").read_text(encoding="utf-8").replace("**", "")
    assert call(ANSWER / "records", "--baseline", "bert", "-o", tmp_path / "r.html", "--spans")[0] == 0
    value, _ = page_parts(tmp_path / "r.html")
    (dev,) = (page_set for page_set in value["sets"] if page_set["split"] == "dev")
    assert (value["measure"], dev["unit"]) == ("spans", "articles")
    for index, measure in enumerate(("f1", "spans")):
        compared = qa_arch(
            "compare", ANSWER / "records", "--baseline", "bert", "--measure", measure, "--json"
        )
        tables = [
            json.loads(compared[1])[0]["rows"],
            committed[1 + index]["rows"],
            drawn[MEASURES[measure]].rows,
        ]
        for group, effect in dev["tests"][measure]["effects"].items():
            name, (low, high) = value["groups"][int(group)]["label"], effect["interval"]
            expected = {"delta": effect["delta"], "delta_95_low": low, "delta_95_high": high}
            expected |= {"p": effect["p"], "p_holm": effect["holm"]}
            for rows in tables:
                (row,) = (row for row in rows if row["model"] == name)
                assert {key: row[key] for key in expected} == pytest.approx(expected, abs=1e-6)
            if name == "proposed":
                assert f"{effect['delta']:+.1f} ({low:+.1f} .. {high:+.1f})" in readme


@pytest.mark.parametrize(
    "names",
    [("demo",), pytest.param(tuple(folder.parent.name for folder in COMMITTED), marks=pytest.mark.slow)],
    ids=["demo", "all"],
)
def test_committed_records_are_reported_against_a_baseline(call, tmp_path, names):
    folders = [folder for folder in COMMITTED if folder.parent.name in names]
    code, out, err = call(*folders, "--baseline", "bert", "-o", tmp_path / "r.html")
    assert code == 0
    assert "Traceback" not in err
    value = page_parts(tmp_path / "r.html")[0]
    assert f"{len(value['runs'])} runs" in out
    sets = value["sets"]
    assert any(page_set["tests"]["f1"]["effects"] for page_set in sets)
    assert all(s["untested"] or s["baseline"] is not None or not s["curves"] for s in sets)
    numbers = [epoch[key] for run in value["runs"] for epoch in run["epochs"] for key in epoch]
    assert all(number is None or isinstance(number, float) for number in numbers)
