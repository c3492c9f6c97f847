"""Files around the code: licence, citation, versions, extras, CI workflow."""

import os
import re
import tomllib
from pathlib import Path

import yaml

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


def test_workflow_runs_the_ci_script():
    steps = yaml.safe_load(read(".github/workflows/ci.yml"))["jobs"]["test"]["steps"]
    assert steps[-1] == {"run": "./.ci/run"}
    assert os.access(ROOT / ".ci/run", os.X_OK)


def test_citation_lists_published_works():
    citation = yaml.safe_load(read("CITATION.cff"))
    assert citation["license"] == PROJECT["license"] == "MIT"
    published = [item for item in citation["references"] if item["type"] != "thesis"]
    assert all(item["url"].startswith("https://") and item["year"] > 2000 for item in published)
    assert any("Match-LSTM" in item["title"] for item in published)
