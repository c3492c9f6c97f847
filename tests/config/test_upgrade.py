"""Configs of earlier versions: every committed record still describes a model that can be built."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from qa_arch.cli.compose import compose, merge
from qa_arch.config.identity import config_hash
from qa_arch.config.schema import validate
from qa_arch.config.upgrade import upgraded
from qa_arch.errors import ConfigError
from qa_arch.models.assemble import check_model
from qa_arch.nn.losses import build_loss

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
COMMITTED = {path: json.loads(path.read_text())["config"] for path in sorted(EXPERIMENTS.rglob("run.json"))}
TRAINED = {path: config for path, config in COMMITTED.items() if "_target_" in config.get("model", {})}
POINTER = "qa_arch.nn.pointer.PointerHead"


def old(tmp_path: Path, **model) -> Path:
    """A config of today, its model in the words of before."""
    config = compose(["model=proposed"])
    del config["model"]["head"]
    config["model"] |= {"pointer": "boundary", "hidden": 20, **model}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def test_every_committed_config_describes_a_model_and_a_loss():
    assert sum("pointer" in config["model"] for config in TRAINED.values()) > 50
    for path, config in TRAINED.items():
        known = validate(config)
        assert check_model(known.model), path
        assert build_loss(known), path


@pytest.mark.parametrize(
    ("model", "before"),
    [
        ("proposed", {"pointer": "boundary"}),
        ("ablation/glove", {"pointer": "linear"}),
        ("ablation/match", {"pointer": "linear"}),
        ("ablation/shortcut", {"pointer": "boundary", "shortcut": True}),
    ],
)
def test_an_old_config_is_the_same_as_that_of_today(model, before):
    today = compose([f"model={model}"])
    section = {key: value for key, value in today["model"].items() if key != "head"} | before
    config = {**today, "model": section}
    assert validate(config) == validate(today)
    assert config_hash(asdict(validate(config))) == config_hash(asdict(validate(today)))
    assert config["model"]["pointer"] == before["pointer"]  # what was given is left as it was


def test_an_old_config_takes_old_and_new_settings(tmp_path):
    path = old(tmp_path)

    def head(*overrides: str) -> dict:
        return validate(merge(path, list(overrides))).model["head"]

    boundary = {"_target_": POINTER, "hidden": 20, "bidirectional": False, "shortcut": False}
    assert head() == boundary
    assert head("model.hidden=30") == {**boundary, "hidden": 30}
    assert head("model.pointer=bi_boundary") == {**boundary, "bidirectional": True}
    assert head("model.head.hidden=7") == {**boundary, "hidden": 7}
    biaffine = {"_target_": "qa_arch.nn.biaffine.BiaffineHead", "hidden": 9}
    assert head(*(f"model.head.{key}={value}" for key, value in biaffine.items())) == biaffine


def test_a_pointer_that_never_was_and_a_shortcut_beside_a_linear_head_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=re.escape("unknown setting 'model.pointer'")):
        check_model(validate(merge(old(tmp_path), ["model.pointer=round"])).model)
    with pytest.raises(ConfigError, match=re.escape("unknown setting 'model.head.shortcut'")):
        check_model(validate(merge(old(tmp_path, pointer="linear", shortcut=True), [])).model)


def test_what_is_no_config_passes_for_the_reader_to_name():
    for config in (None, [1], {}, {"model": None}, {"model": {"_target_": "other", "pointer": "boundary"}}):
        assert upgraded(config) == config
