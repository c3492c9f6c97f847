"""Killed sweeps and points: no process survives, and statuses are those of running processes."""

import json
import os
import signal

import pytest
from kills import survivors

from qa_arch.errors import RunError
from qa_arch.sweep import runner, schedule
from qa_arch.sweep.state import Status, actual_status, read_manifest
from qa_arch.system import lifeline, lock

pytestmark = pytest.mark.skipif(not lifeline.LINUX, reason="reads /proc")


def resume(stubbed) -> None:
    with lock.hold(stubbed.folder, "sweep"):
        manifest = read_manifest(stubbed.folder)
        remaining = runner.unfinished(stubbed.folder, manifest.points)
        settings = schedule.read_settings(manifest.settings)
        runner.run_points(stubbed.folder, manifest, remaining, settings, stubbed.command)


def states(stubbed) -> list[str]:
    points = read_manifest(stubbed.folder).points
    return [actual_status(stubbed.folder / entry.name, parent=False).status for entry in points]


SLOW = [pytest.param(s, marks=pytest.mark.slow) for s in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)]


@pytest.mark.parametrize("number", [signal.SIGKILL, *SLOW])
def test_all_processes_end_with_the_sweep(stubbed, number):
    """One point is finished, two run, each with a child, and one is queued. Resuming finishes them all."""
    process = stubbed.set_actions(seed2="waits", seed3="stubborn").start(1, 2, 3, 4)
    lines = stubbed.wait_for(2, "waits")
    pids, children = [line["pid"] for line in lines], [child for line in lines for child in line["children"]]
    assert len(children) == 2
    os.kill(process.pid, number)
    assert process.wait(30) != 0
    assert not survivors([*pids, *children])
    assert states(stubbed) == ["ok", "killed", "killed", "queued"]
    before = stubbed.started()
    stubbed.set_actions()
    resume(stubbed)
    assert states(stubbed) == ["ok"] * 4
    assert sorted(stubbed.started()[len(before) :]) == ["seed2", "seed3", "seed4"]


def test_closed_terminal_is_ignored_under_nohup():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with schedule.ended_by_signals():
            os.kill(os.getpid(), signal.SIGHUP)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    except KeyboardInterrupt:
        pytest.fail("SIGHUP was treated as an interrupt")
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.slow
def test_children_end_with_a_killed_point(stubbed):
    process = stubbed.set_actions(seed1="waits").start(1, 2)
    (line,) = stubbed.wait_for(1, "waits")
    os.kill(line["pid"], signal.SIGKILL)
    assert process.wait(30) == 1
    assert len(line["children"]) == 1
    assert not survivors(line["children"])
    assert states(stubbed) == ["killed", "ok"]


@pytest.mark.slow
def test_leftover_processes_of_a_point_are_killed(stubbed):
    """Such as a child that is not tied to the point and so does not end with it."""
    assert stubbed.set_actions(seed1="leaves").launch(1) == [51.0]
    (line,) = stubbed.events("end")
    assert len(line["children"]) == 1
    assert not survivors(line["children"])


def test_point_still_running_is_left_alone(stubbed, caplog):
    """For example a rank that hangs in the driver and outlives its SIGKILL for a while."""
    stubbed.set_actions(seed1="signal").launch(1)
    with lock.hold(stubbed.point(1), "run"):
        assert states(stubbed) == ["running"]
        resume(stubbed)
        assert "is still running (process" in caplog.text
        assert stubbed.started() == ["seed1"]
    assert states(stubbed) == ["killed"]


def test_status_is_running_only_while_a_process_runs(stubbed):
    stubbed.set_actions(seed1="oom").launch(1)
    folder = stubbed.point(1)
    Status("running", 2).write(folder)
    assert actual_status(folder, parent=True).status == "running"  # the sweep is alive and starting it
    assert actual_status(folder, parent=False).status == "oom"  # from the record of the previous attempt
    (folder / "run.json").unlink()
    assert actual_status(folder, parent=False).status == "killed"


def test_point_that_succeeded_later_has_no_error(stubbed):
    """For example a failed point that was then trained by hand in its folder."""
    stubbed.launch(1)
    Status("failed", 1, error="ValueError: no").write(stubbed.point(1))
    status = actual_status(stubbed.point(1), parent=False)
    assert (status.status, status.error) == ("ok", None)


@pytest.mark.slow
def test_only_one_process_runs_a_sweep(stubbed):
    process = stubbed.set_actions(seed1="waits").start(1, 2)
    stubbed.wait_for(1, "waits")
    with pytest.raises(RunError, match=f"this sweep is in use by process {process.pid} "):
        stubbed.launch(1, 2)
    with pytest.raises(RunError, match="in use"):
        resume(stubbed)
    os.kill(process.pid, signal.SIGTERM)
    process.wait(30)
    assert stubbed.started().count("seed1") == 1


@pytest.mark.usefixtures("train_m")
def test_retry_starts_over(stubbed, qa_arch):
    stubbed.set_actions(seed1="failed", seed2="oom").launch(1, 2, 3)
    (stubbed.point(1) / "last.ckpt").write_text("old")
    assert qa_arch("sweep", "resume", stubbed.folder, "--json")[0] == 1
    assert stubbed.started() == ["seed1", "seed2", "seed3", "seed1"]
    assert (stubbed.point(1) / "last.ckpt").exists()
    stubbed.set_actions()
    code, out, _ = qa_arch("sweep", "retry", stubbed.folder, "--json")
    assert code == 0
    status = json.loads(out)
    assert status["counts"] == {"ok": 3}
    assert [point["attempts"] for point in status["points"]] == [3, 2, 1]
    assert not (stubbed.point(1) / "last.ckpt").exists()
