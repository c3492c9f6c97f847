"""Real runs as jobs of submitit on this machine, on a grid and in a search that goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from qa_arch.records import read_record
from qa_arch.sweep.state import STUDY, read_manifest, value_of

pytest.importorskip("submitit")
SMALL = ["debug=fast", "model=bert", "trainer.progress=false"]


def qa_arch(*arguments: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "qa_arch.cli.main", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def states(folder) -> dict[str, int]:
    return json.loads(qa_arch("sweep", "status", str(folder), "--json"))["counts"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_points_as_jobs(tmp_path):
    where = [f"sweep.folder={tmp_path}/sweep", f"features.cache_dir={tmp_path}/cache"]
    cluster = ["hydra/launcher=submitit_local", "hydra.launcher.timeout_min=20", "sweep.n_jobs=1"]
    out = qa_arch("train", "-m", *SMALL, *where, *cluster, "seed=1,2")
    assert "2 points: 2 ok" in out
    assert states(tmp_path / "sweep") == {"ok": 2}
    assert sorted(read_record(path.parent).seed for path in (tmp_path / "sweep").glob("*/run.json")) == [1, 2]
    assert "2 points: 2 ok" in qa_arch("train", "-m", *SMALL, *where, *cluster, "seed=1,2")
    jobs = [path for path in (tmp_path / "sweep" / "submitit").iterdir() if path.name.isdecimal()]
    assert len(jobs) == 2  # done points are not submitted again


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_search_of_three_points_and_two_more(tmp_path):
    optuna = pytest.importorskip("optuna")
    folder = tmp_path / "sweep"
    fixed = [*SMALL, f"sweep.folder={folder}", f"features.cache_dir={tmp_path}/cache", "data.open_dev=false"]
    space = ["optim.lr=tag(log,interval(1e-4,1e-2))", "model.dropout=choice(0.0,0.2)"]

    def search(trials: int) -> None:
        qa_arch("train", "-m", *fixed, "hydra/sweeper=qa_optuna", f"hydra.sweeper.n_trials={trials}", *space)

    search(3)
    first = [entry.key for entry in read_manifest(folder).points]
    search(5)
    points = read_manifest(folder).points
    assert [entry.key for entry in points][:3] == first
    assert states(folder) == {"ok": 5}
    backend = optuna.storages.journal.JournalFileBackend(str(folder / STUDY))
    storage = optuna.storages.JournalStorage(backend)
    told = [trial.value for trial in optuna.load_study(study_name="calibration", storage=storage).trials]
    assert told == [value_of(read_record(folder / entry.name)) for entry in points]
