"""The config hash, which identifies a run, and configs of earlier versions."""

import hashlib
import json
import re
from collections import defaultdict
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from qa_arch.config.compose import compose, merge
from qa_arch.config.identity import NEUTRAL, OPTIONAL, config_hash
from qa_arch.config.retired import BERT_MATCH, MOVED, RETIRED, SECTIONS, renamed, upgrade, with_retired
from qa_arch.config.schema import LOSSES, defaults, recipes, validate
from qa_arch.errors import ConfigError
from qa_arch.models.check import check_model
from qa_arch.training.jobs import check_components
from qa_arch.training.loggers import check_logger

PLAIN = asdict(validate(compose(["model=proposed", "experiment=demo"])))


def leaves(value: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(value, dict):
        return [path]
    return [leaf for key, inner in value.items() for leaf in leaves(inner, (*path, key))]


def changed(path: tuple[str, ...]) -> dict[str, Any]:
    copy = deepcopy(PLAIN)
    section = copy
    for key in path[:-1]:
        section = section[key]
    section[path[-1]] = ["something", "else", section[path[-1]]]
    return copy


def is_neutral(path: tuple[str, ...]) -> bool:
    return any(path[: len(key.split("."))] == tuple(key.split(".")) for key in NEUTRAL)


def test_every_setting_but_the_neutral_ones_changes_the_hash():
    """Listed here on purpose: whoever adds a neutral setting confirms that it changes no result."""
    plain = config_hash(PLAIN)
    assert [path for path in leaves(PLAIN) if config_hash(changed(path)) == plain] == [
        path for path in leaves(PLAIN) if is_neutral(path)
    ]
    trainer = ("workers", "progress", "checkpoint_minutes", "eval_batch_size", "log_every")
    others = ("runs_dir", "name", "logger", "features.cache_dir", "model.kernel")
    assert set(NEUTRAL) == {*others, *(f"trainer.{name}" for name in trainer)}
    known = {".".join(path) for path in leaves(PLAIN)}
    assert all(any(leaf == key or leaf.startswith(f"{key}.") for leaf in known) for key in NEUTRAL)


def test_added_settings_at_their_defaults_keep_the_hash():
    """Configs from before a setting existed keep their hash; ``OPTIONAL`` agrees with the defaults."""
    before = deepcopy(PLAIN)
    for path in (setting.split(".") for setting in sorted({*OPTIONAL} - {*RETIRED}, reverse=True)):
        section = before
        for key in path[:-1]:
            section = section[key]
        del section[path[-1]]
    assert before != PLAIN
    assert config_hash(before) == config_hash(PLAIN)
    assert PLAIN["pretraining"] is PLAIN["selection"] is None
    partial = deepcopy(PLAIN)
    partial["pretraining"] = {k: v for k, v in SECTIONS["pretraining"].items() if k != "whole_words"}
    assert config_hash(partial) == config_hash(PLAIN)
    partial["pretraining"]["masked"] = 0.5
    assert config_hash(partial) != config_hash(PLAIN)
    for setting, value in ((key, OPTIONAL[key]) for key in OPTIONAL if key not in SECTIONS):
        section = value if isinstance(value, dict) else {"": value}
        known = {**RETIRED, **defaults()}
        assert {key: known[f"{setting}.{key}".rstrip(".")] for key in section} == section


def test_values_left_out_of_the_hash():
    """Repeated here because changing a default along with ``OPTIONAL`` would change the hashes of records."""
    sections = {key: OPTIONAL[key] for key in ("calibration", "pretraining", "distillation")}
    assert sections == {
        "calibration": {"prior": None, "fit": "exact"},
        "pretraining": {
            "mask_share": 0.15,
            "masked": 0.8,
            "replaced": 0.1,
            "whole_words": False,
            "span_length": 3.0,
            "permute_sentences": True,
        },
        "distillation": {
            "teacher": None,
            "soft_targets": 0.0,
            "temperature": 1.0,
            "labels": 1.0,
            "layers": "none",
            "hidden_states": 0.0,
            "hidden_distance": "mse",
            "outcomes": "boundaries",
            "relations": 0.0,
            "relation_layer": None,
            "relation_heads": None,
            "relation_pairs": None,
        },
    }
    assert OPTIONAL["decode.null_odds"] == "best"
    others = {*OPTIONAL} - {*sections, *RETIRED}
    assert {OPTIONAL[key] for key in others} == {None, "exact", "en"}


def test_key_order_is_ignored_and_data_and_teacher_are_hashed_by_content():
    backwards = {key: PLAIN[key] for key in reversed(PLAIN)}
    assert config_hash(backwards) == config_hash(PLAIN)
    assert config_hash(PLAIN, {"train": "a"}) != config_hash(PLAIN, {"train": "b"}) != config_hash(PLAIN)
    first, second = changed(("distillation", "teacher")), changed(("distillation", "teacher"))
    second["distillation"]["teacher"] = "elsewhere"
    assert config_hash(first) != config_hash(second)
    known = {"teacher": "a"}
    assert config_hash(first, known) == config_hash(second, known) != config_hash(first, {"teacher": "b"})
    second["distillation"]["temperature"] = 3.0
    assert config_hash(first, known) != config_hash(second, known)


EXPERIMENTS = Path(__file__).parents[2] / "experiments"
COMMITTED = {path: json.loads(path.read_text())["config"] for path in sorted(EXPERIMENTS.rglob("run.json"))}
TRAINED = {
    path: config
    for path, config in COMMITTED.items()
    if "_target_" in config.get("model", {}) and config["model"].get("task", "span") in {*LOSSES, *recipes()}
}
POINTER = "qa_arch.nn.pointer.PointerHead"


def write_old_config(tmp_path: Path) -> Path:
    """Write a current config, its model section in the old format."""
    config = compose(["model=proposed"])
    del config["model"]["head"]
    config["model"] |= {"pointer": "boundary", "hidden": 20}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def test_every_committed_config_describes_a_model_and_a_loss():
    assert sum("pointer" in config["model"] for config in TRAINED.values()) > 50
    for config in TRAINED.values():
        check_components(validate(config))
    loggers = {json.dumps(upgrade(config)["logger"]) for config in COMMITTED.values() if "logger" in config}
    for logger in loggers:
        check_logger(json.loads(logger))


@pytest.mark.parametrize(
    ("model", "before"),
    [
        ("proposed", {"pointer": "boundary"}),
        ("ablation/glove", {"pointer": "linear"}),
        ("ablation/match", {"pointer": "linear"}),
        ("ablation/shortcut", {"pointer": "boundary", "shortcut": True}),
    ],
)
def test_old_config_equals_its_current_form(model, before):
    today = compose([f"model={model}"])
    section = {key: value for key, value in today["model"].items() if key != "head"} | before
    config = {**today, "model": section}
    assert validate(config) == validate(today)
    assert config_hash(asdict(validate(config))) == config_hash(asdict(validate(today)))
    assert config["model"]["pointer"] == before["pointer"]  # the argument is not modified


def test_old_config_accepts_old_and_new_settings_only(tmp_path):
    path = write_old_config(tmp_path)

    def model(*overrides: str) -> dict:
        return validate(merge(path, list(overrides))).model

    boundary = {"_target_": POINTER, "hidden": 20, "bidirectional": False, "shortcut": False}
    assert model()["head"] == boundary
    assert model("model.hidden=30")["head"] == {**boundary, "hidden": 30}
    assert model("model.pointer=bi_boundary")["head"] == {**boundary, "bidirectional": True}
    assert model("model.head.hidden=7")["head"] == {**boundary, "hidden": 7}
    own = {"_target_": "mine.Head", "hidden": 9}
    assert model(*(f"model.head.{key}={value}" for key, value in own.items()))["head"] == own
    with pytest.raises(ConfigError, match=re.escape("unknown setting 'model.pointer'")):
        check_model(model("model.pointer=round"))


def test_pointer_without_a_width_gets_the_old_default():
    head = upgrade({"model": {"_target_": BERT_MATCH, "pointer": "bi_boundary"}})["model"]["head"]
    assert head == {"_target_": POINTER, "bidirectional": True, "hidden": 150, "shortcut": False}


OLD_LOGGER = {"mode": "offline", "project": "mills", "tags": ["a"]}


@pytest.mark.parametrize("name", ["none", "wandb", "tensorboard"])
def test_logger_of_schema_1_becomes_the_current_one(name):
    today = compose([f"logger={name}"])
    upgraded = validate({**today, "logger": {"name": name, **OLD_LOGGER}})
    expected = {**today["logger"], **(OLD_LOGGER if name == "wandb" else {})}
    assert upgraded.logger == expected
    assert check_logger(upgraded.logger) == check_logger(expected)
    assert config_hash(asdict(upgraded)) == config_hash(asdict(validate(today)))


HASHES = {
    "ablations": "b4885ec91d867c9a",
    "answer": "e19472ce798adaf2",
    "batch_size": "1a562311db533644",
    "compression": "659b821fbca0b17c",
    "hypothesis": "984240ee72e5a527",
    "matching": "4fbe89398712cf6f",
    "pretraining": "50ee7a0e231d5f4b",
    "question_types": "bf9f04b038c51ce5",
    "real_part": "c345af430098d91e",
    "strategies": "0b1024986aa2cb7d",
    "synthetic": "d1f2aee904c6b510",
    "table_2_2": "8086dca1cac572f8",
    "table_2_3": "b403d0bd062c2d5e",
}
"""Digest of the config hashes of each experiment's records, from before any setting was retired; of table_2_3
with four later records."""


def test_hashes_of_committed_records_are_unchanged_with_and_without_retired_settings():
    digests = defaultdict(hashlib.sha256)
    for path, config in COMMITTED.items():
        hashed = config_hash(config)
        remaining = renamed(config, MOVED)
        for setting in RETIRED:
            section, _, key = setting.partition(".")
            if section in remaining:
                remaining[section] = {k: v for k, v in (remaining[section] or {}).items() if k != key}
        assert config_hash(remaining) == hashed, path
        digests[path.relative_to(EXPERIMENTS).parts[0]].update(hashed.encode())
    assert {name: digest.hexdigest()[:16] for name, digest in digests.items() if name in HASHES} == HASHES


def test_retired_setting_is_accepted_only_at_its_last_value():
    assert not [setting for setting in RETIRED if setting in defaults()]
    today = compose(["model=proposed"])
    before = with_retired(today)
    assert before["data"].items() >= {"made_up_share": 0.0, "made_up_kinds": None}.items()
    assert validate(before) == validate(today)
    before["data"]["made_up_share"] = 0.5
    with pytest.raises(ConfigError, match=re.escape("data.made_up_share: 0.5 is no longer supported")):
        validate(before)


def test_moved_class_is_found_and_hashed_by_its_first_name(monkeypatch):
    first, today = "qa_arch.old.Head", "qa_arch.nn.heads.LinearHead"
    monkeypatch.setattr("qa_arch.config.retired.MOVED", {first: today})
    model = {"_target_": BERT_MATCH, "head": {"_target_": first}}
    assert upgrade({"model": model})["model"]["head"] == {"_target_": today}
    assert config_hash(upgrade({"model": model})) == config_hash({"model": model})
    assert config_hash({"model": model}) != config_hash({"model": {**model, "head": None}})
