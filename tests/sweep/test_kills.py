"""Killed sweeps and points: no process survives, and states are those of running processes."""

import os
import signal
from dataclasses import replace

import pytest
from kills import survivors

from qa_arch.errors import RunError
from qa_arch.files import hold
from qa_arch.process import LINUX, ended_by_signals
from qa_arch.records import read_record, write_record

pytestmark = pytest.mark.skipif(not LINUX, reason="reads /proc")
SLOW = [pytest.param(s, marks=pytest.mark.slow) for s in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)]


@pytest.mark.parametrize("number", [signal.SIGKILL, *SLOW])
def test_all_processes_end_with_the_sweep(stubbed, qa_arch, number):
    """One point is finished, two run, each with a child, and one is queued. Resuming finishes them all."""
    process = stubbed.set_actions(seed2="waits", seed3="stubborn").start(1, 2, 3, 4)
    lines = stubbed.wait_for(2, "waits")
    pids, children = [line["pid"] for line in lines], [child for line in lines for child in line["children"]]
    assert len(children) == 2
    os.kill(process.pid, number)
    assert process.wait(30) != 0
    assert not survivors([*pids, *children])
    assert stubbed.states() == ["ok", "killed", "killed", "queued"]
    before = stubbed.started()
    stubbed.set_actions()
    assert qa_arch("sweep", "resume", stubbed.folder)[0] == 0
    assert stubbed.states() == ["ok"] * 4
    assert sorted(stubbed.started()[len(before) :]) == ["seed2", "seed3", "seed4"]


def test_closed_terminal_is_ignored_under_nohup():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended_by_signals():
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
    assert stubbed.states() == ["killed", "ok"]
    assert "killed by SIGKILL (by the kernel" in stubbed.rows()[1].error


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
    with hold(stubbed.point(1), "run"):
        assert stubbed.states() == ["running"]
        stubbed.launch(1)
        assert "is still running (process" in caplog.text
        assert stubbed.started() == ["seed1"]
    write_record(stubbed.point(1), replace(read_record(stubbed.point(1)), status="running"))
    assert stubbed.states() == ["killed"]


@pytest.mark.slow
def test_only_one_process_runs_a_sweep(stubbed, qa_arch):
    process = stubbed.set_actions(seed1="waits").start(1, 2)
    stubbed.wait_for(1, "waits")
    with pytest.raises(RunError, match=f"this sweep is in use by process {process.pid} "):
        stubbed.launch(1, 2)
    assert "in use" in qa_arch("sweep", "resume", stubbed.folder)[2]
    os.kill(process.pid, signal.SIGTERM)
    process.wait(30)
    assert stubbed.started().count("seed1") == 1
