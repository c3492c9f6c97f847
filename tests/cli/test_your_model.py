"""docs/your_model.md: write its files, run its commands."""

from pathlib import Path

import pytest
from pages import BLOCK, commands

from qa_arch.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "your_model.md").read_text(encoding="utf-8")
pytestmark = pytest.mark.usefixtures("own_folder")


@pytest.mark.slow
def test_worked_example_runs(quick, capsys):
    calls = commands(PAGE)
    assert main(calls[0]) == 0
    sources = [block for block in BLOCK.findall(PAGE) if block.startswith("# mine/")]
    assert len(sources) == 4
    for block in sources:
        first, _, text = block.partition("\n")
        path = Path(first.removeprefix("# "))
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    (checked,) = (call for call in calls if call[0] == "check-model" and "loss=near" in call)
    assert main(checked) == 0, capsys.readouterr().out
    assert "8 of 8 checks passed" in capsys.readouterr().out
    own = [call for call in calls if call[0] == "train" and "--trust" in call]
    (trained,) = (call for call in own if "-m" not in call)
    assert main([*trained, *quick[1:], "loss=near"]) == 0
    (swept,) = (call for call in own if "-m" in call)
    single_seed = ["seed=1" if word == "seed=1,2,3" else word for word in swept]
    capsys.readouterr()
    assert main([*single_seed, "--dry-run", "sweep.folder=sweep"]) == 0
    assert capsys.readouterr().out.count(" run ") == 4
