"""What ``train`` proposes at its end."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from terminals import ROOT

from qa_arch.cli.train import next_steps
from qa_arch.config.files import write_json
from qa_arch.records import read_record


@pytest.fixture
def runs(tmp_path) -> list[Path]:
    """A BERT and a proposed model, scored on the same questions."""
    records = sorted((ROOT / "experiments/real_part/records/v2").iterdir())
    return [Path(shutil.copytree(run, tmp_path / run.name.partition("-")[0])) for run in records]


def change(run: Path, **fields) -> None:
    record = json.loads((run / "run.json").read_text())
    write_json(run / "run.json", record | fields)


def proposals(runs: list[Path]) -> list[str]:
    return next_steps([(run, read_record(run)) for run in runs])


def test_a_run_is_looked_at_and_asked(runs):
    _, proposed = runs
    assert proposals([proposed]) == [f"qa-arch show {proposed}", f"qa-arch ask {proposed}"]


def test_several_are_compared_with_the_first(runs):
    assert proposals(runs) == [
        f"qa-arch show {runs[0]}",
        f"qa-arch ask {runs[0]}",
        f"qa-arch compare {runs[0].parent} --baseline bert",
    ]


def test_after_a_failure_or_a_few_steps_nothing_is_proposed(runs):
    bert, proposed = runs
    config = json.loads((proposed / "run.json").read_text())["config"]
    change(proposed, config={**config, "trainer": {**config["trainer"], "max_steps": 3}})
    assert proposals([proposed]) == []
    change(bert, status="oom")
    assert proposals([bert]) == []


def test_a_training_names_its_folder_first_and_what_to_do_last(qa_arch, settings, caplog):
    with caplog.at_level("INFO", "qa_arch"):
        code, out, err = qa_arch("train", "model=bert", *settings, "trainer.max_steps=-1")
    assert code == 0, err
    folder = caplog.messages[0].removeprefix("run: ")
    assert (Path(folder) / "run.json").is_file()
    steps = [line[8:] for line in out.splitlines() if "qa-arch " in line]
    assert steps == [f"qa-arch show {folder}", f"qa-arch ask {folder}"]
    assert f"next:   {steps[0]}" in out
