"""Points as submitit jobs on a local cluster; they train nothing."""

import importlib.util
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess
from types import SimpleNamespace

import pytest

from qa_arch.cli.main import main
from qa_arch.config.schema import SweepSettings
from qa_arch.sweep import schedule, submitted
from qa_arch.sweep.state import Entry, Status, actual_status, read_manifest, read_status

pytest.importorskip("submitit")
pytest.importorskip("hydra_plugins.hydra_submitit_launcher")


@pytest.fixture
def train_m(train_m):
    """``train_m(*arguments)`` with each point as a job of the local cluster."""
    return partial(train_m, "hydra/launcher=submitit_local")


@pytest.mark.slow
def test_each_point_is_a_job_that_writes_its_status(stubbed, train_m):
    """Jobs share this machine, so they run one at a time unless ``sweep.n_jobs`` allows more."""
    stubbed.set_actions(seed2="failed")
    code, out, _ = train_m("seed=1,2", "hydra.launcher.timeout_min=5")
    assert code == 1
    assert "2 points: 1 ok, 1 failed" in out
    assert [line["event"] for line in stubbed.events()] == ["begin", "end"] * 2
    jobs = {line["env"]["SUBMITIT_LOCAL_JOB_ID"] for line in stubbed.events("begin")}
    assert {path.name for path in (stubbed.folder / "submitit").iterdir()} >= jobs
    assert len(jobs) == 2
    stubbed.set_actions()
    assert main(["sweep", "resume", str(stubbed.folder)]) == 0  # on this machine, without a job
    code, out, _ = train_m("seed=1,2,3")
    assert code == 0
    assert stubbed.started()[2:] == ["seed2", "seed3"]


def test_late_job_does_nothing(stubbed):
    """Another process has run the point since, as with a queued job of an interrupted sweep."""
    stubbed.launch(1)
    (entry,) = read_manifest(stubbed.folder).points
    before = actual_status(stubbed.point(1), parent=False)
    job = submitted.Job(entry, plan(stubbed.folder))
    job()
    assert actual_status(stubbed.point(1), parent=False) == before
    assert len(stubbed.started()) == 1
    assert job.checkpoint().function == job  # submitit queues this when a job times out


def plan(folder: Path) -> schedule.Plan:
    """A plan whose command runs no point."""
    return schedule.Plan(folder, lambda _: [], folder, jobs=2, pool=None, fail_fast=False, commit=None)


@pytest.mark.parametrize("before", ["queued", "running", "failed"])
def test_job_no_longer_listed_by_slurm_is_over(tmp_path, monkeypatch, before):
    """A failing squeue does not count. Points of cancelled jobs become killed unless they have ended."""
    answers = iter([(1, ""), (0, "7_0\n7_1\n"), (0, "7_1\n")])
    monkeypatch.setattr("subprocess.run", lambda command, **_: CompletedProcess(command, *next(answers)))
    monkeypatch.setattr(submitted, "SQUEUE_INTERVAL", 0)
    monkeypatch.setattr(submitted, "POLL", 0)
    job = SimpleNamespace(job_id="7_0", paths=SimpleNamespace(result_pickle=tmp_path / "none"))
    job.done = lambda: job.watcher.is_done(job.job_id)
    executor = SimpleNamespace(batch=nullcontext, submit=lambda _: job)
    monkeypatch.setattr(submitted, "_executor", lambda *_: executor)
    Status(before).write(tmp_path / "point")
    submitted.run([Entry("point", "", [], 0)], plan(tmp_path), lambda _: None, cluster="slurm", parameters={})
    assert next(answers, None) is None
    status = read_status(tmp_path / "point")
    assert status.status == ("failed" if before == "failed" else "killed")
    assert ("its job 7_0 was cancelled" in (status.error or "")) == (before != "failed")


def test_job_that_cannot_start_has_failed(stubbed, train_m, monkeypatch):
    monkeypatch.setattr("qa_arch.cli.sweep.point_command", lambda *_: Unloadable())
    code, out, _ = train_m("seed=1")
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
        (["seed=1,2"], 6, "pip install 'qa-arch[slurm]'"),
    ],
)
def test_invalid_submission_is_refused(stubbed, train_m, monkeypatch, arguments, exit_code, message):
    """The last case simulates a missing submitit."""
    find_spec = importlib.util.find_spec
    if exit_code == 6:
        missing = lambda name, *rest: None if name == "submitit" else find_spec(name, *rest)  # noqa: E731
        monkeypatch.setattr(importlib.util, "find_spec", missing)
    code, _, err = train_m(*arguments, "model=bert,albert")
    assert (code, message in err) == (exit_code, True)
    assert not stubbed.folder.exists()


def test_devices_are_not_checked_where_jobs_are_submitted(monkeypatch, tmp_path):
    """Jobs use the devices of their nodes; the submitting machine may have none."""
    checked = []
    monkeypatch.setattr("qa_arch.sweep.points.preflight", lambda *arguments: checked.append(arguments[2:]))
    settings = [f"runs_dir={tmp_path}", "hydra/launcher=submitit_slurm"]
    assert main(["train", "-m", "debug=fast", *settings, "trainer=8gb", "seed=1,2", "--dry-run"]) == 0
    assert checked == [(None, False)]


def test_missing_cluster_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("qa_arch.sweep.points.preflight", lambda *_: None)
    monkeypatch.setattr("shutil.which", lambda _: None)
    settings = [f"sweep.folder={tmp_path / 'sweep'}", "hydra/launcher=submitit_slurm"]
    assert main(["train", "-m", "debug=fast", *settings, "seed=1,2"]) == 2
    assert "there is no srun on this machine" in capsys.readouterr().err
    assert not (tmp_path / "sweep").exists()


def test_slurm_parameters(monkeypatch, tmp_path):
    """Shared parameters keep their names, SLURM's own are prefixed, and n_jobs limits the array."""
    received = {}

    class Executor:
        def __init__(self, folder, cluster, **options):
            received.update(folder=str(folder), cluster=cluster, **options)

        def update_parameters(self, **parameters):
            received.update(parameters)

    monkeypatch.setattr("submitit.AutoExecutor", Executor)
    parameters = {"timeout_min": 60, "partition": "gpu", "max_num_timeout": 3, "mem_gb": None, "nodes": 1}
    run = submitted.engine("slurm", parameters, SweepSettings(n_jobs=4), dry=True)
    run([], plan(tmp_path / "sweep"), lambda _: None)
    assert received == {
        "folder": str(tmp_path / "sweep" / "submitit" / "%j"),
        "cluster": "slurm",
        "slurm_max_num_timeout": 3,
        "timeout_min": 60,
        "slurm_partition": "gpu",
        "nodes": 1,
        "slurm_array_parallelism": 4,
    }
