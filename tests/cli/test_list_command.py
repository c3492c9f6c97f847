"""``qa-arch list`` and ``train --cfg/--info``: what there is, as the files and the schema have it."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import yaml
from pages import commands

from qa_arch.cli.compose import compose
from qa_arch.config.catalogue import about, settings
from qa_arch.config.find import conf_folder, config_folders, groups
from qa_arch.config.schema import Config, Trainer


def names(out: str) -> list[str]:
    return [line.split()[0] for line in out.splitlines() if line[0] != " "]


@pytest.mark.parametrize(
    ("what", "group"),
    [("models", "model"), ("experiments", "experiment"), ("data", "data"), ("encoders", "encoder")],
)
def test_every_choice_is_listed_with_its_documentation(qa_arch, what, group):
    code, out, _ = qa_arch("list", what)
    assert code == 0
    public = [name for name in groups(config_folders())[group] if not name.startswith("_")]
    assert names(out) == [f"{group}={name}" for name in public]
    code, out, _ = qa_arch("list", what, "--json")
    entries = json.loads(out)
    assert all(len(entry["about"]) > 15 for entry in entries), entries


def test_settings_have_type_range_default_and_documentation():
    known = {item.name: item for item in settings(Config)}
    composed = compose([])
    assert set(known) >= {f"trainer.{key}" for key in composed["trainer"]}
    epochs = known["trainer.batch_size"]
    assert (epochs.type, epochs.about) == (
        "an integer >= 1",
        "Windows in one forward pass of one device (the micro batch).",
    )
    assert known["seed"].type == "an integer >= 0 and <= 4294967295"
    assert known["encoder.freeze"].type == "one of none|all or an integer >= 1"
    assert known["data.dev"].type == "a text or a list, each a text or null"
    assert known["trainer.select"].default == Trainer.select
    assert all(item.type and "typing" not in item.type for item in known.values())


def test_settings_are_found_by_name_type_and_documentation(qa_arch):
    code, out, _ = qa_arch("list", "settings", "micro", "BATCH")
    assert code == 0
    assert names(out) == ["trainer.batch_size", "trainer.micro_batch"]
    assert "default 16" in out
    assert "    Windows in one forward pass" in out
    assert "encoder.hidden_dropout" in names(qa_arch("list", "settings", "hidden")[1])
    assert "sweep.n_jobs  an integer >= 1 or null; default null" in qa_arch("list", "settings", "n_jobs")[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["modles"], "nothing is called 'modles' (did you mean 'models'?)"),
        (["settings", "batchsize"], "none matches 'batchsize' (did you mean 'trainer.batch_size'?)"),
    ],
)
def test_what_there_is_not(qa_arch, words, message):
    code, out, err = qa_arch("list", *words)
    assert (code, out) == (2, "")
    assert message in err


def test_the_config_is_printed_as_hydra_prints_it(qa_arch):
    code, out, _ = qa_arch("train", "--cfg", "job", "model=proposed", "debug=fast")
    assert code == 0
    assert yaml.safe_load(out) == compose(["model=proposed", "debug=fast"])
    code, out, _ = qa_arch("train", "-c", "hydra")
    assert code == 0
    assert list(yaml.safe_load(out)) == ["hydra"]
    code, out, _ = qa_arch("train", "--cfg", "all")
    assert {"hydra", "model", "trainer"} <= set(yaml.safe_load(out))
    code, _, err = qa_arch("train", "--cfg", "job", "model=propsed")
    assert (code, "did you mean 'proposed'" in err) == (2, True)


@pytest.mark.parametrize("other", [["-m"], ["--models", "all"], ["--config-from", "x"], ["--dry-run"]])
def test_what_the_config_would_not_show_is_refused(qa_arch, other):
    code, out, err = qa_arch("train", "--cfg", "job", *other)
    assert (code, out) == (2, "")
    assert "does not go with it" in err


def test_info_says_where_the_config_comes_from(qa_arch, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text("name: mine\n")
    handlers = logging.getLogger().handlers[:]
    code, out, err = qa_arch("train", "--info", "searchpath", "--config-dir", tmp_path)
    assert code == 0
    assert str(conf_folder()) in out
    assert str(tmp_path) in out
    assert err == ""
    assert logging.getLogger().handlers == handlers
    assert "model/proposed" in qa_arch("train", "model=proposed", "-i", "defaults")[1]


def test_the_commands_of_the_page_do_what_they_say(qa_arch):
    page = Path(__file__).resolve().parents[2] / "docs/settings.md"
    calls = [call for call in commands(page.read_text(encoding="utf-8")) if "--trust" not in call]
    assert len(calls) >= 6
    for call in calls:
        code, out, err = qa_arch(*call)
        assert (code, bool(out)) == (0, True), (call, err)


def test_documentation_is_the_comment_or_the_docstring_of_the_class(tmp_path):
    top = tmp_path / "top.yaml"
    top.write_text("# @package _global_\n# First line,\n# second line.\ndefaults: []\n# not this\n")
    assert about(top) == "First line, second line."
    (tmp_path / "mine.py").write_text('raise SystemExit\nclass A:\n    """Of A.\n\n    More."""\n')
    bare = tmp_path / "bare.yaml"
    bare.write_text("_target_: mine.A\n")
    assert about(bare, [tmp_path]) == "Of A."
    assert about(bare) == ""
