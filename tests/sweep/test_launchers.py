"""Where points run: once each, on devices of their own, here or as submitit jobs; none outlives its sweep."""

import importlib.util
import logging
import os
import signal
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from subprocess import CompletedProcess
from types import SimpleNamespace

import pytest
import sweep_stub as stub
from kills import survivors

from qa_arch import launchers, sweep
from qa_arch.config.schema import SweepSettings
from qa_arch.errors import ConfigError, RunError
from qa_arch.files import hold
from qa_arch.launchers import (
    PENDING,
    SCRUBBED,
    Cluster,
    Launch,
    Task,
    device_pool,
    point_environment,
    record_end,
    state_of,
    sweep_settings,
)
from qa_arch.process import LINUX, ended_by_signals
from qa_arch.records import read_record, write_record


def test_every_point_runs_once_in_its_own_folder(stubbed, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert stubbed.launch(1, 2) == [51.0, 52.0]
    assert stubbed.started() == ["seed1", "seed2"]
    assert stubbed.states() == ["ok", "ok"]
    assert len({line["pid"] for line in stubbed.events()} | {os.getpid()}) == 3
    for line in stubbed.events("begin"):
        assert "LOCAL_RANK" not in line["env"]
        assert line["env"]["WANDB_RUN_GROUP"] == "sweep"
    assert not list(stubbed.folder.rglob(".lock"))


def test_failed_points_do_not_stop_the_others(stubbed, caplog):
    """What became of them is in their records, also if they could not write it themselves."""
    caplog.set_level(logging.INFO)
    expected = {
        2: ("failed", "ValueError: no"),
        3: ("failed", "qa-arch: no such thing"),
        4: ("killed", "killed by SIGKILL (by the kernel if the machine ran out of memory)"),
        5: ("oom", "ValueError: no"),
    }
    stubbed.set_actions(seed2="failed", seed3="nothing", seed4="signal", seed5="oom")
    assert stubbed.launch(1, 2, 3, 4, 5, 6, n_jobs=2) == [51.0, None, None, PENDING, None, 56.0]
    for seed, (status, error) in expected.items():
        row, record = stubbed.rows()[seed], read_record(stubbed.point(seed))
        assert (row.status, row.error) == (record.status, record.error) == (status, error)
    auto = "trainer.micro_batch=auto (on several devices, a number)"
    assert stubbed.rows()[5].remedy == f"{auto} or trainer.gradient_checkpointing=true"
    lines = [message for message in caplog.messages if message.startswith("[")]
    assert lines[:2] == ["[0/6] started seed=1", "[0/6] started seed=2"]
    assert "failed seed=3: qa-arch: no such thing" in caplog.text
    assert lines[-1].startswith("[6/6] ")
    stubbed.set_actions(seed2="nothing")
    assert stubbed.launch(2) == [None]
    assert stubbed.rows()[2].error == "qa-arch: no such thing", "not that of the attempt before"


def test_record_counts_although_the_clock_went_back(stubbed, monkeypatch):
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 3600)  # the point's own clock is an hour behind
    stubbed.set_actions(seed1="oom").launch(1)
    row = stubbed.rows()[1]
    assert (row.status, row.error) == ("oom", "ValueError: no")


def test_fail_fast_stops_at_failures_but_not_at_oom(stubbed):
    stubbed.set_actions(seed1="oom", seed2="failed").launch(1, 2, 3, fail_fast=True)
    assert stubbed.states() == ["oom", "failed", "queued"]


def test_parallel_points_never_share_a_device(stubbed, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    seeds = range(1, 5)
    stubbed.set_actions(**{f"seed{n}": "0.2" for n in seeds})
    stubbed.launch(*seeds, overrides=("trainer.accelerator=auto",), devices=[0, 2])
    running: dict[str, str] = {}
    maximum = 0
    for line in sorted(stubbed.events(), key=lambda line: line["time"]):
        if line["event"] == "end":
            del running[line["point"]]
        else:
            device = line["env"]["CUDA_VISIBLE_DEVICES"]
            assert device in {"4", "6"} - set(running.values())
            assert line["env"]["OMP_NUM_THREADS"] == str(max(1, (os.cpu_count() or 1) // 2))
            running[line["point"]] = device
            maximum = max(maximum, len(running))
    assert maximum == 2


def test_point_gets_as_many_devices_as_it_trains_on(stubbed):
    overrides = ("trainer.accelerator=auto", "trainer.devices=2")
    stubbed.launch(1, overrides=overrides, devices=["GPU-a", "GPU-b"])
    assert stubbed.events("begin")[0]["env"]["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    with pytest.raises(ConfigError, match=r"seed=2: needs 2 devices, sweep\.devices lists 1"):
        stubbed.launch(2, overrides=overrides, devices=[0])
    assert stubbed.launch(1, overrides=overrides, devices=[0]) == [51.0], "it has ended"


def test_point_that_ends_while_it_is_looked_at_is_not_killed(ended, monkeypatch):
    folder = ended.point(2)
    record = read_record(folder)
    write_record(folder, replace(record, status="running"))
    monkeypatch.setattr(launchers, "holder", lambda folder: write_record(folder, record) and None)
    assert state_of(folder)[0] == "ok"


@pytest.mark.parametrize(
    ("visible", "devices", "pool"),
    [
        (None, None, None),
        ("3", None, None),
        (None, [0, 2], ["0", "2"]),
        ("4,5,6", [0, 2], ["4", "6"]),
        ("GPU-a, GPU-b", [1, "GPU-c"], ["GPU-b", "GPU-c"]),
    ],
)
def test_device_indices_count_visible_devices(visible, devices, pool):
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    [(overrides, raw)] = stub.points(1, overrides=("trainer.accelerator=auto",))
    planned = sweep.plan([(overrides, raw)]).values()
    assert device_pool(sweep_settings({"devices": devices}), planned, environment) == pool
    with pytest.raises(ConfigError, match=r"no device 9; CUDA_VISIBLE_DEVICES=0,1 leaves 2"):
        device_pool(sweep_settings({"devices": [9]}), planned, {"CUDA_VISIBLE_DEVICES": "0,1"})


def test_environment_of_a_point(monkeypatch):
    environment = dict.fromkeys((*SCRUBBED, "TORCHELASTIC_RUN_ID"), "x") | {
        "PATH": "/bin",
        "WANDB_MODE": "offline",
    }
    passed_on = {"PATH": "/bin", "WANDB_MODE": "offline", "WANDB_RUN_GROUP": "s"}
    assert point_environment(devices=None, side_by_side=1, group="s", environment=environment) == passed_on
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    shared = point_environment(devices=["1", "3"], side_by_side=3, group="s", environment=environment)
    assert shared == {**passed_on, "CUDA_VISIBLE_DEVICES": "1,3", "OMP_NUM_THREADS": "2"}
    own = point_environment(devices=[], side_by_side=16, group="s", environment={"OMP_NUM_THREADS": "5"})
    assert own == {"WANDB_RUN_GROUP": "s", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "5"}


# Jobs of a cluster --------------------------------------------------------------------------------------


@pytest.fixture
def submit_m(train_m):
    """``train_m`` with each point as a job of the local cluster."""
    pytest.importorskip("submitit")
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    return partial(train_m, "hydra/launcher=submitit_local")


@pytest.mark.slow
def test_each_point_is_a_job_that_writes_its_record(stubbed, submit_m, qa_arch):
    """Jobs share this machine, so they run one at a time unless ``sweep.n_jobs`` allows more."""
    stubbed.set_actions(seed2="failed")
    code, out, _ = submit_m("seed=1,2", "hydra.launcher.timeout_min=5")
    assert code == 1
    assert "2 points: 1 ok, 1 failed" in out
    assert [line["event"] for line in stubbed.events()] == ["begin", "end"] * 2
    jobs = {line["env"]["SUBMITIT_LOCAL_JOB_ID"] for line in stubbed.events("begin")}
    assert {path.name for path in (stubbed.folder / "submitit").iterdir()} >= jobs
    assert len(jobs) == 2
    stubbed.set_actions()
    assert qa_arch("sweep", "resume", stubbed.folder)[0] == 0  # on this machine, without a job
    assert submit_m("seed=1,2,3")[0] == 0
    assert stubbed.started()[2:] == ["seed2", "seed3"]


def test_late_job_does_nothing(ended):
    """Another process has run the point since, as with a queued job of an interrupted sweep."""
    pytest.importorskip("submitit")
    task = Task(Launch(ended.point(2), ()), str(ended.base))
    task()
    assert ended.states() == ["failed", "ok", "oom"]
    assert len(ended.started()) == 3
    assert task.checkpoint().function == task  # submitit queues this when a job times out


@pytest.mark.usefixtures("jobs_to_run")
@pytest.mark.parametrize("before", ["queued", "running", "failed"])
def test_job_no_longer_listed_by_slurm_is_over(stubbed, monkeypatch, before):
    """A failing squeue does not count. Points of cancelled jobs become killed."""
    answers = iter([(1, ""), (0, "7_0\n7_1\n"), (0, "7_1\n")])
    monkeypatch.setattr("subprocess.run", lambda command, **_: CompletedProcess(command, *next(answers)))
    monkeypatch.setattr("qa_arch.provenance.commit", lambda: (None, None))
    monkeypatch.setattr(launchers, "SQUEUE_INTERVAL", 0)
    monkeypatch.setattr(Cluster, "poll", 0)
    job = SimpleNamespace(job_id="7_0", paths=SimpleNamespace(result_pickle=stubbed.base / "none"))
    job.done = lambda: job.watcher.is_done(job.job_id)
    executor = SimpleNamespace(batch=nullcontext, submit=lambda _: job)
    monkeypatch.setattr(launchers, "_executor", lambda *_: executor)
    stubbed.launch(1)
    point = stubbed.point(1)
    if before != "queued":
        record_end(point, None, before, "" if before == "running" else "ValueError: no")
    events = list(launchers.run([Launch(point, ())], Cluster("slurm", {}, stubbed.folder, SweepSettings())))
    assert [has_ended for _, has_ended in events] == [False, True]
    assert next(answers, None) is None
    record = read_record(point)
    assert (record.status, "its job 7_0 was cancelled" in record.error) == ("killed", True)


def test_job_that_cannot_start_has_failed(stubbed, submit_m, monkeypatch):
    monkeypatch.setattr(sweep, "point_command", lambda _: [Unloadable()])
    code, out, _ = submit_m("seed=1")
    assert code == 1
    assert "its job did not start it" in out
    assert stubbed.started() == []


class Unloadable:
    """Pickles but does not unpickle, like objects of another package version."""

    def __reduce__(self):
        return int, ("no number",)


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (["sweep.devices=[0,1]"], 2, "sweep.devices: the cluster assigns devices"),
        (["hydra.launcher.timeout_minn=4"], 2, "timeout_minn"),
        (["hydra.launcher.nodes=2"], 2, "a point starts its own ranks on one machine"),
        (["seed=1,2"], 6, "pip install -e '.[slurm]'"),
    ],
)
def test_invalid_submission_is_refused(stubbed, submit_m, monkeypatch, arguments, exit_code, message):
    """The last case simulates a missing submitit."""
    find_spec = importlib.util.find_spec
    if exit_code == 6:
        missing = lambda name, *rest: None if name == "submitit" else find_spec(name, *rest)  # noqa: E731
        monkeypatch.setattr(importlib.util, "find_spec", missing)
    code, _, err = submit_m(*arguments, "model=bert,albert")
    assert (code, message in err) == (exit_code, True)
    assert not stubbed.folder.exists()


@pytest.mark.usefixtures("submit_m")
def test_slurm_is_needed_but_for_a_dry_run_and_devices_are_checked_in_its_jobs(
    stubbed, train_m, monkeypatch, qa_arch
):
    """The submitting machine may have no GPU."""
    checked = []
    monkeypatch.setattr(
        sweep, "check", lambda planned, pool, **options: checked.append((pool, options["local"]))
    )
    monkeypatch.setattr("shutil.which", lambda _: None)
    arguments = ("hydra/launcher=submitit_slurm", "trainer=8gb", "seed=1,2")
    assert train_m(*arguments, "--dry-run")[0] == 0
    assert checked == [(None, False)]
    code, _, err = train_m(*arguments)
    assert (code, "there is no srun on this machine" in err) == (2, True)
    assert not stubbed.folder.exists()


def test_slurm_parameters(monkeypatch, tmp_path):
    """Shared parameters keep their names, SLURM's own are prefixed, and n_jobs limits the array."""
    pytest.importorskip("submitit")
    received = {}

    class Executor:
        def __init__(self, folder, cluster, **options):
            received.update(folder=str(folder), cluster=cluster, **options)

        def update_parameters(self, **parameters):
            received.update(parameters)

    monkeypatch.setattr("submitit.AutoExecutor", Executor)
    parameters = {"timeout_min": 60, "partition": "gpu", "max_num_timeout": 3, "mem_gb": None, "nodes": 1}
    Cluster("slurm", parameters, tmp_path / "sweep", SweepSettings(n_jobs=4))
    assert received == {
        "folder": str(tmp_path / "sweep" / "submitit" / "%j"),
        "cluster": "slurm",
        "slurm_max_num_timeout": 3,
        "timeout_min": 60,
        "slurm_partition": "gpu",
        "nodes": 1,
        "slurm_array_parallelism": 4,
    }


linux = pytest.mark.skipif(not LINUX, reason="reads /proc")
SLOW = [pytest.param(s, marks=pytest.mark.slow) for s in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)]


@linux
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


@linux
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


@linux
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


@linux
@pytest.mark.slow
def test_leftover_processes_of_a_point_are_killed(stubbed):
    """Such as a child that is not tied to the point and so does not end with it."""
    assert stubbed.set_actions(seed1="leaves").launch(1) == [51.0]
    (line,) = stubbed.events("end")
    assert len(line["children"]) == 1
    assert not survivors(line["children"])


@linux
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


@linux
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
