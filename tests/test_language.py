"""No banned identifiers in the code."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("qa_arch", "baselines", "benchmarks")

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
    "openings": "dev_accesses",
    "against": "against_baseline",
    "beside": "published",
    "sides": "comparisons",
    "facets": "breakdowns",
}
"""Identifier -> suggestion. Compared without leading underscores and in lower case."""

ALLOWED = {("qa_arch/cli/doctor.py", "found"): "key of doctor --json"}
"""(file, identifier) -> reason."""

EXAMPLE = re.compile(r"^```python\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
"""Python code block of a page."""

FIELDS = ("id", "arg", "attr", "name", "asname")
"""Fields of syntax nodes that hold an identifier."""


def identifiers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, name) of every variable, parameter, keyword argument, attribute, function, class and import."""
    for node in ast.walk(tree):
        for field in FIELDS:
            if isinstance(name := getattr(node, field, None), str):
                yield node.lineno, name.rpartition(".")[2]


def banned_names(path: Path) -> list[str]:
    """Hits ``file:line name -> suggestion`` in a module, its stem included."""
    names = {(0, path.stem), *identifiers(ast.parse(path.read_text(encoding="utf-8")))}
    shown = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)
    return [
        f"{shown}:{line} {name} -> {BANNED[plain]}"
        for line, name in sorted(names)
        if (plain := name.strip("_").lower()) in BANNED and (shown, name) not in ALLOWED
    ]


def test_no_banned_names():
    modules = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    hits = [hit for path in modules for hit in banned_names(path)]
    assert not hits, "\n".join(["banned names:", *hits])


def test_no_banned_names_in_code_of_pages(tmp_path):
    hits = []
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for number, code in enumerate(EXAMPLE.findall(page.read_text(encoding="utf-8"))):
            path = tmp_path / f"{page.stem}_{number}.py"
            path.write_text(code, encoding="utf-8")
            hits += banned_names(path)
    assert not hits, "\n".join(["banned names:", *hits])


@pytest.mark.parametrize(
    ("code", "line", "name"),
    [
        ("x = 1\nfound = 2", 2, "found"),
        ("def f(asked): ...", 1, "asked"),
        ("f(given, one=1)", 1, "one"),
        ("from a import b as ghost", 1, "ghost"),
        ("def f():\n    if (said := 1): ...", 2, "said"),
    ],
)
def test_planted_name_is_found(tmp_path, code, line, name):
    path = tmp_path / "planted.py"
    path.write_text(code)
    hits = banned_names(path)
    assert hits
    assert all(hit.startswith(f"{path}:{line} {name} -> ") for hit in hits)
