"""Commands in a fresh interpreter, offline: what they say, and which heavy packages they import."""

import json
import subprocess
import sys

HEAVY = (
    *("torch", "transformers", "pytorch_lightning", "datasets", "huggingface_hub", "wandb"),
    *("evaluate", "baselines"),
)
PROGRAM = """
import contextlib, importlib, io, json, pkgutil, sys
from qa_arch.cli.main import main
calls, missing, heavy, packages = map(json.loads, sys.argv[1:])
for module in missing:
    sys.modules[module] = None
for name in packages:
    for module in pkgutil.iter_modules(getattr(importlib.import_module(name), "__path__", ()), f"{name}."):
        if module.name != "qa_arch.config.compose":  # which imports Hydra
            importlib.import_module(module.name)
messages = []
for arguments in calls:
    with contextlib.redirect_stderr(io.StringIO()) as err, contextlib.redirect_stdout(io.StringIO()):
        try:
            code = main(arguments)
        except SystemExit as help:
            code = help.code
    messages.append([code, err.getvalue().strip(), [name for name in heavy if sys.modules.get(name)]])
print(json.dumps(messages))
"""


def run_calls(*calls, missing=(), heavy=HEAVY, packages=()):
    """(exit code, message, heavy packages imported by then) of each call.

    All run in one interpreter, after importing every module of ``packages``.
    """
    texts = map(json.dumps, ([list(map(str, call)) for call in calls], missing, heavy, packages))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *texts], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
