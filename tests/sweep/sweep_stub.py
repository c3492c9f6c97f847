"""A sweep whose points train nothing: ``python sweep_stub.py sweep FOLDER PLAN SEED...``.

PLAN is a JSON file: seed -> what the point does. Each point appends a line to ``events.jsonl`` beside PLAN
when it begins and when it ends.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import yaml

from qa_arch.files import hold
from qa_arch.process import start, tie
from qa_arch.records import Point, RunRecord, write_record

FIXED = ["model=bert", "debug=fast"]
CHILD = "import sys, time; from qa_arch.process import tie; tie(); time.sleep(99)"


def make_sweep(folder: Path, **settings):
    from qa_arch import launchers, sweep  # not at the top, so that points start faster

    settings = launchers.sweep_settings({"folder": str(folder), **settings})
    options = {"trust": (), "config_dir": None}
    return sweep.Sweep(folder, sweep.grid_name(FIXED, ["seed"]), settings, options)


def points(*seeds: int, overrides: tuple[str, ...] = ()) -> list[tuple[list[str], dict]]:
    from qa_arch.config.compose import compose

    return [([f"seed={n}"], compose([*FIXED, f"seed={n}", *overrides])) for n in seeds]


def point_command(plan: Path) -> Callable[..., list[str]]:
    return lambda job: [sys.executable, __file__, "point", str(job.folder.absolute()), str(plan)]


def point(folder: Path, plan: Path) -> int:
    """Imitate a run in ``folder`` according to the plan.

    ok, failed, oom: end with this status; nothing: write no record; signal: die by SIGKILL; waits: hang with
    a child; stubborn: the same, ignoring SIGINT; leaves: succeed but leave a child; a number: take so many
    seconds.
    """
    tie()
    config = yaml.safe_load((folder / "config.yaml").read_text())
    seed = config["seed"]
    action = json.loads(plan.read_text()).get(str(seed), "ok")
    with hold(folder, "run"):
        log_event(plan, "begin", folder)
        about = {
            "name": "n",
            "model": config["model"]["name"],
            "seed": seed,
            "config": config,
            "settings_hash": "-",
            "run_hash": "-",
        }
        record = RunRecord(status="running", **about)
        if action == "nothing":
            print("qa-arch: something\nqa-arch: no such thing", file=sys.stderr)
            return 6
        write_record(folder, record)
        if action == "stubborn":
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        if action in ("waits", "stubborn"):
            start([sys.executable, "-c", CHILD])
            log_event(plan, "waits", folder)
            time.sleep(99)
        if action == "leaves":
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(99)"])
        if action == "signal":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(float(action) if action.replace(".", "").isdigit() else 0)
        log_event(plan, "end", folder)
        if action in ("failed", "oom"):
            write_record(folder, replace(record, status=action, error="ValueError: no"))
            return int(action == "failed")
        point = Point(protocol="2.0", metric_version="1", metrics={"f1": 50.0 + seed})
        scores = {"calibration": {"calibrated": point}}
        write_record(folder, replace(record, status="ok", scores=scores))
    return 0


def children(pid: int) -> list[int]:
    """Living child processes of ``pid``."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def log_event(plan: Path, event: str, folder: Path) -> None:
    line = {"event": event, "point": folder.name, "time": time.monotonic(), "pid": os.getpid()}
    if Path("/proc/self").exists():
        line["children"] = children(os.getpid())
    with (plan.parent / "events.jsonl").open("a") as file:
        file.write(json.dumps({**line, "env": dict(os.environ)}) + "\n")


def main() -> int:
    program, folder, plan = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    if program == "point":
        return point(folder, plan)
    from qa_arch import sweep

    sweep.point_command, sweep.check = point_command(plan), lambda *_, **options: None
    # Undo the ignored signals that a background job or nohup passes on.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    values = make_sweep(folder, n_jobs=2).launch(points(*map(int, sys.argv[4:])))
    return int(not all(isinstance(value, float) for value in values))


if __name__ == "__main__":
    sys.exit(main())
