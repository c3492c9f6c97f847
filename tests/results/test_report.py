"""The report: its parts, their numbers and sizes, and what the command leaves out with a note."""

import base64
import json
import re
import shutil
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from reports import page_figures, page_parts, page_tables, page_text

from qa_arch.data.question_sets import question_set as build_set
from qa_arch.data.sources import open_passages
from qa_arch.data.squad import write
from qa_arch.errors import RunError
from qa_arch.files import write_json
from qa_arch.records import (
    QUESTIONS,
    RECORD,
    find_runs,
    read_questions,
    read_record,
    write_questions,
    write_record,
)
from qa_arch.results.effects import MEASURES
from qa_arch.results.errors import mistakes
from qa_arch.results.html import embed
from qa_arch.results.plots import Shown, mean_curve
from qa_arch.results.report import pack_run, write_report
from qa_arch.results.systems import load_questions

EVIL = '</script><img src=x onerror=alert(1)> <!-- <script> {{data}} & \u2028 "'


def test_packed_rows_round_trip(make_run, question_set):
    odds = [0.004, -327.0, 5.5, float("inf"), float("-inf"), -0.5]
    rows = {"null_odds": odds, "start": [70_000, 0, 24, -1, 3, 5], "end": [70_010, 22, 33, -1, 4, 9]}
    folder = make_run("a", question_set(), rows={**rows, "f1": [0.4, 1, 0, 0, 1, 0.667]})
    loaded = load_questions(*find_runs([folder])[0])
    unpacked = json.loads(zlib.decompress(base64.b64decode(pack_run(loaded, mistakes(loaded)))))
    expected = {"odds": [0, -327, 5.5, 1e9, -1e9, -0.5], "f1": [0.4, 1, 0, 0, 1, 0.667]}
    expected |= {"start": rows["start"], "end": rows["end"]}
    expected |= {"exact": (loaded.exact > 0).tolist(), "abstained": loaded.abstained.tolist()}
    assert {key: unpacked[key] for key in expected} == expected


def test_tables_and_figures_show_the_scores_of_the_records(runs, tmp_path):
    folder, questions = runs
    records = find_runs([folder])
    report = write_report(records, tmp_path / "r.html", questions=questions, baseline="bert")
    assert report.bytes == report.path.stat().st_size
    tables, (value, packs) = page_tables(report.path), page_parts(report.path)
    f1 = {str(path): record.compared_point("dev").f1 for path, record in records}
    assert {row["model"]: float(row["f1"]) for row in tables["Runs"]} == pytest.approx(
        {f"{record.model}, seed {record.seed}": f1[str(path)] for path, record in records}
    )
    systems = {row["model"]: row for row in tables["Systems"]}
    for model in ("bert", "proposed"):
        own = [f1[str(path)] for path, record in records if record.model == model]
        moments = float(systems[model]["f1_mean"]), float(systems[model]["f1_sd"])
        assert moments == pytest.approx((np.mean(own), np.std(own, ddof=1)))
    own = {row["name"]: row["value"] for row in tables["bert, seed 1: settings of its own"]}
    assert own["seed"] == "1"
    assert "trainer.batch_size | 8" in page_text(report.path)
    assert value["runs"]["0"]["threshold"] == 0.5
    texts = json.loads(packs["0-texts"])
    shown = [(question, texts["contexts"][context]) for question, context, *_ in texts["questions"]]
    assert shown == [(e.question, e.context) for e in questions.examples]
    (proposed,) = (t for t in page_figures(report.path)["by-answerable"]["data"] if t["name"] == "proposed")
    answerable = [load_questions(*run) for run in records if run[1].model == "proposed"]
    expected = np.mean([100 * rows.f1[rows.answerable].mean() for rows in answerable])
    (x,) = (x for x, name in zip(proposed["x"], proposed["text"], strict=True) if name.startswith("yes"))
    assert x == pytest.approx(expected, abs=0.01)


def test_mark_on_a_curve_is_the_score_of_its_run(make_run, question_set, tmp_path):
    """Also where the curves, of more null odds than they have points, leave out the run's own."""
    folder = make_run("only", question_set(copies=60))
    rows = read_questions(folder)
    abstained, answerable, f1 = (np.array(rows[key]) for key in ("abstained", "answerable", "f1"))
    distance = np.random.default_rng(0).random(len(f1))  # from the threshold
    odds = np.where(abstained, 0.5 + distance, 0.5 - 9 * distance).tolist()
    write_questions(folder, rows | {"null_odds": odds})
    runs = find_runs([folder])
    figures = page_figures(write_report(runs, tmp_path / "r.html").path)
    marks = {name: figures[name]["data"][-1] for name in ("thresholds", "risk", "abstain")}
    right = 100 * (abstained & ~answerable).sum()
    expected = {
        "thresholds": (0.5, runs[0][1].compared_point("dev").f1),
        "risk": (100 * (~abstained).mean(), 100 - 100 * f1[~abstained].mean()),
        "abstain": (right / (~answerable).sum(), right / abstained.sum()),
    }
    for name, mark in marks.items():
        assert (*mark["x"], *mark["y"]) == pytest.approx(expected[name], abs=1e-3)


def test_mean_over_fewer_runs_than_are_counted_is_left_empty(make_run, question_set, qa_arch, tmp_path):
    """A failed run is not counted; one without rows is, but has no figures of them."""
    questions = question_set()
    folders = [make_run(f"bert-{seed}", questions, seed=seed) for seed in (1, 2)]
    (folders[1] / QUESTIONS).unlink()
    make_run("other", questions, model="other")
    make_run("bert-3", questions, seed=3, status="oom", scores={})
    code, out, _ = qa_arch("tables", tmp_path / "runs", "--columns", "model,f1,auroc,ece", "--json")
    (table,) = json.loads(out)
    page = write_report(find_runs([tmp_path / "runs"]), tmp_path / "r.html").path
    scores, calibration = (page_tables(page)[name] for name in ("Systems", "Calibration"))
    for f1, auroc in [(table["rows"], table["rows"]), (scores, calibration)]:
        (row,), (areas,) = ([row for row in rows if row["model"] == "bert"] for rows in (f1, auroc))
        assert (code, int(row["seeds"]), int(areas["seeds"])) == (0, 2, 2)
        mean = np.mean([record.compared_point("dev").f1 for _, record in find_runs(folders)])
        assert float(row["f1_mean"]) == pytest.approx(mean, abs=1e-3)
        assert not areas.get("auroc_mean")
        (other,) = (row for row in auroc if row["model"] == "other")
        assert float(other["auroc_mean"]) > 0
    note = f"no mean of AUROC, answerable; ECE, spans: missing in {folders[1]}"
    assert note in table["notes"]
    assert re.search("AUROC, answerable; AURC: missing in .*bert-2", page_text(page))


def test_curves_show_mean_and_range_of_seeds():
    """Where all of them have a value, linear or in steps."""
    curves = [((1, 2, 3), (2.0, 1.0, np.nan)), ((1, 2), (12.0, 6.0)), ((1, 2), (4.0, 2.0))]
    assert [part.tolist() for part in mean_curve(curves)] == [[1, 2], [6, 3], [2, 1], [12, 6]]
    steps = [((0, 2), (0.0, 4.0)), ((1, 2), (8.0, 8.0))]
    assert mean_curve(steps, steps=True)[1].tolist() == [4, 6]
    assert mean_curve(steps)[1].tolist() == [5, 6]
    system = Shown("a", 9, [])
    band, line = system.curve(curves)
    assert (band["y"], line["y"].tolist()) == ([2, 1, 6, 12], [6, 3])
    assert (system.colour, system.marks()["symbol"]) == ("--c1", "diamond"), (
        "another mark for the same colour"
    )


def test_significantly_better_values_are_bold(make_run, question_set, tmp_path):
    questions = question_set(copies=20)
    for model, right in (("bert", 0.5), ("bit_better", 0.56), ("proposed", 0.95)):
        make_run(model, questions, model=model, right=right)
    page = write_report(find_runs([tmp_path / "runs"]), tmp_path / "r.html", baseline="bert").path.read_text()
    rows = re.findall(r"<tr>(.*?)</tr>", page)
    assert [re.sub("<.*?>", "", row).split("1")[0] for row in rows if 'class="better"' in row] == ["proposed"]


def test_missing_figures_and_tests_of_adopted_systems_are_explained(make_run, question_set, tmp_path):
    config = {"name": "adopted", "predictions": "answers.json"}
    fields = {"config": config | {"model": {"name": "bert"}}, "keep_spans": False}
    ranked = make_run("ranked", question_set(), **fields)
    text = page_text(write_report(find_runs([ranked]), tmp_path / "r.html").path)
    for reason in ("have their own scale", "no probabilities", "--calibration", "in the rows; adopt answers"):
        assert reason in text
    silent = make_run("silent", question_set(), **fields, rows={"null_odds": [np.nan] * 6})
    text = page_text(write_report(find_runs([silent]), tmp_path / "r.html").path)
    assert "--na-prob" in text
    assert "evaluate --run" not in text
    empty = make_run("empty", question_set(), rows={"null_odds": [np.inf] * 6})  # which no axis shows
    assert page_figures(write_report(find_runs([empty]), tmp_path / "r.html").path)["risk"]


def test_every_view_names_the_language_of_the_answers(make_run, question_set, qa_arch, tmp_path):
    german = build_set("german", question_set(copies=2).examples, "2.0", language="de")
    runs = [str(make_run(name, german, model=name)) for name in ("bert", "proposed")]
    sentence = "answers compared by the rules of language de"
    for command in (["show", runs[0]], ["compare", *runs], ["compare", *runs, "--baseline", "bert"]):
        assert sentence in " ".join(qa_arch(*command)[1].split()), command
    file, page = write_json(tmp_path / "german.json", write(german)), tmp_path / "r.html"
    command = ("report", *runs, "-o", page, "--data", file)
    assert "the --language if it was not English" in qa_arch(*command)[2]
    assert qa_arch(*command, "--language", "de")[0] == 0
    assert sentence in page_text(page)


def test_texts_are_those_of_a_scored_set_whatever_other_runs_skip(make_run, question_set, qa_arch, tmp_path):
    """A set with an answer that is not in its passage can be scored; a run that skips faulty records has left
    such questions out."""
    content = write(question_set(copies=2))
    content["data"][0]["paragraphs"][0]["qas"][0]["answers"][0]["text"] = "nowhere in it"
    file, page = write_json(tmp_path / "set.json", content), tmp_path / "r.html"
    whole, fewer = (open_passages(file, on_error=how, use="scoring") for how in ("raise", "skip"))
    assert len(fewer) == len(whole) - 1
    runs = [make_run("all", whole, model="all"), make_run("skips", fewer, model="skips")]
    record = read_record(runs[1])
    facts = {name: replace(record.facts(name), skipped=1) for name in ("train", "dev")}
    write_record(runs[1], replace(record, data=facts))
    for chosen in (runs[1:], runs):
        assert qa_arch("report", *chosen, "-o", page, "--data", file)[0] == 0, chosen
    write_record(runs[1], replace(record, data={"train": facts["train"]}, scores={}))
    assert qa_arch("report", *runs, "-o", page, "--data", file)[0] == 0
    write_json(file, write(question_set(suffix="?")))
    assert "no run was scored on" in qa_arch("report", *runs, "-o", page, "--data", file)[2]


def test_page_contains_no_local_path(runs, make_run, tmp_path, monkeypatch):
    """Settings, errors and problems name files by their last parts or relative to the working folder."""
    monkeypatch.chdir(tmp_path)
    folder, questions = runs
    config = {"data": {"train": "squad:/home/ada/sets/train.json"}, "encoder": {"name": "/opt/models/mini"}}
    error = "/mnt/disk/a/b.bin and file:///mnt/disk/c/d.bin are gone"
    make_run("failed-1", questions, model="failed", config=config, error=error)
    (folder / "bert-1" / QUESTIONS).write_bytes(b"torn")
    report = write_report(find_runs([folder]), tmp_path / "r.html")
    text, tables = page_text(report.path), page_tables(report.path)
    for private in (str(tmp_path), "/home", "/opt", "/mnt/"):
        assert private not in text + json.dumps(tables) + json.dumps(page_parts(report.path)[0])
    facts = {row["name"]: row["value"] for row in tables["failed: record"]}
    assert (facts["folder"], facts["error"]) == ("runs/failed-1", "…/a/b.bin and file://…/c/d.bin are gone")
    assert text.count("The same run again: qa-arch train --config-from runs/bert-2") == 1
    assert "data.train | squad:…/sets/train.json" in text
    assert "encoder.name | …/models/mini" in text
    assert any(str(folder) in problem for problem in report.problems), "reported in full outside the page"


def test_duplicate_runs_and_reordered_rows_are_left_out_with_a_note(runs, tmp_path):
    """Tests and breakdowns pair rows by position, so equal ids are not enough."""
    folder, _ = runs
    copy = shutil.copytree(folder / "bert-1", tmp_path / "copies" / "bert-1")
    rows = read_questions(folder / "proposed-2")
    write_questions(folder / "proposed-2", {name: values[::-1] for name, values in rows.items()})
    report = write_report(find_runs([folder, copy]), tmp_path / "r.html", baseline="bert")
    value, _ = page_parts(report.path)
    assert report.problems == (
        f"{copy}: seed 1 of bert repeats {folder / 'bert-1'}; left out",
        f"{folder / 'proposed-2'}: its dev rows belong to other questions; left out",
    )
    assert value["sets"][0]["runs"] == [0, 1, 2]


def test_page_escapes_html_in_texts_and_names(make_run, question_set, tmp_path):
    questions = question_set(suffix=EVIL)
    name = EVIL.replace("\u2028", "")  # which no record has in a name
    folder = make_run("evil", questions, model=name, error=EVIL)
    report = write_report(find_runs([folder]), tmp_path / "r.html", questions=questions)
    page = report.path.read_text(encoding="utf-8")
    value, packs = page_parts(report.path)
    assert value["runs"]["0"]["label"] == name
    assert json.loads(packs["0-texts"])["questions"][0][0].endswith(EVIL)
    assert "onerror=alert(1)>" not in page
    figures = page_figures(report.path)
    scripts = len(re.findall(r"<script\b", page))
    assert scripts == len(re.findall(r"</script>", page)) == len(packs) + len(figures) + 2
    assert "<!--" not in embed({EVIL: EVIL})
    hidden = {"hovertemplate": "", "legendgroup": ""}
    drawn = json.dumps([[trace | hidden for trace in figure["data"]] for figure in figures.values()])
    assert "img src" in drawn
    layouts = json.dumps([figure["layout"] for figure in figures.values()])
    assert "<" not in drawn + layouts, "Plotly reads HTML"


def test_runs_without_spans_are_left_out_with_a_note(runs, make_record, tmp_path):
    folder, _ = runs
    write_record(folder / "selecting", make_record("qa_lstm_c", protocol="selection"))
    write_record(folder / "mlm", make_record("mlm", protocol="masked_lm:1"))
    report = write_report(find_runs([folder]), tmp_path / "r.html")
    assert (report.runs, len(page_parts(report.path)[0]["runs"])) == (4, 4)
    assert report.problems == ("runs without spans, for which see qa-arch tables: 2",)
    assert report.problems[0] in page_text(report.path)
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


HYPOTHESIS = Path(__file__).parents[2] / "experiments" / "hypothesis"


def test_report_skips_unusable_records_with_a_note(runs, qa_arch, tmp_path, make_record):
    folder, questions = runs
    broken, newer = folder / "broken" / RECORD, folder / "newer" / RECORD
    for path, content in ((broken, '{"schema": 1, "stat'), (newer, '{"schema": 7}')):
        path.parent.mkdir()
        path.write_text(content)
    (folder / "bert-1" / QUESTIONS).unlink()
    write_record(folder / "late", make_record("late", None, status="oom", error="CUDA out of memory"))
    data = write_json(tmp_path / "d.json", write(questions))
    code, out, err = qa_arch("report", folder, "-o", tmp_path / "r.html", "--data", data)
    assert (code, "5 runs" in out) == (0, True)
    for named in (str(broken), str(newer), "schema 7", str(folder / "bert-1" / QUESTIONS)):
        assert named in err
    _, packs = page_parts(tmp_path / "r.html")
    listed = {row["run"].rpartition("/")[2]: row for row in page_tables(tmp_path / "r.html")["Runs"]}
    assert (listed["late"]["status"], listed["late"]["error"]) == ("oom", "CUDA out of memory")
    red = re.findall(r'<td class="text unfinished"[^>]*>(.*?)</td>', (tmp_path / "r.html").read_text())
    assert set(red) == {"oom"}
    assert "0-run0" not in packs
    assert float(listed["bert-1"]["f1"]) > 0


def test_report_compare_and_committed_table_agree(qa_arch, tmp_path):
    """The committed table is that of its records (``tests/experiments``)."""
    records, path = HYPOTHESIS / "records", tmp_path / "r.html"
    committed = json.loads((HYPOTHESIS / "table.json").read_text(encoding="utf-8"))
    assert qa_arch("report", records, "--baseline", "bert", "-o", path, "--forced-f1")[0] == 0
    page = page_tables(path)
    for index, measure in enumerate(("f1", "forced_f1")):
        plot = ("--plot", tmp_path / "f1.pdf") if measure == "f1" else ()
        options = ("--baseline", "bert", "--measure", measure, "--json", *plot)
        (compared,) = json.loads(qa_arch("compare", records, *options)[1])
        assert compared["rows"] == committed[1 + index]["rows"]
        drawn = {
            trace["name"]: [trace["x"][0], *(trace["error_x"][end][0] for end in ("arrayminus", "array"))]
            for trace in page_figures(path)[f"delta-{measure}"]["data"]
        }
        rows = {row["model"]: row for row in compared["rows"]}
        for shown in page[f"{MEASURES[measure]}: every system against bert"]:
            keys = [key for key in ("delta", "delta_95_low", "delta_95_high", "p", "p_holm") if shown[key]]
            values = [float(shown[key]) for key in keys]
            assert values == [rows[shown["model"]][key] for key in keys]
            if values:
                delta, low, high, *_ = values
                interval = [delta, delta - low, high - delta]
                assert drawn.pop(shown["model"]) == pytest.approx(interval, abs=1e-4)
    assert (tmp_path / "f1.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.slow
def test_committed_records_are_reported_against_a_baseline(qa_arch, tmp_path):
    folders = sorted(HYPOTHESIS.parent.glob("*/records"))
    code, out, err = qa_arch("report", *folders, "--baseline", "bert", "-o", tmp_path / "r.html")
    assert code == 0
    assert "Traceback" not in err
    value, tables = page_parts(tmp_path / "r.html")[0], page_tables(tmp_path / "r.html")
    assert f"{len(value['runs'])} runs" in out
    tested = [name for name in tables if name.startswith("F1: every system against bert")]
    assert any(row["p_holm"] for name in tested for row in tables[name])
    settings = tables["Settings in which systems differ"]
    assert any("False" in row.values() for row in settings), "written as in qa-arch compare, not 0"
    page, with_rows = (tmp_path / "r.html").read_text(), [s for s in value["sets"] if s["runs"]]
    assert "<tbody></tbody>" not in page, "no table without rows"
    assert page.count('aria-label="Calibration as CSV"') == len(with_rows) < len(value["sets"])


@pytest.mark.slow
def test_page_of_200_runs_of_full_dev_is_below_30_mb(make_run, question_set, tmp_path):
    """Every run has its own answers and null odds, the part that does not compress."""
    questions = question_set(copies=1762)
    first = make_run("run-000", questions, seed=0)
    record, rows = find_runs([first])[0][1], read_questions(first)
    passages = np.unique([example.context for example in questions.examples], return_inverse=True)[1]
    for seed in range(1, 200):
        rng, folder = np.random.default_rng(seed), first.parent / f"run-{seed:03}"
        order = np.empty(len(questions), int)  # of answers to questions about the same passage
        for passage in np.unique(passages):
            order[passages == passage] = rng.permutation(np.flatnonzero(passages == passage))
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
