"""Each extra can be deleted and the rest works; a third-party package can add one."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Collection
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from mutations import COPIED

from qa_arch import manifest
from qa_arch.cli import doctor, main
from qa_arch.cli.own_models import explain
from qa_arch.config import schema
from qa_arch.data import sources
from qa_arch.manifest import Command, Extra, extras, from_extras

ROOT = Path(__file__).resolve().parents[1]
OWN = {extra.name: extra for extra in extras() if (ROOT / "qa_arch/extras" / extra.name).is_dir()}
REST = (
    *("benchmarks", "CHANGELOG.md", "CONTRIBUTING.md", "CITATION.cff", "LICENSE", "Makefile"),
    *(".github", ".ci"),
)
IMPORTED = """
import importlib, pkgutil
import baselines, qa_arch
for package in (qa_arch, baselines):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
"""
COMPOSED = """
from qa_arch.config.compose import compose
from qa_arch.config.find import config_folders, groups
from qa_arch.config.schema import validate
known = groups(config_folders())
for group in ("model", "experiment", "debug"):
    for choice in known[group]:
        validate(compose([f"{group}={choice}"]))
"""


def without(names: Collection[str], root: Path, parts: Collection[str]) -> Path:
    """Copy ``parts`` of the checkout to ``root`` without the code, conf, tests and page of extras ``names``.

    Links to these pages and lines that call these commands are removed from other pages.
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
    pages = rf"\[([^]]*)\]\([^)]*extras/({'|'.join(names)})\.md[^)]*\)"
    commands = [command for name in names for command in OWN[name].commands]
    for page in root.rglob("*.md"):
        text = re.sub(pages, r"\1", page.read_text(encoding="utf-8"))
        for command in commands:
            text = re.sub(rf"^.*qa-arch {command}\b.*\n", "", text, flags=re.MULTILINE)
        page.write_text(text, encoding="utf-8")
    return root


def call(root: Path, *arguments: str, path: str = "") -> str:
    """Output of Python in ``root`` with the packages there or in ``path``; it must succeed."""
    environment = {**os.environ, "PYTHONPATH": path or str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=root, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture
def sample(tmp_path) -> str:
    """PYTHONPATH with which the package in ``sample_extra/`` counts as installed."""
    source = ROOT / "tests/sample_extra"
    project = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    installed = tmp_path / "installed" / f"sample_extra-{project['version']}.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    (points,) = project["entry-points"].items()
    lines = [f"[{points[0]}]", *(f"{name} = {value}" for name, value in points[1].items())]
    (installed / "entry_points.txt").write_text("\n".join(lines))
    return os.pathsep.join(map(str, (installed.parent, source, ROOT)))


def test_package_adds_a_command_a_recipe_settings_and_a_column_by_its_entry_point(sample, tmp_path):
    program = """
from qa_arch.config.compose import compose
from qa_arch.cli.main import main
from qa_arch.config.schema import validate
from qa_arch.results.columns import COLUMNS

assert main(["greet", "Ada"]) == 0
config = validate(compose(["model=answer_length"]))
assert (config.model["task"], config.lengths.unit) == ("answer_length", "characters")
assert validate(compose(["model=bert"])).lengths is None
assert "name_length" in COLUMNS
"""
    assert "greet somebody" in call(tmp_path, "-m", "qa_arch.cli.main", "--help", path=sample)
    assert call(tmp_path, "-c", program, path=sample) == "Good day, Ada.\n"


def test_broken_package_is_named_and_left_out(monkeypatch, caplog):
    point = EntryPoint("mine", "nothing_here.manifest:EXTRA", manifest.GROUP)
    monkeypatch.setattr(manifest, "entry_points", lambda group: [point])
    monkeypatch.setattr(manifest, "BROKEN", doctor.BROKEN[:])
    monkeypatch.setattr(doctor, "BROKEN", manifest.BROKEN)
    assert {extra.name for extra in manifest.extras.__wrapped__()} == set(OWN)
    (line,) = caplog.messages
    assert "nothing_here.manifest:EXTRA of group qa_arch.extras: cannot be loaded (ModuleNotFound" in line
    (check,) = (check for check in doctor.packages() if check.name == "extras")
    assert (check.needed, check.ok) == (True, False)
    assert check.found in line
    with pytest.raises(ModuleNotFoundError) as raised:
        import_module("nothing_here.columns")
    assert explain(raised.value, manifest.packages()) == "nothing_here: No module named 'nothing_here'"


def test_name_that_is_taken_is_reported_and_left_out(monkeypatch, caplog):
    taken = {
        "commands": {"train": Command("mine", "")},
        "formats": {"mrqa": "mine"},
        "recipes": {"span": None},
    }
    more = Extra("more", families={"bart": "more"})
    others = (Extra("mine", **taken), more, more)
    monkeypatch.setattr(manifest, "extras", lambda: others)
    monkeypatch.setattr(manifest, "BROKEN", [])
    monkeypatch.setattr(doctor, "BROKEN", manifest.BROKEN)
    for _ in range(2):
        assert from_extras("commands", main.OWN) == {}
        assert sources.schemes.__wrapped__()["mrqa"] == "qa_arch.data.squad:MRQA"
        assert schema.recipes.__wrapped__() == {}
        assert from_extras("families") == more.families
    expected = [f"extra mine: '{name}' of its {kind} already exists" for kind, (name,) in taken.items()]
    expected.append("extra more: 'bart' of its families already exists")
    assert [line.split("; it is left out")[0] for line in caplog.messages] == [
        f"qa-arch: {problem}" for problem in expected
    ]
    assert [check.found for check in doctor.packages() if check.name == "extras"] == expected


@pytest.mark.slow
def test_model_of_a_package_is_trained_and_tabulated(sample, tmp_path):
    def qa_arch(*arguments: str) -> str:
        return call(tmp_path, "-m", "qa_arch.cli.main", *arguments, path=sample)

    settings = ["debug=fast", "trainer.max_steps=40", "optim.lr=1", "--trust", "sample_extra"]
    qa_arch("train", "model=answer_length", "--folder", "run", *settings)
    table = qa_arch("tables", "run", "--columns", "model,name_length", "--format", "markdown")
    assert re.search(r"\| answer_length \| +13 \|", table), table
    assert "encoder" not in qa_arch("show", "run")


COMMON = {
    *("accuracy", "classification", "copied", "perplexity", "pretraining", "restored", "selection", "types"),
}
"""Names of extras that are also English words: the core may say them, but not compare anything with them."""


def test_core_does_not_know_the_words_of_the_extras():
    """Names of recipes, sections, formats and columns; commands may be mentioned in a help text."""
    words = {name for extra in OWN.values() for name in (*extra.recipes, *extra.sections, *extra.formats)}
    modules = [import_module(extra.columns) for extra in OWN.values() if extra.columns]
    words |= {column.key for module in modules for column in module.COLUMNS}
    words |= {protocol for module in modules for protocol in getattr(module, "PROTOCOLS", ())}
    rare, common = ("|".join(map(re.escape, sorted(part))) for part in (words - COMMON, words & COMMON))
    pattern = re.compile(rf"\b({rare})\b|['\"]({common})['\"]|config\.({common})\b")
    core = [path for path in (ROOT / "qa_arch").rglob("*.py") if "extras" not in path.relative_to(ROOT).parts]
    assert len(core) > 80
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in core
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if (match := pattern.search(line))
    ]
    assert found == []


def require_no_command(root: Path, names: Collection[str]) -> None:
    listed = re.findall(r"^    ([a-z-]+)", call(root, "-m", "qa_arch.cli.main", "--help"), flags=re.MULTILINE)
    assert "train" in listed
    assert not set(listed) & {command for name in names for command in OWN[name].commands}


@pytest.mark.slow
def test_core_works_without_extras(tmp_path):
    root = without(OWN, tmp_path, ("qa_arch", "baselines", "conf"))
    require_no_command(root, OWN)
    call(root, "-c", COMPOSED)


@pytest.mark.slow
@pytest.mark.parametrize("names", [*([name] for name in OWN), [*OWN]], ids=[*OWN, "all"])
@pytest.mark.timeout(3600)
def test_suite_passes_without(names, tmp_path):
    root = without(names, tmp_path, (*COPIED, *REST))
    require_no_command(root, names)
    call(root, "-c", IMPORTED)
    goldens = ("--ignore", "tests/test_goldens.py")  # of the commands with every extra
    call(root, "-m", "pytest", "-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider", *goldens)
