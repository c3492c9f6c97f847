"""The config hash, which identifies a run."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import asdict
from typing import Any

from qa_arch.cli.compose import compose
from qa_arch.config.identity import NEUTRAL, OPTIONAL, config_hash
from qa_arch.config.retired import RETIRED
from qa_arch.config.schema import defaults, validate

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
    for path in (setting.split(".") for setting in {*OPTIONAL} - {*RETIRED}):
        section = before
        for key in path[:-1]:
            section = section[key]
        del section[path[-1]]
    assert before != PLAIN
    assert config_hash(before) == config_hash(PLAIN)
    for setting, value in OPTIONAL.items():
        section = value if isinstance(value, dict) else {"": value}
        known = {**RETIRED, **defaults()}
        assert {key: known[f"{setting}.{key}".rstrip(".")] for key in section} == section


def test_values_left_out_of_the_hash():
    """Repeated here because changing a default along with ``OPTIONAL`` would change the hashes of records."""
    sections = {key: OPTIONAL[key] for key in ("calibration", "pretraining", "distillation")}
    assert sections == {
        "calibration": {"prior": None},
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
    assert {OPTIONAL[key] for key in others} == {None}


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
