"""No banned identifiers in the code, and no names of code that is gone in pages and docstrings."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
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
    "against": "effects_table",
    "beside": "published",
    "sides": "comparisons",
    "facets": "breakdowns",
    "spans_f1": "forced_f1",
    "never_null": "FORCED, always_answers",
    "margin_0": "THRESHOLD_0",
}
"""Identifier -> suggestion. Compared without leading underscores and in lower case."""

ALLOWED = {("qa_arch/cli/doctor.py", "found"): "key of doctor --json"}
"""(file, identifier) -> reason."""

NAMED = re.compile(
    r"(?<![\w./])(qa_arch(?!\.json)(?:\.\w+)+)|(qa_arch/[\w/]+\.(?:py|yaml))|"
    r"(?<=`)((?:tests/(?!extras/)|benchmarks/)[\w/]+\.py)|"
    r"``((?:cli|evaluation|manifest|metrics|models|nn|provenance|qa|records|results|serving|training)"
    r"(?:\.[a-z]\w*)+)``"
)
"""A dotted name, the path of a file, or in a docstring a dotted name without ``qa_arch``."""

FIELDS = ("id", "arg", "attr", "name", "asname")
"""Fields of syntax nodes that hold an identifier."""


@cache
def parsed(path: Path) -> ast.AST:
    return ast.parse(path.read_text(encoding="utf-8"))


def identifiers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, name) of every variable, parameter, keyword argument, attribute, function, class and import."""
    for node in ast.walk(tree):
        for field in FIELDS:
            if isinstance(name := getattr(node, field, None), str):
                yield node.lineno, name.rpartition(".")[2]


def banned_names(path: Path) -> list[str]:
    """Hits ``file:line name -> suggestion`` in a module, its stem included."""
    names = {(0, path.stem), *identifiers(parsed(path))}
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


def test_every_class_has_a_name_of_its_own():
    paths = [path for package in (*PACKAGES, "experiments") for path in (ROOT / package).rglob("*.py")]
    nodes = (node for path in paths for node in ast.walk(parsed(path)))
    counts = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    assert [name for name, count in counts.items() if count > 1] == []


@pytest.mark.parametrize(
    ("code", "line", "name"),
    [
        ("def f(asked): ...", 1, "asked"),
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


def exists(name: str) -> bool:
    """Whether a file is there, or a dotted name leads to a module and on to words in it."""
    if "/" in name:
        return (ROOT / name).is_file()
    parts = name.removeprefix("qa_arch.").split(".")
    for stop in range(len(parts), -1, -1):
        place = ROOT.joinpath("qa_arch", *parts[:stop])
        module = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        if module.is_file():
            return {*parts[stop:]} <= {*re.findall(r"\w+", module.read_text(encoding="utf-8"))}
    return False


def names_of_nothing(path: Path) -> list[str]:
    """Names of code in a module or page that lead nowhere."""
    names = {"".join(groups) for groups in NAMED.findall(path.read_text(encoding="utf-8"))}
    return [f"{path.name}: {name}" for name in sorted(names) if not exists(name)]


def test_pages_and_docstrings_name_what_exists():
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    paths += [path for path in ROOT.glob("*.md") if path.name != "CHANGELOG.md"]
    paths += [*ROOT.glob("docs/**/*.md"), *ROOT.glob("experiments/*/*.md"), *ROOT.glob("benchmarks/*.md")]
    assert [hit for path in paths for hit in names_of_nothing(path)] == []


@pytest.mark.parametrize(
    "name", ["``qa.task.gone``", "qa_arch.gone.fit", "qa_arch/qa/gone.py", "``nn.gone``"]
)
def test_planted_name_of_nothing_is_found(tmp_path, name):
    (tmp_path / "planted.py").write_text(f'"""As ``qa.task.fit_calibration``, {name}."""')
    assert len(names_of_nothing(tmp_path / "planted.py")) == 1
