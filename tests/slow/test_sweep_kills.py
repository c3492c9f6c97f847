"""A sweep that is killed at random moments, and resumed, ends with the records of one that never was.

One kill a round: of the sweep's process alone, of a point's first process, of another rank, or of all at
once as a machine goes down. After each, nothing of the sweep may live on, and nothing may be done twice.
"""

from __future__ import annotations

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

from qa_arch.records import read_record
from qa_arch.system import lifeline

KILLS = 32
SEED = 2026
VICTIMS = ("sweep", "point", "rank", "machine")
SOON = 10.0
"""Seconds within which a process must be gone after its parent was killed."""
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
    """One sweep in a folder, whose processes are known by a word in their environment."""

    folder: Path
    cache: Path
    mark: str = field(default_factory=lambda: f"SWEEP_TEST_{uuid.uuid4().hex}")

    def begin(self) -> subprocess.Popen[bytes]:
        call = [sys.executable, "-m", "qa_arch.cli.main"]
        if (self.folder / "sweep.json").is_file():
            call += ["sweep", "resume", str(self.folder)]
        else:
            where = [f"sweep.folder={self.folder}", f"features.cache_dir={self.cache}"]
            call += ["train", "-m", *GRID, *where]
        environment = {**os.environ, self.mark: "1", "OMP_NUM_THREADS": "1"}
        with (self.folder.parent / f"{self.folder.name}.log").open("ab") as log:
            return subprocess.Popen(call, env=environment, stdout=log, stderr=log, start_new_session=True)

    def processes(self) -> dict[int, str]:
        """The command lines of all that live, by process."""
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and self.mark.encode() in (entry / "environ").read_bytes():
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
        return found

    def victims(self, kind: str, parent: int) -> list[int]:
        """The processes to kill for a kind of victim; none where there is none at the moment."""
        living = self.processes()
        if kind == "machine":
            return list(living)
        if kind == "sweep":
            return [parent] if parent in living else []
        word = "qa_arch.training.ranks" if kind == "rank" else "--config-from"
        return [pid for pid, said in living.items() if word in said and pid != parent][:1]

    def results(self) -> dict[str, object]:
        """What each record says that does not depend on the clock, and a hash of the weights."""
        found: dict[str, object] = {}
        for path in sorted(self.folder.glob("*/run.json")):
            record = read_record(path.parent)
            weights = hashlib.sha256((path.parent / "model" / "model.safetensors").read_bytes()).hexdigest()
            curve = [(epoch.step, epoch.train_loss, epoch.value("calibration_f1")) for epoch in record.epochs]
            outcome = (record.status, record.scores, record.threshold, record.best_epoch, curve)
            found[path.parent.name] = (record.config_hash, outcome, weights)
        return found


def wait_gone(sweep: Sweep, within: float) -> dict[int, str]:
    until = time.monotonic() + within
    while time.monotonic() < until and sweep.processes():
        time.sleep(0.05)
    return sweep.processes()


def wait_for_moment(rng: random.Random, sweep: Sweep, parent: subprocess.Popen) -> str:
    """Let some time pass, from now or from the next checkpoint of a point that runs."""
    begun = time.time()
    where, delay = (
        ("anywhere", rng.uniform(0, 20)) if rng.random() < 0.4 else ("in training", rng.uniform(0, 1))
    )
    while where == "in training" and parent.poll() is None:
        if any(path.stat().st_mtime > begun for path in sweep.folder.glob("*/last.ckpt")):
            break
        time.sleep(0.02)
    until = time.monotonic() + delay
    while parent.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    return where


@pytest.mark.slow
@pytest.mark.timeout(3 * 3600)
@pytest.mark.skipif(not lifeline.LINUX, reason="reads /proc")
def test_killed_and_resumed_is_the_same_as_undisturbed(tmp_path):
    undisturbed = Sweep(tmp_path / "undisturbed", tmp_path / "cache")
    assert undisturbed.begin().wait() == 0, (tmp_path / "undisturbed.log").read_text()
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
            parent = sweep.begin()
            while kills.total() < KILLS and parent.poll() is None:
                where = wait_for_moment(rng, sweep, parent)
                kind = rarest(kills, sweep, parent)
                for pid in sweep.victims(kind, parent.pid):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                kills[kind] += 1
                print(f"kill {kills.total()}, sweep {sweeps}: {kind}, {where}", flush=True)
            code = parent.wait()
            survivors = wait_gone(sweep, SOON)
            assert not survivors, f"after kill {kills.total()}: {survivors}"
            records = told(sweep.folder)
            assert {name: records[name] for name in done} == done, "a point was done twice"
            done = records
        assert sweep.results() == expected, f"sweep {sweeps}, after kill {kills.total()}"
    print(f"{dict(kills)} in {sweeps} sweeps; every one ended with the undisturbed records")
    assert set(kills) == set(VICTIMS)


def rarest(kills: Counter[str], sweep: Sweep, parent: subprocess.Popen) -> str:
    """The kind of victim that was killed least so far, of those that there are at the moment."""
    there = [kind for kind in VICTIMS if sweep.victims(kind, parent.pid)]
    return min(there, key=lambda kind: kills[kind], default="sweep")


def told(folder: Path) -> dict[str, str]:
    """When each finished point began its last attempt: what is done is never begun again."""
    records = [(path.parent.name, json.loads(path.read_text())) for path in folder.glob("*/run.json")]
    return {name: record["created"] for name, record in records if record["status"] == "ok"}
