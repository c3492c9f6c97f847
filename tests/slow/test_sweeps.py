"""Sweeps of real runs on several processes: points are isolated, and no process survives them.

With Lightning under Hydra's own launcher, where points share a process, other ranks repeat the whole sweep,
continue a point whose rank 0 failed, share gradients with the next point, and connect to addresses left by
earlier points.
"""

import os
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path

import pytest

from qa_arch.launchers import state_of
from qa_arch.process import LINUX
from qa_arch.records import read_record
from qa_arch.sweep import STUDY

SMALL = ["debug=fast", "model=bert", "trainer.progress=false"]
FAULTY = '''
import os
from baselines.transformer import TransformerSpan

class Faulty(TransformerSpan):
    """Fails on rank 0 at its third step if ``fails`` is 1."""

    def __init__(self, encoder, *, dropout: float = 0.0, fails: int = 0):
        super().__init__(encoder, dropout=dropout)
        self.fails, self.steps = fails, 0

    def forward(self, batch):
        self.steps += self.training
        if self.fails == 1 and self.steps == 3 and os.environ.get("LOCAL_RANK") == "0":
            raise ValueError("made to fail")
        return super().forward(batch)
'''
SWEEPS = {
    "two seeds on two ranks": (["trainer.devices=2", "seed=1,2"], [("ok", 2), ("ok", 2)]),
    "rank 0 of the second point fails": (
        ["trainer.devices=2", "model._target_=faulty.Faulty", "+model.fails=0,1,2", "--trust", "faulty"],
        [("ok", 2), ("failed", 2), ("ok", 2)],
    ),
    "two ranks, then one": (["trainer.devices=2,1"], [("ok", 2), ("ok", 1)]),
    "ddp_spawn, then ddp": (["trainer=ddp_spawn,ddp", "trainer.devices=2"], [("ok", 2), ("ok", 2)]),
    "two points in parallel": (["trainer.devices=2", "seed=1,2", "sweep.n_jobs=2"], [("ok", 2), ("ok", 2)]),
    "submitit jobs": (
        ["hydra/launcher=submitit_local", "hydra.launcher.timeout_min=20", "sweep.n_jobs=1", "seed=1,2"],
        [("ok", 1), ("ok", 1)],
    ),
    "search": (
        ["hydra/sweeper=qa_optuna", "hydra.sweeper.n_trials=3", "model.dropout=interval(0.0,0.2)"],
        [("ok", 1)] * 3,
    ),
}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not LINUX, reason="reads /proc")
@pytest.mark.parametrize("name", SWEEPS)
def test_points_on_several_processes(tmp_path, name):
    grid, expected = SWEEPS[name]
    if name == "submitit jobs":
        pytest.importorskip("submitit")
    (tmp_path / "faulty.py").write_text(FAULTY)
    mark = f"SWEEP_TEST_{uuid.uuid4().hex}"
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, mark: "1", "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    places = [f"sweep.folder={tmp_path}/sweep", f"features.cache_dir={tmp_path}/cache"]
    command = [sys.executable, "-m", "qa_arch.cli.main", "train", "-m", *SMALL, *places, *grid]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == int(("failed", 2) in expected), done.stderr
    assert not [path for path in Path("/proc").glob("[0-9]*/environ") if mark.encode() in content_of(path)]
    folders = [path.parent for path in sorted((tmp_path / "sweep").glob("*/run.json"), key=creation_time)]
    assert len(folders) == len(expected)
    subfolders = {path.name for path in (tmp_path / "sweep").iterdir() if path.is_dir()}
    assert subfolders - {"submitit"} == {folder.name for folder in folders}
    for folder, (status, devices) in zip(folders, expected, strict=True):
        record = read_record(folder)
        assert state_of(folder)[0] == record.status == status
        assert record.config["trainer"]["devices"] == devices
        if status == "ok":
            assert record.batch.devices == devices
        else:
            assert "made to fail" in (folder / "traceback.txt").read_text()
            assert "ValueError: made to fail" in done.stdout
    if name == "search":
        optuna = pytest.importorskip("optuna")
        backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / "sweep" / STUDY))
        study = optuna.load_study(study_name="calibration", storage=optuna.storages.JournalStorage(backend))
        values = [read_record(folder).tuning_score for folder in folders]
        assert [trial.value for trial in study.trials] == values


def content_of(path: Path) -> bytes:
    with suppress(OSError):  # it has ended, or is of another user
        return path.read_bytes()
    return b""


def creation_time(record: Path) -> str:
    return read_record(record).created
