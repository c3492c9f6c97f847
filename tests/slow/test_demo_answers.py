"""README's first question, asked of the demo's proposed model as README asks it, gets its answer."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from qa_arch.cli.main import main

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_first_question_of_the_readme_is_answered(tmp_path, monkeypatch, capsys):
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^qa-arch (ask runs/demo/(?:.*\\\n)*.*)$", page, flags=re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    assert main(["train", "model=proposed", "experiment=demo"]) == 0
    capsys.readouterr()
    arguments = shlex.split(command.replace("\\\n", " "))
    (arguments[1],) = map(str, Path().glob(arguments[1]))
    assert main(arguments) == 0
    answer, sentence = capsys.readouterr().out.splitlines()[:2]
    assert answer == "Kemcreek"
    assert "the river" in sentence
