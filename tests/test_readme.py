"""The README's commands compose, its example architecture trains, its tables are the recorded ones."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from qa_arch.cli.compose import compose, split_grid
from qa_arch.cli.main import COMMANDS, _parser, main
from qa_arch.config.find import conf_folder
from qa_arch.config.schema import TASKS, validate

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def commands(program: str) -> list[list[str]]:
    lines = (line for block in blocks("bash") for line in block.splitlines())
    words = (shlex.split(line, comments=True) for line in lines if line.strip())
    return [found for found in words if found and found[0] == program]


@pytest.mark.parametrize("command", commands("qa-arch"), ids=" ".join)
def test_every_command_is_understood(command: list[str]) -> None:
    args = _parser(command[1]).parse_args(command[1:])
    assert command[1] in COMMANDS
    if command[1] == "train" and args.multirun:
        assert split_grid(args.overrides)[1]
        return
    for model in (args.models or "").split(",") if command[1] == "train" else []:
        if "model=gated" in args.overrides:
            continue  # the example below, which the next test builds
        chosen = [f"model={model}"] if model not in ("", "all") else []
        assert validate(compose([*args.overrides, *chosen])).model["task"] in TASKS


def test_every_make_target_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = {words[1] for words in commands("make")} | set(re.findall(r"`make ([a-z-]+)`", README))
    assert {"demo", "test"} <= named
    for target in named:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_the_example_architecture_is_one_file_and_one_yaml(tmp_path, monkeypatch) -> None:
    (source,) = [block for block in blocks("python") if "class Gated" in block]
    (settings,) = blocks("yaml")
    baselines, config = tmp_path / "code", tmp_path / "conf"
    baselines.mkdir()
    (baselines / "gated.py").write_text(source)
    import baselines as package

    monkeypatch.setattr(package, "__path__", [*package.__path__, str(baselines)])
    import shutil

    shutil.copytree(conf_folder(), config)
    (config / "model" / "gated.yaml").write_text(settings)
    monkeypatch.setattr("qa_arch.cli.compose.conf_folder", lambda: config)
    overrides = ["model=gated", "debug=fast", f"runs_dir={tmp_path}", "features.cache_dir=null"]
    try:
        assert main(["train", *overrides]) == 0
        assert main(["train", *overrides, "model.dropuot=0.2"]) == 2
    finally:
        sys.modules.pop("baselines.gated", None)


@pytest.mark.parametrize("slug", re.findall(r"<!-- table: (\w+) -->", README))
def test_tables_are_the_recorded_ones(slug: str) -> None:
    (shown,) = re.findall(rf"<!-- table: {slug} -->\n(.*?)<!-- end -->", README, flags=re.DOTALL)
    recorded = (ROOT / "experiments" / slug / "table.md").read_text(encoding="utf-8")
    assert shown.strip()
    assert shown.strip() in recorded


def test_the_benchmarks_are_the_recorded_ones() -> None:
    from benchmarks.report import summary

    (shown,) = re.findall(r"<!-- bench -->\n(.*?)<!-- end -->", README, flags=re.DOTALL)
    kept = ROOT / "benchmarks" / "results" / "table.json"
    wanted = summary(json.loads(kept.read_text(encoding="utf-8"))) if kept.exists() else "`make bench` writes"
    assert shown.strip().startswith(wanted.strip())


def test_every_dependency_is_justified() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {re.split(r"[\[<>=! ]", item)[0] for item in project["dependencies"]}
    (section,) = re.findall(r"## Dependencies\n(.*?)\n## ", README, flags=re.DOTALL)
    listed = {
        name for row in re.findall(r"^\| ([^|]+) \|", section, flags=re.MULTILINE) for name in row.split(", ")
    }
    assert names <= {name.strip() for name in listed}
