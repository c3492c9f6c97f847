"""Configs of earlier versions: every committed record still describes a model that can be built."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from qa_arch.cli.compose import compose, merge
from qa_arch.cli.main import main
from qa_arch.config.identity import config_hash
from qa_arch.config.schema import validate
from qa_arch.config.upgrade import BERT_MATCH, upgrade
from qa_arch.errors import ConfigError
from qa_arch.models.build import check_model
from qa_arch.nn.losses import build_loss
from qa_arch.results.record import read_record
from qa_arch.training.loggers import check_logger

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


def test_a_pointer_without_a_width_has_the_width_of_before():
    head = upgrade({"model": {"_target_": BERT_MATCH, "pointer": "bi_boundary"}})["model"]["head"]
    assert head == {"_target_": POINTER, "bidirectional": True, "hidden": 150, "shortcut": False}


def test_a_pointer_that_never_was_and_a_shortcut_beside_a_linear_head_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=re.escape("unknown setting 'model.pointer'")):
        check_model(validate(merge(old(tmp_path), ["model.pointer=round"])).model)
    with pytest.raises(ConfigError, match=re.escape("unknown setting 'model.head.shortcut'")):
        check_model(validate(merge(old(tmp_path, pointer="linear", shortcut=True), [])).model)


def test_what_is_no_config_passes_for_the_reader_to_name():
    for config in (None, [1], {}, {"model": None}, {"model": {"_target_": "other", "pointer": "boundary"}}):
        assert upgrade(config) == config


OLD = {"mode": "offline", "project": "mills", "tags": ["a"]}


@pytest.mark.parametrize("name", ["none", "wandb", "tensorboard"])
def test_a_logger_of_schema_1_is_todays_of_that_name(name):
    today = compose([f"logger={name}"])
    found = validate({**today, "logger": {"name": name, **OLD}})
    expected = {**today["logger"], **(OLD if name == "wandb" else {})}
    assert found.logger == expected
    assert check_logger(found.logger) == check_logger(expected)
    assert config_hash(asdict(found)) == config_hash(asdict(validate(today)))


def test_what_is_of_today_or_no_config_is_left_alone():
    today = compose(["logger=wandb"])
    assert upgrade(today) is today
    assert upgrade([1]) == [1]
    with pytest.raises(ConfigError, match="logger: missing _target_"):
        validate({**today, "logger": {"mode": "auto"}})


RECORDS = sorted((Path(__file__).resolve().parents[2] / "experiments").glob("**/run.json"))


def test_every_committed_record_has_a_logger_of_today_and_the_same_hash():
    assert RECORDS
    for path in RECORDS:
        config = read_record(path.parent).config
        found = upgrade(config)
        if "logger" in config:  # not in those of derived runs
            check_logger(found["logger"])
        assert config_hash({**config, "logger": found.get("logger")}) == config_hash(config), path


def test_a_committed_record_is_repeated(capsys):
    call = ["train", "--config-from", str(RECORDS[0]), "logger.name=none", "--dry-run"]
    assert main(call) == 0
    assert "name: none" in capsys.readouterr().out


@pytest.mark.parametrize(("model", "group"), [("qa_lstm/c", "candidates"), ("question_types", "classes")])
def test_models_that_rank_have_the_references_of_their_task(model, group):
    """They always stood beside these models, while the config named those of spans."""
    today = compose([f"model={model}"])
    old = {**today, "references": compose(["model=bert"])["references"]}
    assert validate(old) == validate(today)
    assert validate(today).references == compose(["model=bert", f"references={group}"])["references"]
    chosen = {"mine": {"_target_": "baselines.rankers.RandomOrder", "seed": 3}}
    for named in (chosen, old["references"] | chosen):
        assert upgrade({**today, "references": named})["references"] == named
