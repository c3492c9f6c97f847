"""Language of the code: no banned identifier, and no module stem with two meanings."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("qa_arch", "baselines", "hydra_plugins", "benchmarks")

BANNED = {
    "one": "what it is: item, run, row, pair",
    "each": "what it is: item, run, row, pair",
    "found": "result, matches, hits",
    "told": "message, events",
    "said": "message, output",
    "asked": "request, questions; tensors: question_states",
    "met": "seen",
    "kept": "best_weights, selected",
    "cutter": "tokenize_fn",
    "ghost": "padding_row, dummy_sample",
    "mirror": "logger",
    "mirrors": "loggers",
    "readout": "collector",
    "lower_precision": "cast_weights",
    "mute": "always_abstains",
    "undue": "false_answer",
    "typist": "question_classifier",
    "uncollected": "gc_disabled",
    "believed": "actual_status",
    "carry_out": "runner, run_points",
    "openings": "dev_access_log",
    "against": "baseline_table",
    "beside": "published_vs_ours",
    "sides": "pairwise",
    "facets": "question_breakdowns",
}
"""Identifier -> suggestion. Compared without leading underscores and in lower case."""

ALLOWED = {
    ("qa_arch/cli/checks.py", "found"): "key of doctor --json",
    ("qa_arch/cli/doctor.py", "found"): "same",
    ("tests/cli/test_doctor.py", "found"): "same",
    ("tests/cli/test_run_commands.py", "OPENINGS"): "constant of results",
}
"""(file, identifier) -> reason."""

PAIRS: dict[str, str] = {
    "__init__": "packages",
    "__main__": "programs",
    "candidates": "candidate spans: n-grams of the passage for the regression, the best of a decoder",
    "match_lstm": "the published model, and the layer that it is named after",
    "question_types": "the classes of Li & Roth 2002: their data, their rules, the model that learns them",
    "transformer": "the architecture, and the standard baseline on any encoder of that architecture",
    "squad": "SQuAD: its files, its official evaluation, and that as a module of ``evaluate``",
}
"""Stem -> reason why several modules share it."""
EXAMPLE = re.compile(r"^```python\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
"""Code of a page."""
NAMED_AFTER_OTHERS = ("qa_arch/cli", "benchmarks", "experiments", "tests")
"""Commands, benchmarks, scripts and tests are named after the module that they call."""


FIELD = {
    ast.Name: "id",
    ast.arg: "arg",
    ast.keyword: "arg",
    ast.Attribute: "attr",
    ast.FunctionDef: "name",
    ast.AsyncFunctionDef: "name",
    ast.ClassDef: "name",
    ast.ExceptHandler: "name",
    ast.MatchAs: "name",
    ast.MatchStar: "name",
}
"""Node -> its field with an identifier."""


def identifiers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, name) of every variable, parameter, keyword argument, attribute, function, class and import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.alias):
            yield node.lineno, node.asname or node.name.rpartition(".")[2]
        elif name := getattr(node, FIELD.get(type(node), ""), None):
            yield node.lineno, name


def banned_names(path: Path) -> list[str]:
    """Hits ``file:line name -> suggestion`` in a module, its stem included."""
    names = {(0, path.stem), *identifiers(ast.parse(path.read_text(encoding="utf-8")))}
    shown = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)
    return [
        f"{shown}:{line} {name} -> {BANNED[plain]}"
        for line, name in sorted(names)
        if (plain := name.strip("_").lower()) in BANNED and (shown, name) not in ALLOWED
    ]


def modules(places: Iterable[str]) -> list[Path]:
    """Python files in the folders and files ``places``, from the root of the checkout."""
    paths = (ROOT / place for place in places)
    return sorted({file for path in paths for file in (path.rglob("*.py") if path.is_dir() else [path])})


def shared_stems(paths: Iterable[Path]) -> dict[str, list[str]]:
    """Stem -> modules, for stems of several modules outside ``NAMED_AFTER_OTHERS`` and ``PAIRS``."""
    by_stem = defaultdict(list)
    for path in paths:
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(NAMED_AFTER_OTHERS) and path.stem not in PAIRS:
            by_stem[path.stem].append(name)
    return {stem: names for stem, names in by_stem.items() if len(names) > 1}


def test_no_banned_names():
    hits = [hit for path in modules(PACKAGES) for hit in banned_names(path)]
    assert not hits, "\n".join(["banned names:", *hits])


def test_no_banned_names_in_the_code_that_pages_show(tmp_path):
    hits = []
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for number, code in enumerate(EXAMPLE.findall(page.read_text(encoding="utf-8"))):
            path = tmp_path / f"{page.stem}_{number}.py"
            path.write_text(code, encoding="utf-8")
            hits += banned_names(path)
    assert not hits, "\n".join(["banned names:", *hits])


def test_module_stems_have_one_meaning():
    shared = shared_stems(modules(PACKAGES))
    assert not shared, "\n".join(f"{stem}: {', '.join(paths)}" for stem, paths in shared.items())


@pytest.mark.parametrize(
    ("code", "line", "name"),
    [
        ("x = 1\nfound = 2", 2, "found"),
        ("def f(asked): ...", 1, "asked"),
        ("def _told(): ...", 1, "_told"),
        ("class Mirror: ...", 1, "Mirror"),
        ("x.kept", 1, "kept"),
        ("f(given, one=1)", 1, "one"),
        ("[0 for one in ()]", 1, "one"),
        ("from a import b as ghost", 1, "ghost"),
        ("def f():\n    if (said := 1): ...", 2, "said"),
    ],
)
def test_a_planted_name_is_found(tmp_path, code, line, name):
    path = tmp_path / "planted.py"
    path.write_text(code)
    hits = banned_names(path)
    assert hits
    assert all(hit.startswith(f"{path}:{line} {name} -> ") for hit in hits)


def test_a_planted_stem_is_found(tmp_path):
    (tmp_path / "cutter.py").write_text("")
    assert banned_names(tmp_path / "cutter.py") == [f"{tmp_path}/cutter.py:0 cutter -> tokenize_fn"]
    twins = [ROOT / "qa_arch/x/twin.py", ROOT / "qa_arch/y/twin.py"]
    assert shared_stems(twins) == {"twin": ["qa_arch/x/twin.py", "qa_arch/y/twin.py"]}
    assert shared_stems([twins[0], ROOT / "qa_arch/cli/twin.py"]) == {}
