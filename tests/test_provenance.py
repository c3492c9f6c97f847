"""What identifies a run, the hashes of its settings and inputs; and the log of accesses to a dev set."""

from copy import deepcopy
from dataclasses import asdict, replace
from typing import Any

import pytest

from qa_arch.config.compose import compose
from qa_arch.config.schema import defaults, validate
from qa_arch.errors import RunError
from qa_arch.provenance import (
    DEV_ACCESS_LOG,
    NEUTRAL,
    DevAccess,
    dev_access_note,
    identify,
    log_dev_access,
    read_dev_accesses,
)

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


ACCESS = DevAccess(
    date="2026-01-02T03:04:05", commit="abcdef012", config_hash="9" * 64, run="r", data="d", fingerprint="f"
)


def test_dev_access_note_counts_other_experiments(tmp_path):
    """Every evaluation on a set wears it out, whichever experiment ran it."""
    other = replace(ACCESS, fingerprint="another set")
    for name, access in (("here", ACCESS), ("there", ACCESS), ("there", ACCESS), ("there", other)):
        log_dev_access(tmp_path / name, access)
    log_dev_access(tmp_path / "third", other)
    note = dev_access_note(tmp_path / "here", {ACCESS.fingerprint})
    assert note is not None
    assert note.startswith("dev was scored once: ")
    assert note.endswith("; the same set was scored 2 times for there")
    assert dev_access_note(tmp_path / "third", {ACCESS.fingerprint}) is None


def test_dev_accesses_are_appended(tmp_path):
    folder = tmp_path / "trial"
    assert read_dev_accesses(folder) == ()
    for _ in range(2):
        log_dev_access(folder, ACCESS)
    assert read_dev_accesses(folder) == (ACCESS, ACCESS)
    assert len((folder / DEV_ACCESS_LOG).read_text().splitlines()) == 2
    note = dev_access_note(folder, {ACCESS.fingerprint})
    assert note is not None
    assert "2 times" in note
    assert "r on 2026-01-02 (commit abcdef0, config 99999999)" in note
    log_dev_access(folder, separated := replace(ACCESS, data="a\u2028b"))
    assert read_dev_accesses(folder)[2:] == (separated,)


@pytest.mark.parametrize("line", [b'{"date": 1}', b'{"when": "now"}', b"[]", b"\xff", b"half a li"])
def test_line_that_is_no_dev_access_is_named(tmp_path, line):
    log_dev_access(tmp_path, ACCESS)
    with (tmp_path / DEV_ACCESS_LOG).open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(RunError, match=r"line 2 is not a dev access .*; restore the file"):
        read_dev_accesses(tmp_path)
