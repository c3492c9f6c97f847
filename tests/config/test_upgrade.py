"""Configs of older records: their ``logger`` is brought to the present schema, and nothing else changes."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from qa_arch.cli.compose import compose
from qa_arch.cli.main import main
from qa_arch.config.identity import config_hash
from qa_arch.config.schema import validate
from qa_arch.config.upgrade import upgrade
from qa_arch.errors import ConfigError
from qa_arch.results.record import read_record
from qa_arch.training.loggers import check_logger

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
        assert config_hash(found) == config_hash(config), path


def test_a_committed_record_is_repeated(capsys):
    call = ["train", "--config-from", str(RECORDS[0]), "logger.name=none", "--dry-run"]
    assert main(call) == 0
    assert "name: none" in capsys.readouterr().out
