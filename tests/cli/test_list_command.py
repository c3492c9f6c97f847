"""``qa-arch list``: groups, choices and settings, as in ``conf/`` and the schema."""

from __future__ import annotations

import json
from pathlib import Path

from pages import commands

from qa_arch.config.find import config_folders, groups
from qa_arch.config.schema import Trainer


def names(out: str) -> list[str]:
    return [line.split()[0] for line in out.splitlines() if line[0] != " "]


def test_all_groups_and_choices_are_listed_with_documentation(qa_arch):
    choices = groups(config_folders())
    listed = names(qa_arch("list")[1])
    assert listed == ["settings", *(group for group in choices if group != "special")]
    plural = {"loss": "losses", "data": "data"}
    for group in ("model", "experiment", "data", "encoder", "logger", "head", "loss"):
        entries = json.loads(qa_arch("list", plural.get(group, f"{group}s"), "--json")[1])
        public = [name for name in choices[group] if not name.startswith("_")]
        assert [entry["name"] for entry in entries] == [f"{group}={name}" for name in public]
        assert all(len(entry["about"]) > 15 for entry in entries), entries


def test_settings_have_type_range_default_and_documentation(qa_arch):
    known = {entry["name"]: entry for entry in json.loads(qa_arch("list", "settings", "--json")[1])}
    assert known["trainer.batch_size"] == {
        "name": "trainer.batch_size",
        "type": "an integer >= 1",
        "default": 16,
        "about": "Windows in one forward pass on one device (the micro-batch).",
    }
    assert known["encoder.freeze"]["type"] == "one of none|all or an integer >= 1"
    assert known["data.dev"]["type"] == "a string or a list (each a string) or null"
    assert known["trainer.select"]["default"] == Trainer.select
    assert set(known) >= {f"trainer.{key}" for key in Trainer.__dataclass_fields__}
    assert not [entry for entry in known.values() if "typing" in entry.get("type", "")]


def test_settings_are_searched_by_name_type_and_documentation(qa_arch):
    code, out, _ = qa_arch("list", "settings", "micro", "BATCH")
    assert code == 0
    assert names(out) == ["trainer.batch_size", "trainer.micro_batch"]
    assert "default 16" in out
    assert "    Windows in one forward pass" in out
    assert {"encoder.hidden_dropout", "model.hidden"} <= {*names(qa_arch("list", "settings", "hidden")[1])}
    assert "sweep.n_jobs  an integer >= 1 or null; default null" in qa_arch("list", "settings", "n_jobs")[1]


def test_commands_of_the_settings_page_work(qa_arch):
    page = Path(__file__).resolve().parents[2] / "docs/settings.md"
    calls = [call for call in commands(page.read_text(encoding="utf-8")) if "--trust" not in call]
    assert len(calls) >= 4
    for call in calls:
        code, out, err = qa_arch(*call)
        assert (code, bool(out)) == (0, True), (call, err)
