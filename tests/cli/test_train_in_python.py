"""``qa_arch.train`` does what the command does, in the process that calls it."""

from __future__ import annotations

import json

import pytest

import qa_arch
from qa_arch.errors import ConfigError, RunError
from qa_arch.records import RECORD


def test_it_trains_what_the_command_trains(trained, settings):
    run = qa_arch.train(["model=bert", *settings])
    assert run.folder.name == trained.name
    mine, other = (json.loads((folder / RECORD).read_text()) for folder in (run.folder, trained))
    assert mine["config_hash"] == other["config_hash"]
    assert mine["scores"] == other["scores"]
    assert run.record.status == "ok"
    assert len(run.questions) == run.record.facts("dev").questions
    assert qa_arch.load(run)("Who wrote it?", "The song was written by Ada Stone.") is not None
    with pytest.raises(RunError, match="already exists"):
        qa_arch.train(["model=bert", *settings])
    before = (run.folder / RECORD).stat().st_mtime_ns
    assert qa_arch.train(["model=bert", *settings], if_exists="resume").record == run.record
    assert (run.folder / RECORD).stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("overrides", "options", "message"),
    [
        ("model=bert", {}, r'a list of settings is needed, such as \["model=bert"\]'),
        (["model=brt"], {}, r"model=brt does not exist \(did you mean 'bert'"),
        (["model=bert", "optim.lr=-1"], {}, "optim.lr"),
        (["model=bert"], {"if_exists": "overwrite"}, "'overwrite' is none of fail, replace, resume"),
    ],
)
def test_wrong_settings_are_refused_before_a_folder_is_made(tmp_path, overrides, options, message):
    with pytest.raises(ConfigError, match=message):
        qa_arch.train(overrides, folder=tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()
