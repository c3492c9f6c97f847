"""An experiment's ``tables.py`` and ``qa-arch tables``: rows, formats, figures, and refused scripts."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from qa_arch.cli.main import main
from qa_arch.errors import ConfigError, UnavailableError
from qa_arch.provenance import DevAccess, log_dev_access
from qa_arch.records import BatchSizes, write_record
from qa_arch.results.columns import COLUMNS, runs_table
from qa_arch.results.experiments import TABLES, draw_dots, experiment_tables, lines, save_figure
from qa_arch.results.tables import Column
from tests.results.conftest import script


def test_row_without_a_run_names_the_command_that_fills_it(tmp_path, make_record):
    published = 'published=[Published("BERT", {"f1": 76.3}, "all of dev")]'
    wanted = 'wanted=[Wanted("bert", "make bert"), Wanted("albert", "make albert")]'
    script(tmp_path, f'records_table(folder, "T", columns=["model", "f1"], {published}, {wanted})')
    (empty,) = experiment_tables(tmp_path)
    assert [row["model"] for row in empty.rows] == ["BERT (published)", "bert", "albert"]
    assert [(c.key, c.heading) for c in empty.columns] == [("model", "model"), ("f1", "F1")]
    for seed, commit, dirty in ((1, "a" * 40, False), (2, "a" * 40, False), (3, "b" * 40, True)):
        record = make_record("bert", 60.0, seed=seed, commit=commit, dirty=dirty)
        write_record(tmp_path / "records" / f"bert-s{seed}", record)
        (filled,) = experiment_tables(tmp_path)
        notes = [note for note in filled.notes if note.startswith("code of the runs")]
        assert (notes == []) is (seed < 3)
    assert notes[0].endswith("by commit: aaaaaaa (2), bbbbbbb (1); 1 of 3 with uncommitted changes")
    scores = [(row["model"], row.get("f1")) for row in filled.rows]
    own = [("bert", 62.0)] * 3
    assert scores == [("BERT (published)", 76.3), ("always-no-answer", 50.0), *own, ("albert", None)]
    waiting = [note for note in filled.notes if "not run yet" in note]
    assert waiting == ["albert: not run yet; `make albert` fills the row"]


def test_row_with_a_batch_size_waits_for_a_finished_run_of_that_size(tmp_path, make_record):
    rows = 'Wanted("bert", "make eight", batch=8), Wanted("bert", "make six", batch=6), Wanted("bert", "any")'
    script(tmp_path, f'records_table(folder, "T", columns=["model", "batch", "f1"], wanted=[{rows}])')
    eight = make_record(batch={"micro": 8, "accumulate": 1, "devices": 1, "global_size": 8})
    write_record(tmp_path / "records" / "eight", eight)
    write_record(
        tmp_path / "records" / "six", replace(eight, batch=BatchSizes(global_size=6), status="oom", scores={})
    )
    (table,) = experiment_tables(tmp_path)
    assert [row.get("batch") for row in table.rows][-3:] == [8, 6, 6]
    assert table.notes[-1] == "bert, batch 6: not run yet; `make six` fills the row"
    assert not any("eight" in note or "any" in note for note in table.notes)


def test_pairwise_table_has_rows_by_kind(tmp_path, make_run, question_set):
    script(tmp_path, 'pairwise_table(folder, "T", "poor", "good")')
    for model, right in (("poor", 0.3), ("good", 0.95)):
        assert experiment_tables(tmp_path) == []
        run = make_run(f"{model}-13", question_set(copies=20), model=model, right=right)
        shutil.copytree(run, tmp_path / "records" / run.name)
    (table,) = experiment_tables(tmp_path)
    f1, negation = (next(row for row in table.rows if row["name"] == name) for name in ("F1", "negation"))
    assert table.title == "T"
    assert f1["delta"] == pytest.approx(f1["b_mean"] - f1["a_mean"])
    assert f1["delta"] > 20
    assert f1["p_holm"] is None
    assert negation["questions"] == 40
    assert negation["p_holm"] >= negation["p"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def tables(", "cannot be executed (SyntaxError: "),
        ("x = 1", "defines no tables(folder)"),
        (
            "from qa_arch.results.experiments import Published\nP = Published('x', {'exakt': 1.0}, 'n')",
            "x, published: unknown column 'exakt' (did you mean 'exact'?)",
        ),
    ],
)
def test_errors_name_the_script(tmp_path, text, message):
    (tmp_path / TABLES).write_text(text)
    with pytest.raises(ConfigError) as caught:
        experiment_tables(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / TABLES}: ")
    assert message in str(caught.value)


def test_scripts_among_records_are_not_executed(tmp_path, monkeypatch, make_record):
    """Only the script of a named folder of ``experiments/`` is executed, none among the records."""
    monkeypatch.chdir(tmp_path)
    marker = tmp_path / "executed"
    foreign, records = tmp_path / "runs" / "foreign", tmp_path / "experiments" / "trial" / "records" / "a"
    for folder in (foreign, records):
        write_record(folder, make_record())
        (folder / TABLES).write_text(f"open({str(marker)!r}, 'w')\ndef tables(folder):\n    return []\n")
    script(tmp_path / "experiments" / "trial", 'records_table(folder, "A")')
    calls = ("runs", "runs/foreign", "experiments/trial", "experiments/trial/records/a", "--all")
    assert [main(["tables", call]) for call in calls] == [0] * 5
    assert not marker.exists()


def test_registered_column_works_in_every_output(tmp_path, monkeypatch, make_record, qa_arch):
    """One registry entry is enough to compute, show, sort by, draw and write the column."""
    monkeypatch.chdir(tmp_path)
    seeds = Column("dummy", "Dummy & sons", lambda s: 10.0 * s.record.seed, lambda s: bool(s.record),
                   format=lambda value: f"<{value:.0f}>", on_request=True, mark=("#000000", "*"))  # fmt: skip
    monkeypatch.setitem(COLUMNS, "dummy", seeds)
    folder = tmp_path / "experiments" / "trial"
    for seed in (2, 1):
        record = make_record(seed=seed, config={"optim": {"lr": seed}})
        write_record(folder / "records" / f"s{3 - seed}", record)
    table = 'records_table(folder, "A", columns=["model", "dummy"], sort=["dummy"])'
    script(folder, table, 'dot_plot(folder, "f", "F", ["dummy"])')
    assert qa_arch("tables", "--all")[0] == 0
    for name, part in (
        ("table.md", "| model | Dummy & sons |\n|---|---:|\n"),
        ("table.md", "| bert | <10> |\n| bert | <20> |"),
        ("table.tex", r"model & Dummy \& sons"),
        ("table.json", '"dummy": 10.0'),
        ("table.csv", ",dummy"),
        ("f.svg", "Dummy &amp; sons"),
    ):
        assert part in (folder / name).read_text(), name
    for form in ("text", "csv"):
        code, out, _ = qa_arch("tables", folder / "records", "--columns", "model,dummy", "--format", form)
        assert (code, "ummy" in out, "f1" in out) == (0, True, False), out
    code, _, err = qa_arch("tables", folder / "records", "--columns", "dumy")
    assert (code, "unknown column 'dumy' (did you mean 'dummy'?)" in err) == (2, True), err
    assert qa_arch("tables", "experiments/trial", "--columns", "dummy")[0] == 2


ACCESS = DevAccess(
    date="2026-01-02", commit="a" * 40, config_hash="b" * 64, run="bert", data="x", fingerprint="d1"
)


@pytest.fixture
def experiment(tmp_path, monkeypatch, make_record):
    """A committed experiment: ``tables.py``, records, and one logged access to its dev set."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "experiments" / "trial"
    write_record(folder / "records" / "v2" / "bert", make_record("bert", 60.0))
    write_record(folder / "records" / "v2" / "proposed", make_record("proposed", 65.0))
    write_record(folder / "records" / "v1" / "bert", make_record("bert", 70.0, protocol="1.1", data="one"))
    published = 'Published("Elsewhere", {"exact": 80.0, "f1": 83.5}, "all of dev")'
    columns = '["model", "exact", "forced_f1"]'
    first = f'records_table(folder, "Two", records="v2", columns={columns}, published=[{published}])'
    script(folder, f'{first}, records_table(folder, "One", records="v1")')
    log_dev_access(folder, ACCESS)
    return folder


def test_experiment_is_printed_by_its_script_next_to_runs(experiment, tmp_path, make_record, qa_arch):
    write_record(tmp_path / "runs" / "trial" / "a", make_record("bert"))
    _, out, _ = qa_arch("tables", "experiments/trial", "runs", "--format", "json")
    first, second, runs = json.loads(out)
    assert [first["title"], second["title"], runs["title"]] == ["Two", "One", "trial: dev"]
    assert any("dev was scored once" in note for note in runs["notes"])
    assert qa_arch("tables", "--all")[0] == 0
    assert json.loads((experiment / "table.json").read_text()) == [first, second]
    script(experiment.parent / "planned", 'records_table(folder, "Later")')
    (tmp_path / "empty").mkdir()
    for arguments, code, message in (
        (["experiments/planned"], 5, "experiments/planned: no run.json below records/ yet"),
        (["empty"], 5, "empty"),
        (["empty", "--all"], 2, "--all"),
    ):
        refused, _, err = qa_arch("tables", *arguments)
        assert (refused, message in err, err.count("\n")) == (code, True, 1)


def test_rows_are_means_over_seeds_or_runs_of_a_system(tmp_path, monkeypatch, make_record, qa_arch):
    """A failed and a repeated seed count in no mean; rows of runs then show their folders."""
    monkeypatch.chdir(tmp_path)
    slow, fast = {"optim": {"lr": 1e-4}}, {"optim": {"lr": 2e-4}}
    runs = {"a": (2, 60.0, slow), "b": (1, 50.0, fast), "c": (3, 64.0, slow), "d": (3, 90.0, slow)}
    for name, (seed, f1, config) in runs.items():
        write_record(tmp_path / "runs" / name, make_record("bert", f1, seed=seed, config=config))
    failed = make_record("bert", seed=4, config=slow, scores={}, status="failed")
    write_record(tmp_path / "runs" / "e", failed)
    write_record(tmp_path / "runs" / "f", replace(failed, seed=3, status="ok"))  # adopted, and not scored

    def table(*arguments):
        return json.loads(qa_arch("tables", "--format", "json", *arguments)[1])[0]

    means = table()
    heuristic, first, second = means["rows"]
    assert (heuristic["model"], heuristic["f1_mean"]) == ("always-no-answer", 50.0)
    assert (first["model"], first["seeds"], first["f1_mean"]) == ("bert lr=0.0001", 2, 64.0)
    assert (first["f1_sd"], first["parameters"]) == (pytest.approx(8**0.5), failed.parameters.total)
    assert (second["model"], second["f1_mean"], second["f1_sd"]) == ("bert lr=0.0002", 52.0, None)
    assert "left out, as runs/c has the same seed: runs/d" in means["notes"]
    assert "left out, no scores of dev yet: runs/e (failed), runs/f (ok)" in means["notes"]
    shown = {key: first[key] for key in ("model", "seeds", "f1_mean", "f1_sd")}
    assert table("--columns", "model,f1")["rows"][1] == shown
    per_run = [("bert lr=0.0001", seed) for seed in (2, 3, 3, 4, 3)] + [("bert lr=0.0002", 1)]
    for arguments in (["--per-run"], ["--columns", "model,seed"]):
        rows = table(*arguments)["rows"][1:]
        assert [(row["model"], row["seed"]) for row in rows] == per_run
    assert r"bert lr=0.0001 & 2 & 62.00 $\pm$ 2.83 &" in qa_arch("tables", "--format", "latex")[1]
    assert "| model | run | seed | EM |" in qa_arch("tables", "--per-run", "--format", "markdown")[1]


def test_tables_of_committed_experiments_need_no_heavy_imports(experiment):
    blocked = ("torch", "transformers", "wandb", "evaluate", "pytorch_lightning", "hydra", "omegaconf")
    code = f"import sys; sys.modules.update(dict.fromkeys({blocked}))  # importing them raises ImportError\n"
    code += "from qa_arch.cli.main import main; sys.exit(main(['tables', '--all']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = (experiment / "table.md").read_text().splitlines()
    assert lines[4] == "| Elsewhere (published) | 80.0 | – |"
    assert "- Elsewhere, published: all of dev" in lines
    assert sum("dev was scored once: bert on 2026-01-02" in line for line in lines) == 1


@pytest.mark.parametrize(
    ("spec", "code", "message"),
    [
        ('records_table(folder, "x")', 5, "are not comparable"),
        ('records_table(folder, "x", records="v3")', 5, "commit the records"),
        ('records_table(folder, titel="x")', 2, "unexpected keyword argument 'titel'"),
    ],
)
def test_faulty_scripts_are_refused(experiment, qa_arch, spec, code, message):
    script(experiment, spec)
    refused, _, err = qa_arch("tables", "--all")
    assert (refused, message in err) == (code, True)
    assert not (experiment / "table.md").exists()


DRAWN = ("exact", "f1", "HasAns_f1", "NoAns_f1")


@pytest.fixture
def table(make_record):
    pytest.importorskip("matplotlib")
    records = [
        make_record("bert", 40.0),
        make_record("proposed", 60.0, seed=13),
        make_record("proposed", 66.0, seed=14),
        make_record("roberta", None, status="oom"),
    ]
    runs = [(Path(f"runs/{n}"), record) for n, record in enumerate(records)]
    return runs_table(runs, columns=("model", *DRAWN))


def test_marks_are_drawn_at_their_scores(table):
    panels = draw_dots(table, DRAWN).axes
    assert [panel.get_title(loc="left") for panel in panels] == ["EM", "F1", "HasAns F1", "NoAns F1"]
    for panel, expected in zip(
        panels,
        (
            {0: [60.0, 66.0], 1: [40.0], 3: [50.0]},  # by line from the top
            {0: [62.0, 68.0], 1: [42.0], 3: [50.0]},
            {0: [74.0, 80.0], 1: [54.0], 3: [0.0]},
            {0: [50.0, 56.0], 1: [30.0], 3: [100.0]},
        ),
        strict=True,
    ):
        drawn = (line for line in panel.get_lines() if line.get_marker() not in ("None", None, ""))
        assert {int(line.get_ydata()[0]): list(line.get_xdata()) for line in drawn} == expected
    assert [text.get_text() for text in panels[0].texts] == ["63.0", "40.0", "OOM", "50.0"]
    names = [label.get_text() for label in panels[0].get_yticklabels()]
    assert names == [name for name, _ in lines(table, "exact")]
    top, bottom = panels[0].transData.transform([(0, 0), (0, 3)])[:, 1]
    assert top > bottom, "the first line is the upper one"


def test_missing_matplotlib_names_the_install_command(table, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UnavailableError, match=r"pip install -e '\.\[plots\]'"):
        save_figure(lambda: draw_dots(table, DRAWN), tmp_path / "figure")
