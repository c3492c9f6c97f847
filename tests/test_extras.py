"""Each extra can be deleted, and what is left works; a package of somebody else's adds one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest
from mutations import COPIED

from qa_arch.manifest import extras

ROOT = Path(__file__).resolve().parents[1]
OWN = {extra.name: extra for extra in extras() if (ROOT / "qa_arch/extras" / extra.name).is_dir()}
REST = ("benchmarks", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "CITATION.cff", "LICENSE", "Makefile")
IMPORTED = """
import importlib, pkgutil
import baselines, qa_arch
for package in (qa_arch, baselines):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
"""
COMPOSED = """
from qa_arch.cli.compose import compose
from qa_arch.config.find import config_folders, groups
from qa_arch.config.schema import validate
known = groups(config_folders())
for group in ("model", "experiment", "debug"):
    for choice in known[group]:
        validate(compose([f"{group}={choice}"]))
"""


def without(names: Collection[str], root: Path, parts: Collection[str]) -> Path:
    """A copy of ``parts`` of the checkout in ``root``, less the code, conf, tests and page of extras.

    Lines of other pages that link to these pages or call these commands go with them.
    """
    for part in parts:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / part, root / part)
    for name in names:
        shutil.rmtree(root / "qa_arch/extras" / name)
        shutil.rmtree(root / "tests/extras" / name, ignore_errors=True)
        (root / f"docs/extras/{name}.md").unlink(missing_ok=True)
    gone = "|".join(
        [f"extras/{name}\\.md" for name in names]
        + [f"qa-arch {command}\\b" for name in names for command in OWN[name].commands]
    )
    for page in root.rglob("*.md"):
        lines = page.read_text(encoding="utf-8").splitlines(keepends=True)
        page.write_text("".join(line for line in lines if not re.search(gone, line)), encoding="utf-8")
    return root


def call(root: Path, *arguments: str) -> str:
    """What Python prints with the packages in ``root``; what it does must succeed."""
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=root, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def require_no_command(root: Path, names: Collection[str]) -> None:
    named = re.findall(r"^    ([a-z-]+)", call(root, "-m", "qa_arch.cli.main", "--help"), flags=re.MULTILINE)
    assert "train" in named
    assert not set(named) & {command for name in names for command in OWN[name].commands}


def test_the_core_stands_alone(tmp_path):
    root = without(OWN, tmp_path, ("qa_arch", "baselines", "hydra_plugins", "conf"))
    require_no_command(root, OWN)
    call(root, "-c", COMPOSED)


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
@pytest.mark.timeout(3600)
def test_the_suite_passes_without(name, tmp_path):
    root = without([name], tmp_path, (*COPIED, *REST))
    require_no_command(root, [name])
    call(root, "-c", IMPORTED)
    call(root, "-m", "pytest", "-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider")
