"""Single points: names, keys, required data and devices, and their environment."""

import re
from dataclasses import asdict
from pathlib import Path

import pytest

from qa_arch.cli.compose import compose, split_grid
from qa_arch.config.target import TRUSTED
from qa_arch.errors import ConfigError, DataError
from qa_arch.provenance import identify
from qa_arch.sweep import points as sweep_points
from qa_arch.sweep.points import make_points, sources
from qa_arch.sweep.runner import Grid
from qa_arch.sweep.schedule import SCRUBBED, device_pool, point_environment, read_settings

SMALL = ["model=bert", "debug=fast"]
PRETRAINED = "encoder.init=pretrained encoder.layers=null encoder.width=null encoder.heads=null"
PRETRAINED += " encoder.vocabulary=null"


def make_point(*overrides: str, swept: tuple[str, ...] = ()):
    (point,) = make_points([(swept, compose([*SMALL, *overrides]))])
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


def test_key_is_the_hash_of_config_and_data_sources():
    point = make_point()
    assert point.key == identify(asdict(point.config), sources(point.config)).run_hash
    assert make_point("trainer.workers=2", "name=other").key == point.key
    keys = {make_point(change).key for change in ("seed=1", "optim.lr=1", "data=synthetic_l3")}
    assert len(keys | {point.key}) == 4


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
            make_points([(("seed=1",), compose(SMALL)), (("seed=2",), compose([*SMALL, bad]))])
    with pytest.raises(ConfigError, match="grid is empty"):
        make_points([])


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (["seed=1,2,3", "debug=fast"], True),
        (["debug=fast", "seed=7,8", "runs_dir=x", "sweep.n_jobs=2", "trainer.workers=2"], True),
        (["debug=fast", "seed=1,2", "optim.lr=1"], False),
        (["debug=fast", "seed=1,2", "optim.lr=1,2"], False),
    ],
)
def test_grids_of_the_same_sweep(other, same):
    first, second = Grid(*split_grid(["debug=fast", "seed=1,2"])), Grid(*split_grid(other))
    assert (first.folder_in(Path()) == second.folder_in(Path())) == same
    assert first.folder_in(Path()).name.startswith("sweep-seed-")


def test_order_of_swept_settings_does_not_matter(tmp_path):
    first, second = (Grid(["debug=fast"], swept) for swept in (["model", "seed"], ["seed", "model"]))
    existing, new = first.folder_in(tmp_path), second.folder_in(tmp_path)
    existing.mkdir()
    Grid([], ["model", "seed"]).folder_in(tmp_path).mkdir()
    assert second.folder_in(tmp_path) == existing != new
    new.mkdir()  # if both exist, each order keeps its own
    assert second.folder_in(tmp_path) == new


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
    assert device_pool(read_settings({"devices": devices}), environment) == pool
    with pytest.raises(ConfigError, match=r"no device 9; CUDA_VISIBLE_DEVICES=0,1 leaves 2"):
        device_pool(read_settings({"devices": [9]}), {"CUDA_VISIBLE_DEVICES": "0,1"})


@pytest.mark.parametrize(
    ("pool", "count", "problem"),
    [
        (None, 0, None),
        (["0", "2"], 2, None),
        (["0", "7", "1"], 1, "sweep.devices: torch sees no device 7;"),
        (["GPU-a"], 0, "sweep.devices: torch sees no device GPU-a;"),
    ],
)
def test_missing_devices_are_reported(monkeypatch, pool, count, problem):
    """torch counts the devices of the pool up to the first that is missing."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    message = sweep_points._first_problem({"points": [], "pool": pool, "local": True}, ())
    assert (message and message[: len(problem or "")]) == problem


@pytest.mark.parametrize(
    ("local", "problem"), [(True, "seed=1: trainer.accelerator: gpu"), (False, "seed=1: unknown setting")]
)
def test_devices_of_other_machines_are_not_checked(monkeypatch, local, problem):
    """A login node has no GPU, but settings of the model are checked there too."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    config = asdict(make_point("trainer=8gb", "trainer.accelerator=gpu").config)
    wrong = {**config, "model": {**config["model"], "dropuot": 0.1}}
    points = [{"title": "seed=1", "config": content} for content in (config, wrong)]
    message = sweep_points._first_problem({"points": points, "pool": None, "local": local}, TRUSTED)
    assert str(message).startswith(problem)


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ("trainer.strategy=fsdp", "trainer.strategy: fsdp shards a model across GPUs"),
        ("+references.mine._target_=qa_arch.nn.losses.SpanLoss", "references.mine: SpanLoss has no method"),
        (f"{PRETRAINED} features.max_length=600", "features.max_length: 600 is more than the 512 tokens"),
    ],
)
def test_point_that_could_not_start_is_reported(monkeypatch, overrides, problem):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    points = [
        {"title": "seed=1", "config": asdict(make_point(*change.split()).config)}
        for change in ("seed=1", overrides)
    ]
    request = {"points": points, "pool": None, "local": True}
    assert str(sweep_points._first_problem(request, TRUSTED)).startswith(f"seed=1: {problem}")


def test_compressed_config_is_refused():
    with pytest.raises(ConfigError, match="compression: lists the steps of qa-arch compress"):
        make_point("+compression=[{method: magnitude, sparsity: 0.5}]")


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
