"""Sweeps of points that train nothing, so that what happens around them can be tested in moments."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from kills import alive

sys.path.append(str(Path(__file__).parent))  # the stub is a program as well
stub = importlib.import_module("sweep_stub")


@dataclass(frozen=True)
class Stubbed:
    """A sweep below ``base`` whose points do what ``does`` says."""

    base: Path

    @property
    def folder(self) -> Path:
        return self.base / "sweep"

    @property
    def plan(self) -> Path:
        return self.base / "plan.json"

    def does(self, **by_seed: str) -> Stubbed:
        self.plan.write_text(json.dumps({seed.removeprefix("seed"): what for seed, what in by_seed.items()}))
        return self

    def launch(self, *seeds: int, overrides: tuple[str, ...] = (), **settings):
        sweep = stub.make_sweep(self.folder, self.plan, **settings)
        return sweep.launch(stub.points(*seeds, overrides=overrides))

    def start(self, *seeds: int) -> subprocess.Popen[bytes]:
        """The same in a process of its own."""
        command = [sys.executable, stub.__file__, "sweep", self.folder, self.plan, *map(str, seeds)]
        return subprocess.Popen(command, start_new_session=True)

    @property
    def command(self):
        return stub.point_command(self.plan)

    def events(self, what: str | None = None) -> list[dict]:
        path = self.base / "events.jsonl"
        text = path.read_text() if path.exists() else ""
        complete = text[: text.rfind("\n") + 1].splitlines()  # the last line may still be in writing
        return [line for line in map(json.loads, complete) if what in (None, line["what"])]

    def begun(self) -> list[str]:
        """The points that began, in order: ``seed1``, ..."""
        return [line["point"].partition("-")[0] for line in self.events("begin")]

    def point(self, seed: int) -> Path:
        (folder,) = self.folder.glob(f"seed{seed}-*")
        return folder

    def wait_until(self, number: int, what: str) -> list[dict]:
        deadline = time.monotonic() + 30
        while len(self.events(what)) < number:
            assert time.monotonic() < deadline, self.events()
            time.sleep(0.02)
        return self.events(what)


@pytest.fixture
def stubbed(tmp_path) -> Stubbed:
    return Stubbed(tmp_path).does()


@pytest.fixture
def train_m(stubbed, monkeypatch, qa_arch):
    """``train_m(*arguments)`` -> exit code, stdout, stderr of a sweep through Hydra, and its points train
    nothing; nor do those of ``qa-arch sweep``."""
    monkeypatch.setattr("qa_arch.cli.sweep.point_command", lambda *_: stubbed.command)
    monkeypatch.setattr("qa_arch.sweep.points.preflight", lambda *_: None)
    return partial(qa_arch, "train", "-m", "debug=fast", f"sweep.folder={stubbed.folder}")


@pytest.fixture
def survivors():
    """``survivors(pids)``: those that are alive after a while in which they should have ended."""

    def look(pids: list[int], within: float = 10) -> list[int]:
        deadline = time.monotonic() + within
        while time.monotonic() < deadline and any(map(alive, pids)):
            time.sleep(0.02)
        return [pid for pid in pids if alive(pid)]

    return look
