"""What must answer at once, or without a model at hand, loads none of the heavy packages."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from qa_arch.cli.main import COMMANDS

HEAVY = ("torch", "transformers", "pytorch_lightning", "evaluate", "wandb", "baselines")


def loaded(statement: str) -> list[str]:
    """Which heavy packages a fresh interpreter holds after ``statement``."""
    program = f"""
import sys
try:
    {statement}
except SystemExit:
    pass
print([name for name in {(*HEAVY, "hydra")!r} if name in sys.modules], file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stderr.splitlines()[-1].replace("'", '"'))


def modules_of(*packages: str) -> str:
    return (
        "import importlib, pkgutil\n"
        f"    for name in {packages!r}:\n"
        "        package = importlib.import_module(name)\n"
        "        for module in pkgutil.iter_modules(package.__path__, name + '.'):\n"
        "            importlib.import_module(module.name)"
    )


@pytest.fixture
def data(tmp_path):
    qas = [{"id": "q", "question": "What?", "answers": [{"text": "mill", "answer_start": 4}]}]
    article = {"title": "Mill", "paragraphs": [{"context": "The mill burnt.", "qas": qas}]}
    (tmp_path / "data.json").write_text(json.dumps({"version": "1.1", "data": [article]}))
    return tmp_path / "data.json"


def test_what_needs_no_model_loads_none(trained, data):
    """Every module of the light packages, the help of every command, and commands that only read."""
    light = ("qa_arch.config", "qa_arch.metrics", "qa_arch.results", "qa_arch.data", "qa_arch.sweep")
    calls = [["stats", "--data", str(data)], ["tables", str(trained)]]
    statement = (
        f"{modules_of(*light)}\n"
        "    from qa_arch.cli.main import main\n"
        f"    for command in {(None, *COMMANDS)!r}:\n"
        "        try:\n"
        "            main([command, '--help'] if command else ['--help'])\n"
        "        except SystemExit:\n"
        "            pass\n"
        f"    assert [main(call) for call in {calls!r}] == [0] * {len(calls)}"
    )
    assert loaded(statement) == []


def test_every_module_of_the_command_line():
    statement = (
        f"{modules_of('qa_arch.cli')}\n"
        "    from qa_arch.cli.main import main\n"
        "    for what in ('models', 'experiments', 'data', 'encoders', 'settings'):\n"
        "        assert main(['list', what]) == 0"
    )
    assert loaded(statement) == ["hydra"]  # cli.compose


def test_nothing_leans_on_what_transformers_removed():
    """Version 5.3 has neither the question-answering pipeline nor the SQuAD processors and metrics."""
    root = Path(__file__).resolve().parents[2]
    sources = [path for package in ("qa_arch", "baselines") for path in (root / package).rglob("*.py")]
    removed = re.compile(r"transformers\.(pipelines|data)\b|transformers import .*\b(pipeline|squad)")
    assert len(sources) > 150
    assert not [path.name for path in sources if removed.search(path.read_text(encoding="utf-8"))]
