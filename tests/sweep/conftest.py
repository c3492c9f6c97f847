"""Sweeps of points that train nothing, for fast tests of scheduling, records and processes."""

import importlib
import json
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

import pytest

from qa_arch import sweep
from qa_arch.cli.main import main
from qa_arch.training.jobs import Job

CHECK = sweep.check
sys.path.append(str(Path(__file__).parent))  # the stub is also run as a program
stub = importlib.import_module("sweep_stub")


@dataclass(frozen=True)
class Stubbed:
    """A sweep in ``base`` whose points behave as set by ``set_actions``."""

    base: Path

    @property
    def folder(self) -> Path:
        return self.base / "sweep"

    @property
    def plan(self) -> Path:
        return self.base / "plan.json"

    def set_actions(self, **by_seed: str) -> Self:
        """Set what points do, as in ``set_actions(seed2="failed")``; see ``sweep_stub.point``."""
        actions = {seed.removeprefix("seed"): action for seed, action in by_seed.items()}
        self.plan.write_text(json.dumps(actions))
        return self

    def launch(self, *seeds: int, overrides: tuple[str, ...] = (), **settings):
        return stub.make_sweep(self.folder, **settings).launch(stub.points(*seeds, overrides=overrides))

    def rows(self) -> dict[int, sweep.PointState]:
        """Seed -> what became of the point."""
        points = sweep.read_manifest(self.folder).points
        return {int(p.title.partition("seed=")[2]): sweep.row(self.folder, p) for p in points}

    def states(self) -> list[str]:
        return [row.status for row in self.rows().values()]

    def start(self, *seeds: int) -> subprocess.Popen[bytes]:
        """``launch`` in another process."""
        command = [sys.executable, stub.__file__, "sweep", self.folder, self.plan, *map(str, seeds)]
        return subprocess.Popen(command, start_new_session=True)

    def events(self, event: str | None = None) -> list[dict]:
        path = self.base / "events.jsonl"
        text = path.read_text() if path.exists() else ""
        complete = text[: text.rfind("\n") + 1].splitlines()  # the last line may be incomplete
        return [line for line in map(json.loads, complete) if event in (None, line["event"])]

    def started(self) -> list[str]:
        """Points started, in order: ``seed1``, ..."""
        return [line["point"].partition("-")[0] for line in self.events("begin")]

    def point(self, seed: int) -> Path:
        (folder,) = self.folder.glob(f"seed{seed}-*")
        return folder

    def wait_for(self, number: int, event: str) -> list[dict]:
        deadline = time.monotonic() + 30
        while len(self.events(event)) < number:
            assert time.monotonic() < deadline, self.events()
            time.sleep(0.02)
        return self.events(event)


def use_stub(base: Path, patch: pytest.MonkeyPatch) -> Stubbed:
    made = Stubbed(base).set_actions()
    patch.setattr(sweep, "point_command", stub.point_command(made.plan))
    patch.setattr(sweep, "check", lambda *_, **options: None)
    return made


@pytest.fixture
def stubbed(tmp_path, monkeypatch) -> Stubbed:
    return use_stub(tmp_path, monkeypatch)


@pytest.fixture
def train_m(stubbed, qa_arch):
    """``train_m(*arguments)`` -> exit code, stdout, stderr of ``qa-arch train -m`` with stubbed points.

    Points of ``qa-arch sweep`` are stubbed as well.
    """
    return partial(qa_arch, "train", "-m", "debug=fast", f"sweep.folder={stubbed.folder}")


@pytest.fixture(scope="session")
def ended_sweep(tmp_path_factory) -> Path:
    base = tmp_path_factory.mktemp("ended")
    with pytest.MonkeyPatch.context() as patch:
        made = use_stub(base, patch).set_actions(seed1="failed", seed3="oom")
        code = main(["train", "-m", "debug=fast", f"sweep.folder={made.folder}", "seed=1,2,3"])
    assert code == 1
    return base


@pytest.fixture
def ended(stubbed, ended_sweep) -> Stubbed:
    """``stubbed`` with the sweep ``seed=1,2,3``: seed 1 failed, 2 is ok, 3 ran out of memory."""
    shutil.copytree(ended_sweep, stubbed.base, dirs_exist_ok=True)
    return stubbed.set_actions()


@pytest.fixture
def jobs_to_run(stubbed, monkeypatch) -> list[Job]:
    """No point starts; those that would are listed here."""
    listed: list[Job] = []
    run = lambda planned, to_run, *_: listed.extend(planned[point] for point in to_run)  # noqa: E731
    monkeypatch.setattr(sweep, "run_points", run)
    return listed


@pytest.fixture
def checked(stubbed, monkeypatch):
    """Points are checked, in this process."""
    monkeypatch.setattr(sweep, "check", CHECK)
    monkeypatch.setattr(sweep, "ask", sweep.examine)
