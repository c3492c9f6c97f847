"""``qa-arch tables``: from records alone, in every format, for every committed experiment."""

import csv
import io
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


def test_every_format_prints_the_same_table(workdir, make_record, capsys):
    write_record(workdir / "runs" / "trial" / "bert", make_record("bert"))
    write_record(workdir / "runs" / "trial" / "proposed", make_record("proposed", 65.0))
    log_dev_access(workdir / "experiments" / "trial", ACCESS)
    pages = {}
    for form in ("text", "markdown", "json", "csv"):
        assert main(["tables", "--format", form]) == 0
        pages[form] = capsys.readouterr().out
    (table,) = json.loads(pages["json"])
    assert [row["model"] for row in table["rows"]] == ["always-no-answer", "bert", "proposed"]
    assert [row["f1"] for row in csv.DictReader(io.StringIO(pages["csv"]))] == ["50.0", "62.0", "67.0"]
    for form in ("text", "markdown"):
        assert "67.0" in pages[form]
        assert "dev was scored once" in pages[form]


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


def test_seeds_of_a_system_are_adjacent_and_labelled(workdir, make_record, capsys):
    for name, lr, seed in (("a", 1e-4, 2), ("b", 2e-4, 1), ("c", 1e-4, 3)):
        write_record(workdir / "runs" / name, make_record("bert", seed=seed, config={"optim": {"lr": lr}}))
    assert main(["tables", "--format", "json"]) == 0
    (table,) = json.loads(capsys.readouterr().out)
    assert [(row["model"], row["seed"]) for row in table["rows"] if row.get("seed")] == [
        ("bert lr=0.0001", 2),
        ("bert lr=0.0001", 3),
        ("bert lr=0.0002", 1),
    ]
    assert main(["tables", "--format", "markdown"]) == 0
    assert "| model | seed | EM |" in capsys.readouterr().out


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
