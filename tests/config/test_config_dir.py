"""``--config-dir``: choices of the user's own, composed, suggested and refused like those of ``conf/``."""

from __future__ import annotations

import json
import os
import shutil
import sys

import pytest

from qa_arch.cli.compose import compose
from qa_arch.cli.own_models import write_model
from qa_arch.config.find import config_folders
from qa_arch.errors import ConfigError
from qa_arch.records import read_record
from qa_arch.sweep.state import read_manifest

EXPERIMENT = """\
# @package _global_
defaults:
  - override /model: mine
name: ours
seed: 5
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder with a model that ``new-model`` wrote there, an experiment and YAML of others."""
    folder = tmp_path / "with space"
    write_model("mine", folder)
    for name, text in {
        "experiment/ours.yaml": EXPERIMENT,
        "docker-compose.yaml": "of: no concern\n",
        "notes/x.yaml": "of: no concern\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    yield folder
    for name in [name for name in sys.modules if name.split(".")[0] == "mine"]:
        del sys.modules[name]


def test_user_choices_are_composed(own):
    composed = compose(["model=mine", "model.hidden=4"], str(own))
    assert (composed["model"]["_target_"], composed["model"]["hidden"]) == ("mine.model.Mine", 4)
    composed = compose(["experiment=ours"], str(own))
    assert (composed["model"]["name"], composed["seed"]) == ("mine", 5)
    assert compose(["model=bert"], str(own)) == compose(["model=bert"])


def test_suggestions_include_both_folders(own):
    for override, near in {"model=mien": "mine", "model=brt": "bert", "experiment=our": "ours"}.items():
        with pytest.raises(ConfigError, match=f"{override} does not exist .did you mean '{near}'"):
            compose([override], str(own))
    with pytest.raises(ConfigError, match=r"did you mean 'model\.hidden'"):
        compose(["model=mine", "model.hiden=3"], str(own))


def test_useless_folder_is_refused(own, tmp_path):
    with pytest.raises(ConfigError, match="no such folder"):
        config_folders(tmp_path / "none")
    (tmp_path / "empty" / "notes").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"no choice of any group, such as model/NAME\.yaml"):
        config_folders(tmp_path / "empty")
    shutil.copy(own / "model" / "mine.yaml", own / "model" / "bert.yaml")
    with pytest.raises(ConfigError, match=r"model/bert\.yaml has the name of one of qa_arch's own"):
        compose(["model=mine"], str(own))


def test_packages_in_the_folder_need_trust(own, qa_arch):
    count = ("params", "model=mine", "debug=fast", "--config-dir", own, "--json")
    code, _, err = qa_arch(*count)
    assert (code, "--trust mine" in err) == (ConfigError.exit_code, True)
    assert str(own) not in sys.path
    code, out, err = qa_arch(*count, "--trust", "mine")
    assert code == 0, err
    assert json.loads(out)["total"] > 0


@pytest.mark.slow
def test_sweep_points_import_from_the_folder(own, qa_arch, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    quick = ("model=mine", "debug=fast", "features.cache_dir=null", "trainer.progress=false", "seed=1")
    given = ("--config-dir", own, "--trust", "mine", "sweep.folder=sweep", "seed=1,2")
    code, out, err = qa_arch("train", "-m", *quick[:-1], "trainer.max_steps=1", *given)
    assert code == 0, (out, err)
    manifest = read_manifest(tmp_path / "sweep")
    assert manifest.config_dir == str(own)
    assert {read_record(tmp_path / "sweep" / entry.name).model for entry in manifest.points} == {"mine"}
