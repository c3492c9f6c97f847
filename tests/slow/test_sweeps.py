"""Sweeps of real runs on several processes: points are isolated, killed sweeps resume to the same records.

With Lightning under Hydra's own launcher, where points share a process, other ranks repeat the whole sweep,
continue a point whose rank 0 failed, share gradients with the next point, and connect to addresses left by
earlier points. Each kill hits the sweep's process, a point's first process, another rank, or all processes at
once, as when a machine goes down. Afterwards no process may survive, and no finished point may be repeated.
"""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from qa_arch.launchers import state_of
from qa_arch.process import LINUX
from qa_arch.records import read_record
from qa_arch.sweep import STUDY


def marked_processes(mark: str) -> dict[int, str]:
    """Command lines of living processes with ``mark`` in their environment, by process id."""
    commands = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes():
                commands[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return commands


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
    assert not marked_processes(mark)
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


def creation_time(record: Path) -> str:
    return read_record(record).created


KILLS = 32
SEED = 2026
VICTIMS = ("sweep", "point", "rank", "machine")
EXIT_SECONDS = 10.0
"""Time for processes to exit after their parent was killed."""
GRID = [
    "model=bert",
    "debug=fast",
    "trainer.devices=1,2",
    "trainer.max_steps=-1",
    "trainer.epochs=2",
    "trainer.accumulate=2",
    "trainer.batch_size=2",
    "trainer.checkpoint_minutes=1e-9",
    "trainer.progress=false",
    "data.train_questions=24",
]


@dataclass
class Sweep:
    """A sweep in a folder; its processes are recognised by ``mark`` in their environment."""

    folder: Path
    cache: Path
    mark: str = field(default_factory=lambda: f"SWEEP_TEST_{uuid.uuid4().hex}")

    def start(self) -> subprocess.Popen[bytes]:
        """Begin or resume the sweep."""
        command = [sys.executable, "-m", "qa_arch.cli.main"]
        cache = f"features.cache_dir={self.cache}"
        if (self.folder / "sweep.json").is_file():
            command += ["sweep", "resume", str(self.folder), cache]
        else:
            command += ["train", "-m", *GRID, f"sweep.folder={self.folder}", cache]
        environment = {**os.environ, self.mark: "1", "OMP_NUM_THREADS": "1"}
        with (self.folder.parent / f"{self.folder.name}.log").open("ab") as log:
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)

    def victims(self, kind: str, parent: int) -> list[int]:
        """Ids of the processes to kill for one of ``VICTIMS``; empty if there are none at the moment."""
        processes = marked_processes(self.mark)
        if kind == "machine":
            return list(processes)
        if kind == "sweep":
            return [parent] if parent in processes else []
        word = "qa_arch.training.ranks" if kind == "rank" else "--config-from"
        return [pid for pid, command in processes.items() if word in command and pid != parent][:1]

    def results(self) -> dict[str, object]:
        """Contents of each record that do not depend on the clock, and a hash of the weights."""
        results: dict[str, object] = {}
        for path in sorted(self.folder.glob("*/run.json")):
            record = read_record(path.parent)
            weights = hashlib.sha256((path.parent / "model" / "model.safetensors").read_bytes()).hexdigest()
            curve = [(epoch.step, epoch.train_loss, epoch.value("calibration_f1")) for epoch in record.epochs]
            outcome = (record.status, record.scores, record.threshold, record.best_epoch, curve)
            results[path.parent.name] = (record.run_hash, outcome, weights)
        return results


def survivors_after(sweep: Sweep, seconds: float) -> dict[int, str]:
    """Processes of ``sweep`` that are still alive after ``seconds``; returns early if there are none."""
    deadline = time.monotonic() + seconds
    while (processes := marked_processes(sweep.mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return processes


def wait_for_moment(rng: random.Random, sweep: Sweep, parent: subprocess.Popen) -> str:
    """Wait a random time, from now or from the next checkpoint of a running point."""
    start = time.time()
    where, delay = (
        ("anywhere", rng.uniform(0, 20)) if rng.random() < 0.4 else ("in training", rng.uniform(0, 1))
    )
    while where == "in training" and parent.poll() is None:
        with suppress(FileNotFoundError):  # a finished point discards its checkpoints
            if any(path.stat().st_mtime > start for path in sweep.folder.glob("*/last.ckpt")):
                break
        time.sleep(0.02)
    deadline = time.monotonic() + delay
    while parent.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return where


@pytest.mark.slow
@pytest.mark.timeout(3 * 3600)
@pytest.mark.skipif(not LINUX, reason="reads /proc")
def test_killed_sweep_resumes_to_the_same_records(tmp_path):
    undisturbed = Sweep(tmp_path / "undisturbed", tmp_path / "cache")
    assert undisturbed.start().wait() == 0, (tmp_path / "undisturbed.log").read_text()
    expected = undisturbed.results()
    assert len(expected) == 2
    rng = random.Random(SEED)
    kills = Counter[str]()
    sweeps = 0
    while kills.total() < KILLS:
        sweeps += 1
        sweep = Sweep(tmp_path / f"killed-{sweeps}", tmp_path / "cache")
        done: dict[str, str] = {}
        code = None
        while code != 0:
            parent = sweep.start()
            while kills.total() < KILLS and parent.poll() is None:
                where = wait_for_moment(rng, sweep, parent)
                kind = least_killed(kills, sweep, parent)
                for pid in sweep.victims(kind, parent.pid):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                kills[kind] += 1
                print(f"kill {kills.total()}, sweep {sweeps}: {kind}, {where}", flush=True)
            code = parent.wait()
            survivors = survivors_after(sweep, EXIT_SECONDS)
            assert not survivors, f"after kill {kills.total()}: {survivors}"
            finished = finished_points(sweep.folder)
            assert {name: finished[name] for name in done} == done, "a finished point was repeated"
            done = finished
        assert sweep.results() == expected, f"sweep {sweeps}, after kill {kills.total()}"
    print(f"{dict(kills)} in {sweeps} sweeps; all ended with the undisturbed records")
    assert set(kills) == set(VICTIMS)


def least_killed(kills: Counter[str], sweep: Sweep, parent: subprocess.Popen) -> str:
    """The kind of victim killed least often so far, among those alive at the moment."""
    alive = [kind for kind in VICTIMS if sweep.victims(kind, parent.pid)]
    return min(alive, key=lambda kind: kills[kind], default="sweep")


def finished_points(folder: Path) -> dict[str, str]:
    """Start time of the last attempt of each finished point."""
    records = [(path.parent.name, json.loads(path.read_text())) for path in folder.glob("*/run.json")]
    return {name: record["created"] for name, record in records if record["status"] == "ok"}
