"""What identifies a run: the hashes of its settings and inputs."""

from copy import deepcopy
from dataclasses import asdict
from typing import Any

from qa_arch.config.compose import compose
from qa_arch.config.schema import defaults, validate
from qa_arch.provenance import NEUTRAL, identify

PLAIN = asdict(validate(compose(["model=proposed", "experiment=demo", "callbacks=timer"])))


def leaves(value: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(value, dict):
        return [path]
    return [leaf for key, inner in value.items() for leaf in leaves(inner, (*path, key))]


def changed(*path: str, value: Any = None) -> dict[str, Any]:
    """``PLAIN`` with another value, by default a made-up one, at ``path``."""
    copy = deepcopy(PLAIN)
    section = copy
    for key in path[:-1]:
        section = section[key]
    section[path[-1]] = ["something", "else", section[path[-1]]] if value is None else value
    return copy


def settings_hash(config: dict[str, Any]) -> str:
    return identify(config).settings_hash


def test_every_setting_but_the_neutral_ones_changes_the_hash():
    """Listed here on purpose: whoever adds a neutral setting confirms that it changes no result."""
    neutral = [path for path in leaves(PLAIN) if settings_hash(changed(*path)) == settings_hash(PLAIN)]
    trainer = ("workers", "progress", "checkpoint_minutes", "eval_batch_size", "log_every")
    trainer += ("profiler", "detect_anomaly", "inference_mode")
    others = ("runs_dir", "name", "logger", "features.cache_dir", "model.kernel")
    assert set(NEUTRAL) == {*others, *(f"trainer.{name}" for name in trainer)}
    dotted = [".".join(path) for path in leaves(PLAIN)]
    assert [".".join(path) for path in neutral] == [
        leaf for leaf in dotted if any(leaf == key or leaf.startswith(f"{key}.") for key in NEUTRAL)
    ]
    assert all(any(leaf == key or leaf.startswith(f"{key}.") for leaf in dotted) for key in NEUTRAL)


def test_settings_at_their_default_keep_the_hash():
    """So a setting that is added with a default changes no hash, and one that is removed at it neither."""
    without = deepcopy(PLAIN)
    at_default = {key for key, value in defaults().items() if key.count(".") and value is not None}
    for section, _, key in (path.partition(".") for path in at_default):
        if without[section][key] == defaults()[f"{section}.{key}"]:
            del without[section][key]
    del without["init_from"], without["loss"]
    assert len(leaves(without)) < len(leaves(PLAIN)) - 10
    assert settings_hash(without) == settings_hash(PLAIN)
    assert settings_hash({**PLAIN, "added": 1}) != settings_hash(PLAIN)


def test_places_and_key_order():
    """Where a file lies counts for the settings, its content for the run; data folders have no name."""
    backwards = {key: PLAIN[key] for key in reversed(PLAIN)}
    assert identify(backwards) == identify(PLAIN)
    elsewhere = changed("distillation", "teacher", value="elsewhere")
    assert settings_hash(elsewhere) != settings_hash(changed("distillation", "teacher", value="here"))
    known = {"teacher": "a"}
    assert identify(elsewhere, known).run_hash == identify(PLAIN, known).run_hash
    assert identify(PLAIN, {"teacher": "b"}).run_hash != identify(PLAIN, known).run_hash
    assert identify(PLAIN, known).settings_hash == settings_hash(PLAIN) == identify(PLAIN).run_hash
    encoder = changed("encoder", "name", value="runs/mlm")
    assert identify(encoder, known).run_hash != identify(PLAIN, known).run_hash
    assert identify(encoder, {"encoder": "a"}).run_hash == identify(PLAIN, {"encoder": "a"}).run_hash


def test_hash_is_the_same_with_the_data_folder_elsewhere(tmp_path, monkeypatch):
    hashes = set()
    for name in ("here", "there"):
        monkeypatch.setenv("QA_ARCH_DATA", str(tmp_path / name))
        hashes.add(settings_hash(changed("data", "train", value=[f"squad:{tmp_path}/{name}/train.json"])))
    assert len(hashes) == 1
