"""A sweep whose points take no training: ``python sweep_stub.py sweep FOLDER PLAN SEED...``.

PLAN is a JSON file: by seed, what the point does. Each point adds a line to PLAN's neighbour ``events.jsonl``
when it begins and when it ends.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from qa_arch.records import Point, RunRecord, write_record
from qa_arch.system import lifeline, lock

FIXED = ["model=bert", "debug=fast"]
LASTS = "import sys, time; from qa_arch.system.lifeline import tie; tie(); time.sleep(99)"


def make_sweep(folder: Path, plan: Path, **settings):
    from qa_arch.sweep.runner import Grid, Sweep  # not in a point, which begins sooner without
    from qa_arch.sweep.schedule import read_settings

    sweep = Sweep(Grid(FIXED, ["seed"]), point_command(plan), json.dumps, preflight=lambda *_: None)
    sweep.settings = read_settings({"folder": str(folder), **settings})
    return sweep


def points(*seeds: int, overrides: tuple[str, ...] = ()) -> list[tuple[list[str], dict]]:
    from qa_arch.cli.compose import compose

    return [([*FIXED, f"seed={n}"], compose([*FIXED, f"seed={n}", *overrides])) for n in seeds]


def point_command(plan: Path) -> Callable[[Path], list[str]]:
    return lambda folder: [sys.executable, __file__, "point", str(folder), str(plan)]


def point(folder: Path, plan: Path) -> int:
    """What a run does to its folder, by the plan.

    ok, failed, oom; nothing: no record; signal: killed; waits, stubborn: to be stopped, with a child;
    leaves: ends well and its child does not; a number: seconds that it takes.
    """
    lifeline.tie()
    text = (folder / "config.yaml").read_text()
    if text.startswith("{"):
        config = json.loads(text)
    else:
        import yaml  # not at the top, so that most points begin sooner

        config = yaml.safe_load(text)
    seed = config["seed"]
    does = json.loads(plan.read_text()).get(str(seed), "ok")
    with lock.hold(folder, "run"):
        log_event(plan, "begin", folder)
        about = {
            "name": "n",
            "model": config["model"]["name"],
            "seed": seed,
            "config": config,
            "config_hash": "-",
        }
        record = RunRecord(status="running", **about)
        if does == "nothing":
            print("qa-arch: something\nqa-arch: no such thing", file=sys.stderr)
            return 6
        write_record(folder, record)
        if does == "stubborn":
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        if does in ("waits", "stubborn"):
            lifeline.start([sys.executable, "-c", LASTS])
            log_event(plan, "waits", folder)
            time.sleep(99)
        if does == "leaves":
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(99)"])
        if does == "signal":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(float(does) if does.replace(".", "").isdigit() else 0)
        log_event(plan, "end", folder)
        if does in ("failed", "oom"):
            write_record(folder, replace(record, status=does, error="ValueError: no"))
            return int(does == "failed")
        point = Point(protocol="2.0", metric_version="1", metrics={"f1": 50.0 + seed})
        scores = {"calibration": {"calibrated": point}}
        write_record(folder, replace(record, status="ok", scores=scores))
    return 0


def children(pid: int) -> list[int]:
    """The processes that ``pid`` has started and that live."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def log_event(plan: Path, what: str, folder: Path) -> None:
    line = {"what": what, "point": folder.name, "time": time.monotonic(), "pid": os.getpid()}
    if Path("/proc/self").exists():
        line["children"] = children(os.getpid())
    with (plan.parent / "events.jsonl").open("a") as file:
        file.write(json.dumps({**line, "env": dict(os.environ)}) + "\n")


def main() -> int:
    what, folder, plan = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    if what == "point":
        return point(folder, plan)
    # Tests that run in the background or under nohup inherit that these are ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    values = make_sweep(folder, plan, n_jobs=2).launch(points(*map(int, sys.argv[4:])))
    return int(any(isinstance(value, Exception) for value in values))


if __name__ == "__main__":
    sys.exit(main())
