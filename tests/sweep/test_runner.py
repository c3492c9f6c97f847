"""Points run exactly once, whether or not others fail; results are kept."""

import json
import logging
import os
import time

import pytest
import sweep_stub as stub
from kills import killed_at_sizes

from qa_arch.config.files import is_unfinished, write_atomic
from qa_arch.errors import ConfigError, RunError
from qa_arch.records import RECORD
from qa_arch.sweep import runner
from qa_arch.sweep.state import MANIFEST, Entry, Status, actual_status, read_manifest, read_status
from qa_arch.sweep.view import rows


def states(stubbed) -> dict[str, str]:
    entries = read_manifest(stubbed.folder).points
    return {row.point: row.status for row in rows(stubbed.folder, entries, parent=False)}


def test_every_point_runs_once_in_its_own_folder(stubbed, monkeypatch):
    names = ("LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT", "WANDB_RUN_ID", "SLURM_PROCID")
    leaked = dict.fromkeys(names, "1")
    inherited = {"WANDB_MODE": "offline", "WANDB_PROJECT": "p", "WANDB_API_KEY": "k"}
    for name, value in {**leaked, **inherited}.items():
        monkeypatch.setenv(name, value)
    assert stubbed.launch(1, 2, 3) == [51.0, 52.0, 53.0]
    assert stubbed.started() == ["seed1", "seed2", "seed3"]
    assert states(stubbed) == {"seed=1": "ok", "seed=2": "ok", "seed=3": "ok"}
    assert len({line["pid"] for line in stubbed.events()} | {os.getpid()}) == 4
    for line in stubbed.events("begin"):
        assert not set(leaked) & set(line["env"])
        assert inherited.items() <= line["env"].items()
        assert line["env"]["WANDB_RUN_GROUP"] == "sweep"
    assert not list(stubbed.folder.rglob(".lock"))


def test_time_of_a_point_killed_with_its_sweep_is_unknown(tmp_path):
    """Nobody recorded when it ended; the time of a running one is that so far."""
    Status("running", attempts=1, started="2020-01-01T00:00:00+00:00").write(tmp_path / "point")
    entry = Entry("point", "", [], 0)
    (killed,), (running,) = (rows(tmp_path, [entry], parent=parent) for parent in (False, True))
    assert (killed.status, killed.seconds) == ("killed", None)
    assert (running.status, running.seconds > 0) == ("running", True)


def test_record_counts_although_the_clock_went_back(stubbed, monkeypatch):
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 3600)  # the point's own clock is an hour behind
    stubbed.set_actions(seed1="oom").launch(1)
    status = read_status(stubbed.point(1))
    assert (status.status, status.error) == ("oom", "ValueError: no")


def test_failed_points_do_not_stop_the_others(stubbed):
    expected = {
        2: ("failed", "ValueError: no"),
        3: ("failed", "qa-arch: no such thing"),
        4: ("killed", "killed by SIGKILL"),
        5: ("oom", "ValueError: no"),
    }
    stubbed.set_actions(seed2="failed", seed3="nothing", seed4="signal", seed5="oom")
    values = stubbed.launch(1, 2, 3, 4, 5, 6, n_jobs=2)
    assert (values[0], values[5]) == (51.0, 56.0)
    actual = rows(stubbed.folder, read_manifest(stubbed.folder).points, parent=False)
    for seed, (status, error) in expected.items():
        value, row = values[seed - 1], actual[seed - 1]
        assert isinstance(value, runner.PointError)
        assert f"seed={seed}: {error}" in str(value)
        assert (row.status, error in (row.error or "")) == (status, True)
    auto = "trainer.micro_batch=auto (on several devices, a number)"
    assert actual[4].remedy == f"{auto} or trainer.gradient_checkpointing=true"
    assert "something" in (stubbed.point(3) / "traceback.txt").read_text()


@pytest.mark.parametrize(("fault", "third"), [("failed", "queued"), ("oom", "ok")])
def test_fail_fast_stops_at_failures_but_not_at_oom(stubbed, fault, third):
    stubbed.set_actions(seed2=fault).launch(1, 2, 3, fail_fast=True)
    assert states(stubbed) == {"seed=1": "ok", "seed=2": fault, "seed=3": third}


def test_sweep_extended_by_a_setting_keeps_its_points(stubbed):
    """The first point was named after its model because nothing was swept; it keeps its folder."""
    sweep = stub.make_sweep(stubbed.folder, stubbed.plan)
    sweep.grid = runner.Grid([*stub.FIXED, "seed=1"], [])
    assert sweep.launch(stub.points(1)) == [51.0]
    assert stubbed.launch(1, 2) == [51.0, 52.0]
    assert stubbed.started() == ["bert", "seed2"]
    assert states(stubbed) == {"seed=1": "ok", "seed=2": "ok"}


def test_parallel_points_never_share_a_device(stubbed, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    seeds = range(1, 7)
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


def test_folder_of_another_sweep_is_refused(stubbed):
    stubbed.launch(1)
    manifest_file = stubbed.folder / MANIFEST
    manifest = json.loads(manifest_file.read_text())
    manifest_file.write_text(json.dumps({**manifest, "fixed": ["model=proposed"]}))
    before = stubbed.started()
    with pytest.raises(RunError, match=r"contains another sweep \(model=proposed seed=\.\.\.\)"):
        stubbed.launch(2)
    assert stubbed.launch(1, 2) == [51.0, 52.0]  # includes all its points, so the sweep is extended
    assert stubbed.started() == [*before, "seed2"]


def test_sweep_killed_before_its_manifest_was_written_starts_over(stubbed):
    (died,) = killed_at_sizes(lambda: write_atomic(stubbed.folder / MANIFEST, "x" * 99), [9])
    assert died
    assert len(list(stubbed.folder.iterdir())) == 1
    assert stubbed.launch(1) == [51.0]
    assert not any(map(is_unfinished, stubbed.folder.iterdir()))


def test_results_of_other_code_are_logged(stubbed, monkeypatch, caplog):
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr("qa_arch.provenance.commit", lambda: ("a" * 40, False))
    stubbed.launch(1, 2)
    assert actual_status(stubbed.point(1), parent=False).commit == "a" * 40
    assert not caplog.records
    monkeypatch.setattr("qa_arch.provenance.commit", lambda: ("b" * 40, False))
    (stubbed.point(2) / RECORD).unlink()
    Status("killed", attempts=1, commit="a" * 40).write(stubbed.point(2))
    stubbed.launch(1, 2)
    assert "kept the results of 1 point(s) run with other code (commit aaaaaaaa, now bbbbbbbb)" in caplog.text
    assert stubbed.started() == ["seed1", "seed2", "seed2"]
