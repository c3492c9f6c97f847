"""``--config-dir``: choices of the user's own, composed, suggested and refused like those of ``conf/``."""

from __future__ import annotations

import json
import os
import sys

import pytest

from qa_arch.cli.compose import compose
from qa_arch.cli.main import main
from qa_arch.config.find import config_folders
from qa_arch.errors import ConfigError
from qa_arch.records import read_record
from qa_arch.sweep.state import read_manifest

MODEL = """\
# A head of its own.
defaults:
  - override /encoder@_global_.encoder: bert
task: span
name: mine
_target_: my_models.heads.Mine
width: 3
"""
EXPERIMENT = """\
# @package _global_
defaults:
  - override /model: mine
name: ours
seed: 5
"""
CODE = """\
from torch import nn

from qa_arch.nn.encoder import Encoder
from qa_arch.nn.masking import fill
from qa_arch.types.tensors import Batch, SpanLogits


class Mine(nn.Module):
    def __init__(self, encoder: Encoder, *, width: int = 2) -> None:
        super().__init__()
        self.encoder = encoder
        self.span = nn.Sequential(nn.Linear(encoder.out_dim, width), nn.Linear(width, 2))

    def forward(self, batch: Batch) -> SpanLogits:
        start, end = self.span(self.encoder(batch.ids, batch.mask, batch.segments)).unbind(-1)
        return SpanLogits(fill(start, batch.context), fill(end, batch.context), start[:, 0], end[:, 0])
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder with a model, an experiment and the package of the model's class."""
    folder = tmp_path / "with space"
    for name, text in {
        "model/mine.yaml": MODEL,
        "experiment/ours.yaml": EXPERIMENT,
        "my_models/__init__.py": "",
        "my_models/heads.py": CODE,
        "docker-compose.yaml": "of: no concern\n",
        "notes/x.yaml": "of: no concern\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    yield folder
    for name in [name for name in sys.modules if name.split(".")[0] == "my_models"]:
        del sys.modules[name]


def call(capsys, *arguments):
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    return code, *capsys.readouterr()


def test_own_choices_are_composed(own):
    composed = compose(["model=mine", "model.width=4"], str(own))
    assert (composed["model"]["_target_"], composed["model"]["width"]) == ("my_models.heads.Mine", 4)
    composed = compose(["experiment=ours"], str(own))
    assert (composed["model"]["name"], composed["seed"]) == ("mine", 5)
    assert compose(["model=bert"], str(own)) == compose(["model=bert"])


def test_suggestions_come_from_both(own):
    for override, near in {"model=mien": "mine", "model=brt": "bert", "experiment=our": "ours"}.items():
        with pytest.raises(ConfigError, match=f"{override} does not exist .did you mean '{near}'"):
            compose([override], str(own))
    with pytest.raises(ConfigError, match=r"did you mean 'model\.width'"):
        compose(["model=mine", "model.widht=3"], str(own))


def test_a_folder_that_would_be_ignored_is_refused(own, tmp_path):
    with pytest.raises(ConfigError, match="there is no such folder"):
        config_folders(tmp_path / "none")
    (tmp_path / "empty" / "notes").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"no choice of any group, such as model/NAME\.yaml"):
        config_folders(tmp_path / "empty")
    (own / "model" / "bert.yaml").write_text(MODEL)
    with pytest.raises(ConfigError, match=r"model/bert\.yaml has the name of one of qa_arch's own"):
        compose(["model=mine"], str(own))


def test_packages_of_the_folder_need_trust(own, capsys):
    count = ("params", "model=mine", "debug=fast", "--config-dir", own, "--json")
    code, _, err = call(capsys, *count)
    assert (code, "--trust my_models" in err) == (ConfigError.exit_code, True)
    assert str(own) not in sys.path
    code, out, err = call(capsys, *count, "--trust", "my_models")
    assert code == 0, err
    assert json.loads(out)["total"] > 0


@pytest.mark.slow
def test_the_points_of_a_sweep_import_from_it(own, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    quick = ("model=mine", "debug=fast", "features.cache_dir=null", "trainer.progress=false", "seed=1")
    given = ("--config-dir", own, "--trust", "my_models", "sweep.folder=sweep", "seed=1,2")
    code, out, err = call(capsys, "train", "-m", *quick[:-1], "trainer.max_steps=1", *given)
    assert code == 0, (out, err)
    manifest = read_manifest(tmp_path / "sweep")
    assert manifest.config_dir == str(own)
    assert {read_record(tmp_path / "sweep" / entry.name).model for entry in manifest.points} == {"mine"}
