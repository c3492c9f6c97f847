"""What must answer at once, or without a model at hand, loads none of the heavy packages."""

from __future__ import annotations

import json
import subprocess
import sys

from qa_arch.cli.main import COMMANDS
from qa_arch.config.files import write_json
from qa_arch.data import synthetic
from qa_arch.data.squad import write

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


def test_what_needs_no_model_loads_none(trained, tmp_path):
    """Every module of the light packages, the help of every command, and commands that only read."""
    light = ("qa_arch.config", "qa_arch.metrics", "qa_arch.results", "qa_arch.data", "qa_arch.sweep")
    data = write_json(tmp_path / "data.json", write(synthetic.named("dev")))
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
    listing = "from qa_arch.cli.main import main; assert main(['list', 'settings']) == 0"
    assert loaded(f"{modules_of('qa_arch.cli')}\n    {listing}") == ["hydra"]  # cli.compose
