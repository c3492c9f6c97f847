"""An experiment's tables: published rows, rows that wait for a run, counts of sets; and its figures."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from qa_arch.errors import ConfigError, RunError
from qa_arch.records import BatchSizes, write_record
from qa_arch.results import figures
from qa_arch.results.experiments import experiment_figures, experiment_tables
from qa_arch.results.figures import by_system, mean_line
from tests.results.conftest import script

WANTED = """runs_table(
    folder,
    "Mills",
    columns=["model", "f1"],
    published=[Published("BERT", {"f1": 76.3}, "all of dev")],
    wanted=[Wanted("bert", "qa-arch train model=bert"), Wanted("albert", "qa-arch train model=albert")],
)"""


@pytest.fixture
def folder(tmp_path):
    script(tmp_path, WANTED)
    return tmp_path


def test_a_row_waits_for_its_run_and_names_the_command(folder, make_record):
    (empty,) = experiment_tables(folder)
    assert [row["model"] for row in empty.rows] == ["BERT (published)", "bert", "albert"]
    assert [(c.key, c.heading) for c in empty.columns] == [("model", "model"), ("f1", "F1")]
    write_record(folder / "records" / "bert-s13", make_record("bert", 60.0))
    (filled,) = experiment_tables(folder)
    assert [(row["model"], row.get("f1")) for row in filled.rows] == [
        ("BERT (published)", 76.3),
        ("always-no-answer", 50.0),
        ("bert", 62.0),
        ("albert", None),
    ]
    waiting = [note for note in filled.notes if "not run yet" in note]
    assert waiting == ["albert: not run yet; `qa-arch train model=albert` fills the row"]
    assert len([note for note in empty.notes if "not run yet" in note]) == 2


def test_runs_of_several_commits_or_of_changed_code_are_named_as_such(folder, make_record):
    for seed, commit, dirty in ((1, "a" * 40, False), (2, "a" * 40, False), (3, "b" * 40, True)):
        record = make_record("bert", 60.0, seed=seed, commit=commit, dirty=dirty)
        write_record(folder / "records" / f"bert-s{seed}", record)
        notes = [note for note in experiment_tables(folder)[0].notes if note.startswith("code of the runs")]
        assert (notes == []) is (seed < 3)
    assert notes[0].endswith("by commit: aaaaaaa (2), bbbbbbb (1); 1 of 3 with uncommitted changes beside it")


def test_sets_are_counted_beside_the_published_figures(tmp_path):
    sets = """
        DataSet("A", "a.json", {"examples": 7}), DataSet("B", "b.json"),
        DataSet("C", "c.json", {"examples": 9}, open=False),
    """
    script(tmp_path, f'sets_table(folder, "Sets", [{sets}])')
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "a.json").write_text(json.dumps({"examples": 6, "negatives": 2, "paragraphs": 1}))
    (table,) = experiment_tables(tmp_path)
    assert [(row["set"], row.get("examples")) for row in table.rows] == [
        ("A (published)", 7),
        ("A", 6),
        ("B", None),
        ("C (published)", 9),
    ]
    (note,) = table.notes
    assert note.startswith("B: not counted here; `qa-arch stats --data b.json --json > ")
    (tmp_path / "records" / "a.json").write_text("{")
    with pytest.raises(RunError, match=r"a\.json: cannot be read .*`qa-arch stats --json`"):
        experiment_tables(tmp_path)


def epochs(*losses):
    return [{"epoch": n, "train_loss": loss, "calibration_f1": 50.0 + n} for n, loss in enumerate(losses)]


def test_a_line_is_the_mean_of_the_seeds_that_reached_the_epoch(make_record):
    records = [make_record(epochs=epochs(3.0, 2.0)), make_record(seed=14, epochs=epochs(2.0))]
    assert mean_line(records, "train_loss") == [(1, 2.5), (2, 2.0)]
    assert mean_line(records, "calibration_loss") == []


def test_runs_of_other_settings_have_a_line_of_their_own(make_record):
    runs = [
        (Path(f"{batch}-{seed}"), make_record(seed=seed, config={"trainer": {"batch_size": batch}}))
        for seed in (14, 13)
        for batch in (8, 6)
    ]
    found = {name: [record.seed for record in records] for name, records in by_system(runs).items()}
    assert found == {"bert batch_size=6": [13, 14], "bert batch_size=8": [13, 14]}


def test_figures_are_drawn_of_runs_with_epochs_and_are_the_same_each_time(tmp_path, make_record):
    curves = 'learning_curves(folder, "f", "F", ["train_loss", "calibration_f1"])'
    script(tmp_path, 'runs_table(folder, "A")', curves)
    assert experiment_figures(tmp_path) == []
    for seed in (13, 14):
        record = make_record(seed=seed, epochs=epochs(3.0, 2.0, 1.5), best_epoch=1)
        write_record(tmp_path / "records" / f"bert-s{seed}", record)
    write_record(
        tmp_path / "records" / "albert-s13", replace(record, model="albert", status="oom", epochs=())
    )
    drawn = experiment_figures(tmp_path)
    assert [path.name for path in drawn] == ["f.svg", "f.png"]
    first = [path.read_bytes() for path in drawn]
    assert all(len(data) > 5000 for data in first)
    assert [path.read_bytes() for path in experiment_figures(tmp_path)] == first


def test_a_row_of_one_batch_size_waits_for_a_finished_run_of_it(tmp_path, make_record):
    rows = 'Wanted("bert", "make eight", batch=8), Wanted("bert", "make six", batch=6), Wanted("bert", "any")'
    script(tmp_path, f'runs_table(folder, "T", columns=["model", "batch", "f1"], wanted=[{rows}])')
    eight = make_record(batch={"micro": 8, "accumulate": 1, "devices": 1, "global": 8})
    write_record(tmp_path / "records" / "eight", eight)
    write_record(
        tmp_path / "records" / "six", replace(eight, batch=BatchSizes(global_size=6), status="oom", scores={})
    )
    (table,) = experiment_tables(tmp_path)
    assert [row.get("batch") for row in table.rows][-3:] == [8, 6, 6]
    assert table.notes[-1] == "bert, batch 6: not run yet; `make six` fills the row"
    assert not any("eight" in note or "any" in note for note in table.notes)


def test_two_systems_are_compared_by_kind(tmp_path, make_run, question_set):
    script(tmp_path, 'pairwise_table(folder, "T", "poor", "good")')
    for model, right in (("poor", 0.3), ("good", 0.95)):
        assert experiment_tables(tmp_path) == []
        run = make_run(f"{model}-13", question_set(again=20), model=model, right=right)
        shutil.copytree(run, tmp_path / "records" / run.name)
    (table,) = experiment_tables(tmp_path)
    rows = {row["name"]: row for row in table.rows}
    assert table.title == "T"
    assert rows["F1"]["delta"] == pytest.approx(rows["F1"]["b_mean"] - rows["F1"]["a_mean"])
    assert rows["F1"]["delta"] > 20
    assert rows["F1"]["p_holm"] is None
    assert {"negation", "entity_swap"} <= set(rows)
    assert rows["negation"]["questions"] == 40
    assert rows["negation"]["p_holm"] >= rows["negation"]["p"]


def test_a_legend_of_many_systems_stays_on_the_page(tmp_path, make_record):
    """Figures 5.1 and 5.2: one panel, five models and as many again of the other batch size."""
    names = [f"{model} of batch {size}" for model in ("albert", "bert", "distilbert") for size in (6, 8)]
    runs = [(tmp_path / name, make_record(name, epochs=epochs(3.0, 2.0))) for name in names]
    figure = figures._draw_curves(runs, ["train_loss"], "Figure 5.1: EM by epoch")
    canvas = pytest.importorskip("matplotlib.backends.backend_agg").FigureCanvasAgg(figure)
    canvas.draw()
    width, height = canvas.get_width_height()
    (legend,) = figure.legends
    boxes = [legend.get_window_extent(), *(text.get_window_extent() for text in figure.texts)]
    assert all(0 <= box.x0 < box.x1 <= width and 0 <= box.y0 < box.y1 <= height for box in boxes)
    assert not figure.texts[0].get_window_extent().overlaps(figure.texts[1].get_window_extent())
    assert legend.get_window_extent().y1 < figure.axes[0].get_window_extent().y0


def test_a_mark_a_run_once_there_is_one(tmp_path, make_record, monkeypatch):
    figure = 'dot_plot(folder, "f", "F", ["spans_f1", "exact"], split="calibration")'
    script(tmp_path, 'runs_table(folder, "A")', figure)
    write_record(tmp_path / "records" / "on-dev", make_record(exact=70.0))
    assert experiment_figures(tmp_path) == []
    for model, exact, spans in (("bert", 60.0, 50.0), ("proposed", 55.0, 58.0)):
        record = make_record(model, exact, split="calibration")
        record.scores["calibration"]["never_null"].metrics["HasAns_f1"] = spans
        write_record(tmp_path / "records" / model, record)
    made = []
    take = figures.lines
    monkeypatch.setattr(figures, "lines", lambda *given: made.append(take(*given)) or made[-1])
    assert [path.name for path in experiment_figures(tmp_path)] == ["f.svg", "f.png"]
    assert [name for name, _ in made[0]] == ["proposed", "bert", "always-no-answer"]
    script(tmp_path, 'runs_table(folder, "A")', figure.replace("exact", "exakt"))
    with pytest.raises(ConfigError, match=r"unknown column 'exakt' \(did you mean 'exact'"):
        experiment_figures(tmp_path)
