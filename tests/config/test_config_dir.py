"""``--config-dir``: user choices are composed, suggested and refused like those of ``conf/``."""

import json
import os
import shutil
import sys

import pytest

from qa_arch.cli.own_models import write_model
from qa_arch.config.compose import compose
from qa_arch.config.find import config_folders
from qa_arch.errors import ConfigError
from qa_arch.records import read_record
from qa_arch.sweep import read_manifest

EXPERIMENT = """\
# @package _global_
defaults:
  - override /model: mine
name: ours
seed: 5
"""


@pytest.fixture
def config_dir(tmp_path, monkeypatch):
    """A config folder with a model from ``new-model``, an experiment and unrelated YAML files."""
    folder = tmp_path / "with space"
    write_model("mine", folder)
    for name, text in {
        "experiment/ours.yaml": EXPERIMENT,
        "docker-compose.yaml": "unrelated: true\n",
        "notes/x.yaml": "unrelated: true\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    yield folder
    for name in [name for name in sys.modules if name.split(".")[0] == "mine"]:
        del sys.modules[name]


def test_user_choices_are_composed(config_dir):
    composed = compose(["model=mine", "model.hidden=4"], str(config_dir))
    assert (composed["model"]["_target_"], composed["model"]["hidden"]) == ("mine.model.Mine", 4)
    composed = compose(["experiment=ours"], str(config_dir))
    assert (composed["model"]["name"], composed["seed"]) == ("mine", 5)
    assert compose(["model=bert"], str(config_dir)) == compose(["model=bert"])


def test_suggestions_include_both_folders(config_dir):
    for override, suggestion in {"model=mien": "mine", "model=brt": "bert", "experiment=our": "ours"}.items():
        with pytest.raises(ConfigError, match=f"{override} does not exist .did you mean '{suggestion}'"):
            compose([override], str(config_dir))
    with pytest.raises(ConfigError, match=r"did you mean 'model\.hidden'"):
        compose(["model=mine", "model.hiden=3"], str(config_dir))


def test_useless_folder_is_refused(config_dir, tmp_path):
    with pytest.raises(ConfigError, match="no such folder"):
        config_folders(tmp_path / "none")
    (tmp_path / "empty" / "notes").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"no choice of any group, such as model/NAME\.yaml"):
        config_folders(tmp_path / "empty")
    shutil.copy(config_dir / "model" / "mine.yaml", config_dir / "model" / "bert.yaml")
    with pytest.raises(ConfigError, match=r"model/bert\.yaml has the name of one of qa_arch's own"):
        compose(["model=mine"], str(config_dir))
    (config_dir / "model" / "bert.yaml").write_text("[" * 600 + "]" * 600)
    (config_dir / "model" / "bert.yaml").rename(config_dir / "model" / "deep.yaml")
    with pytest.raises(ConfigError, match=r"^.*model/deep\.yaml: is not valid YAML: maximum recursion.*$"):
        compose(["model=mine"], str(config_dir))


def test_packages_in_the_folder_need_trust(config_dir, qa_arch):
    command = ("params", "model=mine", "debug=fast", "--config-dir", config_dir, "--json")
    code, _, err = qa_arch(*command)
    assert (code, "--trust mine" in err) == (ConfigError.exit_code, True)
    assert str(config_dir) not in sys.path
    code, out, err = qa_arch(*command, "--trust", "mine")
    assert code == 0, err
    assert json.loads(out)["total"] > 0


@pytest.mark.slow
def test_sweep_points_import_from_the_folder(config_dir, qa_arch, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = ("model=mine", "debug=fast", "features.cache_dir=null", "trainer.progress=false", "seed=1")
    options = ("--config-dir", config_dir, "--trust", "mine", "sweep.folder=sweep", "seed=1,2")
    code, out, err = qa_arch("train", "-m", *settings[:-1], "trainer.max_steps=1", *options)
    assert code == 0, (out, err)
    manifest = read_manifest(tmp_path / "sweep")
    assert manifest.config_dir == str(config_dir)
    assert {read_record(tmp_path / "sweep" / entry.name).model for entry in manifest.points} == {"mine"}
