"""A run that takes seconds, shared by the tests of all commands; tests that change it take a copy."""

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from qa_arch.cli.main import main
from qa_arch.provenance import identify
from qa_arch.records import read_record, write_record


@pytest.fixture(scope="session")
def feature_cache(tmp_path_factory) -> str:
    return str(tmp_path_factory.mktemp("features"))


@pytest.fixture(scope="session")
def trained(tmp_path_factory, feature_cache) -> Path:
    """A finished BERT run on the embedded data. Do not change it."""
    runs = tmp_path_factory.mktemp("runs")
    assert main(["train", "model=bert", *fast(runs, feature_cache)]) == 0
    (folder,) = (runs / "debug").glob("bert-*")
    return folder


def fast(runs: Path, feature_cache: str) -> list[str]:
    return ["debug=fast", f"runs_dir={runs}", f"features.cache_dir={feature_cache}", "trainer.progress=false"]


@pytest.fixture
def settings(tmp_path, feature_cache) -> list[str]:
    """Overrides for a run under ``tmp_path`` that takes seconds."""
    return fast(tmp_path, feature_cache)


@pytest.fixture
def run_folder(trained, tmp_path) -> Path:
    """A copy of ``trained`` that tests may change."""
    return Path(shutil.copytree(trained, tmp_path / trained.name))


@pytest.fixture
def closed_run(run_folder, tmp_path, monkeypatch):
    """A run with a closed dev set, not yet scored on it, in an otherwise empty working folder."""
    record = read_record(run_folder)
    config = record.config | {"data": record.config["data"] | {"open_dev": False}}
    scored = {
        name: {k: v for k, v in getattr(record, name).items() if k != "dev"}
        for name in ("data", "scores", "references")
    }
    hash_ = identify(config).settings_hash
    write_record(run_folder, replace(record, config=config, settings_hash=hash_, **scored))
    for name in ("predictions.json", "questions.parquet"):
        (run_folder / name).unlink()
    monkeypatch.chdir(tmp_path)
    return run_folder


@pytest.fixture
def read_json():
    return lambda path: json.loads(Path(path).read_text(encoding="utf-8"))


@pytest.fixture
def quick(tmp_path) -> list[str]:
    """Overrides for a run that takes seconds, on a handful of questions."""
    from qa_arch.contract import trial_settings

    return trial_settings(tmp_path / "questions")


@pytest.fixture
def own_folder(monkeypatch, tmp_path):
    """An empty working folder; modules imported from it are removed from ``sys.modules`` afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", None)):
            del sys.modules[name]
