"""``qa-arch tables``: from records alone, in every format, for every committed experiment."""

import json
import os
import subprocess
import sys

import pytest

from qa_arch.cli.main import main
from qa_arch.provenance import DevAccess, log_dev_access
from qa_arch.records import write_record
from tests.results.conftest import script

ACCESS = DevAccess(
    date="2026-01-02", commit="a" * 40, config_hash="b" * 64, run="bert", data="x", fingerprint="d1"
)
BLOCKED = """
import sys
for name in ("torch", "transformers", "wandb", "evaluate", "pytorch_lightning", "hydra", "omegaconf"):
    sys.modules[name] = None  # importing it raises ImportError
from qa_arch.cli.main import main
sys.exit(main(["tables", "--all"]))
"""


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def experiment(workdir, make_record):
    """A committed experiment: ``tables.py``, records, and one logged access to its dev set."""
    folder = workdir / "experiments" / "trial"
    write_record(folder / "records" / "v2" / "bert", make_record("bert", 60.0))
    write_record(folder / "records" / "v2" / "proposed", make_record("proposed", 65.0))
    write_record(folder / "records" / "v1" / "bert", make_record("bert", 70.0, protocol="1.1", data="one"))
    published = 'Published("Elsewhere", {"exact": 80.0, "f1": 83.5}, "all of dev")'
    columns = '["model", "exact", "forced_f1"]'
    first = f'records_table(folder, "Two", records="v2", columns={columns}, published=[{published}])'
    script(folder, f'{first}, records_table(folder, "One", records="v1")')
    log_dev_access(folder, ACCESS)
    return folder


def test_table_of_runs_notes_the_accesses_to_their_dev_set(workdir, make_record, capsys):
    write_record(workdir / "runs" / "trial" / "bert", make_record("bert"))
    log_dev_access(workdir / "experiments" / "trial", ACCESS)
    assert main(["tables"]) == 0
    assert "dev was scored once" in capsys.readouterr().out


def test_no_records_is_an_error(workdir, capsys):
    (workdir / "empty").mkdir()
    for arguments in ([], ["empty"], ["--all"]):
        assert main(["tables", *arguments]) == 5
    assert main(["tables", "empty", "--all"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 4


def test_experiment_is_printed_by_its_script_next_to_runs(experiment, workdir, make_record, capsys):
    write_record(workdir / "runs" / "trial" / "a", make_record("bert"))
    assert main(["tables", "experiments/trial", "runs", "--format", "json"]) == 0
    first, second, runs = json.loads(capsys.readouterr().out)
    assert [first["title"], second["title"], runs["title"]] == ["Two", "One", "trial: dev"]
    assert first["rows"][0]["model"] == "Elsewhere (published)"
    assert main(["tables", "--all"]) == 0
    assert json.loads((experiment / "table.json").read_text()) == [first, second]
    script(experiment.parent / "planned", 'records_table(folder, "Later")')
    capsys.readouterr()
    assert main(["tables", "experiments/planned"]) == 5
    assert "experiments/planned: no run.json below records/ yet" in capsys.readouterr().err


def test_rows_are_means_over_seeds_or_runs_of_a_system(workdir, make_record, capsys):
    """A failed and a repeated seed count in no mean; rows of runs then show their folders."""
    slow, fast = {"optim": {"lr": 1e-4}}, {"optim": {"lr": 2e-4}}
    runs = {"a": (2, 60.0, slow), "b": (1, 50.0, fast), "c": (3, 64.0, slow), "d": (3, 90.0, slow)}
    for name, (seed, f1, config) in runs.items():
        write_record(workdir / "runs" / name, make_record("bert", f1, seed=seed, config=config))
    failed = make_record("bert", seed=4, config=slow, scores={}, status="failed")
    write_record(workdir / "runs" / "e", failed)

    def table(*arguments):
        assert main(["tables", "--format", "json", *arguments]) == 0
        return json.loads(capsys.readouterr().out)[0]

    means = table()
    heuristic, first, second = means["rows"]
    assert (heuristic["model"], heuristic["f1_mean"]) == ("always-no-answer", 50.0)
    assert (first["model"], first["seeds"], first["f1_mean"]) == ("bert lr=0.0001", 2, 64.0)
    assert (first["f1_sd"], first["parameters"]) == (pytest.approx(8**0.5), failed.parameters.total)
    assert (second["model"], second["f1_mean"], second["f1_sd"]) == ("bert lr=0.0002", 52.0, None)
    assert "left out, as runs/c has the same seed: runs/d" in means["notes"]
    assert "left out, no scores of dev yet: runs/e (failed)" in means["notes"]
    assert table("--columns", "model,f1")["rows"][1] == {
        **{key: first[key] for key in ("model", "seeds", "f1_mean", "f1_sd")}
    }
    per_run = [("bert lr=0.0001", seed) for seed in (2, 3, 3, 4)] + [("bert lr=0.0002", 1)]
    for arguments in (["--per-run"], ["--columns", "model,seed"]):
        rows = table(*arguments)["rows"][1:]
        assert [(row["model"], row["seed"]) for row in rows] == per_run
    assert main(["tables", "--format", "latex"]) == main(["tables", "--per-run", "--format", "markdown"]) == 0
    pages = capsys.readouterr().out
    assert r"bert lr=0.0001 & 2 & 62.00 $\pm$ 2.83 &" in pages
    assert "| model | run | seed | EM |" in pages


def test_tables_of_committed_experiments_need_no_heavy_imports(experiment):
    environment = os.environ | {"COLUMNS": "20"}
    done = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    page = (experiment / "table.md").read_text()
    lines = page.splitlines()
    assert lines[:4] == ["## Two", "", "| model | EM | answerable F1 (forced answer) |", "|---|---:|---:|"]
    assert lines[4] == "| Elsewhere (published) | 80.0 | – |"
    assert "| proposed | 65.0 | 59.0 |" in lines
    assert "- Elsewhere, published: all of dev" in lines
    assert sum("dev was scored once: bert on 2026-01-02" in line for line in lines) == 1
    assert "## One" in lines
    first, second = json.loads((experiment / "table.json").read_text())
    assert [row["model"] for row in first["rows"]] == [
        "Elsewhere (published)",
        "always-no-answer",
        "bert",
        "proposed",
    ]
    assert second["rows"][-1]["run"] == "records/v1/bert"


@pytest.mark.parametrize(
    ("spec", "code", "message"),
    [
        ('records_table(folder, "x")', 5, "are not comparable"),
        ('records_table(folder, "x", records="v3")', 5, "commit the records"),
        ('records_table(folder, titel="x")', 2, "unexpected keyword argument 'titel'"),
    ],
)
def test_faulty_scripts_are_refused(experiment, capsys, spec, code, message):
    script(experiment, spec)
    assert main(["tables", "--all"]) == code
    assert message in capsys.readouterr().err
    assert not (experiment / "table.md").exists()
