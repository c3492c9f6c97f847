"""The commands of docs/extras/inspection.md, one after another."""

from __future__ import annotations

import shutil
from pathlib import Path

from pages import commands
from reports import page_parts

from qa_arch.cli.main import main
from qa_arch.data.sources import open_passages
from qa_arch.results.attention import ATTENTION

PAGE = Path(__file__).resolve().parents[3] / "docs/extras/inspection.md"


def test_its_commands_do_what_they_say(proposed, tmp_path, monkeypatch, capsys):
    folder, config, _ = proposed
    monkeypatch.chdir(tmp_path)
    shutil.copytree(
        folder, "runs/RUN", ignore=shutil.ignore_patterns(ATTENTION)
    )  # others may have inspected it
    first, second = (example.id for example in open_passages(config.data.dev).examples[:2])
    words = {"RUN": "runs/RUN", "dev-v2.0.json": config.data.dev, "ID1": first, "ID2": second}
    for call_ in commands(PAGE.read_text(encoding="utf-8")):
        capsys.readouterr()
        assert main([words.get(word, word) for word in call_]) == 0, (call_, capsys.readouterr().err)
    assert {"attention.html", "report.html"} <= {path.name for path in tmp_path.iterdir()}
    value, _ = page_parts(tmp_path / "report.html")
    assert [(item["id"], item["encoder"]) for item in value["attention"]["0"]] == [
        (second, True),
        (first, True),
        (second, False),
        (first, False),
    ]
