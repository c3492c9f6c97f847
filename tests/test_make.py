"""The Makefile: what is installed stays, until another torch is asked for."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize(
    ("installed", "asked", "installs"),
    [
        (None, [], True),
        ("torch==2.13.0", [], False),
        ("keep", [], False),
        ("keep", ["TORCH=keep"], False),
        ("torch==2.13.0", ["TORCH=torch==2.13.0"], False),
        ("torch==2.13.0", ["TORCH=keep"], True),
        ("keep", ["TORCH=torch>=2.11"], True),
        ("", ["TORCH=keep"], False),  # a stamp of the time before it said what was installed
    ],
)
def test_setup_installs_once_and_again_for_another_torch(tmp_path, installed, asked, installs):
    for name in ("pyproject.toml", "constraints.txt", "Makefile"):
        shutil.copy(ROOT / name, tmp_path)
    if installed is not None:
        (tmp_path / ".venv").mkdir()
        (tmp_path / ".venv" / ".installed").write_text(installed)
    environment = {k: v for k, v in os.environ.items() if k not in ("TORCH", "MAKEFLAGS", "VENV")}
    command = ["make", "-n", "setup", *asked]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=True)
    assert ("pip install" in done.stdout) == installs
