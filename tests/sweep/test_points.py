"""Points and their list: names, keys, folders, and what is checked before one starts."""

import json
import logging
import re
from pathlib import Path

import pytest
import sweep_stub as stub
from kills import killed_at_sizes

from qa_arch import sweep
from qa_arch.config.compose import compose, multirun
from qa_arch.errors import ConfigError, DataError, RunError
from qa_arch.files import is_unfinished, write_atomic
from qa_arch.records import RECORD, Point, RunRecord
from qa_arch.sweep import MANIFEST, default_folder, grid_name
from qa_arch.training import jobs

SMALL = ["model=bert", "debug=fast"]
PRETRAINED = "encoder.init=pretrained encoder.layers=null encoder.width=null encoder.heads=null"
PRETRAINED += " encoder.vocabulary=null"


def make_point(*overrides: str, swept: tuple[str, ...] = ()):
    (point,) = sweep.plan([(swept, compose([*SMALL, *overrides]))])
    return point


@pytest.mark.parametrize(
    ("swept", "name"),
    [
        ((), "bert"),
        (("model=proposed", "trainer.batch_size=4", "seed=1"), "proposed-batch_size4-seed1"),
        (("optim.lr=1e-05", "+model.x=2"), "lr1e-05-x2"),
        (("trainer.precision=bf16",), "precisionbf16"),
        (tuple(f"trainer.batch_size={n}" for n in range(9)), "batch_size0-"),
    ],
)
def test_folders_are_named_by_swept_settings(swept, name):
    point = make_point(swept=swept)
    assert point.name.startswith(name)
    assert point.name.endswith(f"-{point.key[:8]}")
    assert len(point.name) <= 80 + 9
    assert re.fullmatch(r"[\w.+-]+", point.name)


def test_key_depends_on_settings_that_change_results():
    key = make_point().key
    assert make_point("trainer.workers=2", "name=other").key == key
    keys = {make_point(change).key for change in ("seed=1", "optim.lr=1", "data=squad1")}
    assert len(keys | {key}) == 4


def test_key_depends_on_data_contents(tmp_path):
    def key(file: Path) -> str:
        return make_point("data=files", f"data.train={file}", "data.dev=null").key

    for name, text in (("a.json", "1"), ("b.json", "1"), ("c.json", "2")):
        (tmp_path / name).write_text(text)
    first, moved, other = (key(tmp_path / name) for name in ("a.json", "b.json", "c.json"))
    assert first == moved != other
    (tmp_path / "b.json").write_text("3")
    assert key(tmp_path / "b.json") not in (first, other)
    with pytest.raises(DataError, match=r"the only point: .*nowhere"):
        key(tmp_path / "nowhere.json")


def test_errors_name_their_point():
    for bad in ("trainer.epochs=0", "glove=file"):
        with pytest.raises(ConfigError, match=r"^seed=2: (trainer\.epochs|glove\.path)"):
            sweep.plan([(("seed=1",), compose(SMALL)), (("seed=2",), compose([*SMALL, bad]))])
    with pytest.raises(ConfigError, match="grid is empty"):
        sweep.plan([])


GRID = ["debug=fast", "seed=1,2"]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (GRID, ["seed=1,2,3", "debug=fast"], True),
        (GRID, ["debug=fast", "seed=7,8", "runs_dir=x", "sweep.n_jobs=2", "trainer.workers=2"], True),
        (GRID, ["debug=fast", "seed=1,2", "logger=[wandb,csv]", "+logger.wandb.notes=x"], True),
        (GRID, ["debug=fast", "seed=1,2", "optim.lr=1"], False),
        (GRID, ["debug=fast", "seed=1,2", "optim.lr=1,2"], False),
        ([*GRID, "optim.lr=1,2"], ["optim.lr=1,2", *GRID], True),
    ],
)
def test_grids_of_the_same_sweep(one, other, same):
    def folder(overrides: list[str]) -> Path:
        with multirun(overrides) as given:
            return default_folder(Path(), grid_name(given.fixed, given.keys), given.keys)

    assert (folder(one) == folder(other)) == same
    assert "-seed-" in folder(other).name


@pytest.mark.usefixtures("jobs_to_run")
def test_sweep_extended_by_a_setting_keeps_its_points(stubbed):
    """The first point was named after its model because nothing was swept; it keeps its folder."""
    first = stub.make_sweep(stubbed.folder)
    [(_, config)] = stub.points(1)
    first.grid = grid_name([*stub.FIXED, "seed=1"], [])
    first.launch([((), config)])
    stubbed.launch(1, 2)
    points = sweep.read_manifest(stubbed.folder).points
    assert [point.name.partition("-")[0] for point in points] == ["bert", "seed2"]


@pytest.mark.usefixtures("jobs_to_run")
def test_folder_of_another_sweep_is_refused(stubbed):
    stubbed.launch(1)
    manifest_file = stubbed.folder / MANIFEST
    manifest = json.loads(manifest_file.read_text())
    manifest_file.write_text(json.dumps({**manifest, "grid": "model=proposed seed=..."}))
    with pytest.raises(
        RunError, match=r"contains another sweep \(model=proposed seed=\.\.\.\); add values to that one"
    ):
        stubbed.launch(2)
    stubbed.launch(1, 2)  # includes all its points, so the sweep is extended
    assert len(sweep.read_manifest(stubbed.folder).points) == 2


@pytest.mark.usefixtures("jobs_to_run")
def test_sweep_killed_before_its_manifest_was_written_starts_over(stubbed):
    (died,) = killed_at_sizes(lambda: write_atomic(stubbed.folder / MANIFEST, "x" * 99), [9])
    assert died
    assert len(list(stubbed.folder.iterdir())) == 1
    stubbed.launch(1)
    assert len(sweep.read_manifest(stubbed.folder).points) == 1
    assert not any(map(is_unfinished, stubbed.folder.iterdir()))


def test_results_of_other_code_are_logged(stubbed, monkeypatch, caplog):
    caplog.set_level(logging.WARNING)
    stubbed.launch(1)
    record = json.loads((stubbed.point(1) / RECORD).read_text()) | {"commit": "a" * 40}
    (stubbed.point(1) / RECORD).write_text(json.dumps(record))
    assert not caplog.records
    monkeypatch.setattr("qa_arch.provenance.commit", lambda: ("b" * 40, False))
    stubbed.launch(1, 2)
    assert "kept the results of 1 point run with other code (commit aaaaaaaa, now bbbbbbbb)" in caplog.text
    assert stubbed.started() == ["seed1", "seed2"]


@pytest.mark.parametrize(
    ("scores", "value"),
    [
        ({"threshold_0": {"f1": 40.0}, "calibrated": {"f1": 50.0}, "oracle": {"f1": 60.0}}, 50.0),
        ({"forced": {"f1": 70.0}}, 70.0),
        (None, None),
    ],
)
def test_tuning_score_of_a_run(scores, value):
    """SQuAD 2.0, SQuAD 1.1; no value without calibration scores."""
    about = {
        "status": "ok",
        "name": "n",
        "model": "m",
        "seed": 1,
        "config": {},
        "settings_hash": "-",
        "run_hash": "-",
    }
    splits = {"dev": {"calibrated": {"f1": 99.0}}} | ({"calibration": scores} if scores else {})
    points = {
        split: {
            name: Point(protocol="2.0", metric_version="1", metrics=metrics)
            for name, metrics in named.items()
        }
        for split, named in splits.items()
    }
    assert RunRecord(**about, scores=points).tuning_score == value


def problem_of(*points: str, pool=None, local=True) -> str:
    planned = [jobs.plan_composed(compose([*SMALL, *words.split()]), title="seed=1") for words in points]
    error, missing, _ = sweep.examine(planned, pool, local, None)
    assert (type(error), missing) == (ConfigError if error else type(None), None)
    return str(error or "")


@pytest.mark.parametrize(
    ("pool", "count", "problem"),
    [
        (None, 0, ""),
        (["0", "2"], 2, ""),
        (["0", "7", "1"], 1, "sweep.devices: torch sees no device 7;"),
        (["GPU-a"], 0, "sweep.devices: torch sees no device GPU-a;"),
    ],
)
def test_missing_devices_are_reported(monkeypatch, pool, count, problem):
    """torch counts the devices of the pool up to the first that is missing."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    assert problem_of(pool=pool)[: len(problem) or None] == problem


@pytest.mark.parametrize(
    ("overrides", "local", "problem"),
    [
        ("trainer=8gb trainer.accelerator=gpu", True, "trainer.accelerator: gpu"),
        ("trainer=8gb trainer.accelerator=gpu +model.dropuot=1", False, "unknown setting 'model.dropuot'"),
        ("trainer.strategy=fsdp", True, "trainer.strategy: fsdp shards a model across GPUs"),
        ("+references.mine._target_=qa_arch.nn.losses.SpanLoss", True, "references.mine: SpanLoss has no"),
        (f"{PRETRAINED} features.max_length=600", True, "features.max_length: 600 is more than the 512"),
    ],
)
def test_point_that_could_not_start_is_reported(monkeypatch, overrides, local, problem):
    """A login node has no GPU, but settings of the model are checked there too."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("qa_arch.hub.cached", lambda *_: True)
    assert problem_of("seed=1", overrides, local=local).startswith(f"seed=1: {problem}")
