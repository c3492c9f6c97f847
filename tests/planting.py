"""Planting faults: the place is found by the qualified name of a definition, in whatever file it is."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches
from pathlib import Path

from patterns import Pattern

PACKAGES = ("qa_arch", "baselines", "experiments")


class StaleFaultError(Exception):
    """The place of a fault, the code it replaces or its test is missing or ambiguous."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    name: str
    at: str
    """Qualified name of a function, method, class or constant, or its end (``add`` for ``Reader.add``),
    optionally with its module or the end of the module's name (``splits:hold_out``); or the path of a file
    from the root of the checkout. Leading underscores are ignored."""
    old: str
    """Code to replace: a pattern (``patterns.py``) that matches once there; in a file, plain text."""
    new: str
    """Replacement; empty to delete the statement."""
    test: str
    """End of a test file's path without ``.py``, or the name of a test, optionally with its file
    (``test_run::test_name``). At least one of these tests must fail."""


@dataclass(frozen=True, slots=True)
class Scope:
    """A definition in a file of a package."""

    module: str
    name: str
    """Qualified name within the module."""
    path: Path
    node: ast.AST


class Sources:
    """Definitions and tests of a checkout by name, as of construction."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.scopes: dict[str, list[Scope]] = defaultdict(list)
        """By the last part of the name."""
        for path in sorted(path for package in PACKAGES for path in (root / package).rglob("*.py")):
            module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
            for name, node in _definitions(ast.parse(path.read_text(encoding="utf-8"))):
                self.scopes[_public(name).rpartition(".")[2]].append(Scope(module, name, path, node))
        self.tests = {
            path.relative_to(root).as_posix(): re.findall(
                r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE
            )
            for path in sorted((root / "tests").rglob("test_*.py"))
        }

    def plant(self, fault: Fault) -> tuple[Path, str]:
        """File that ``fault`` changes, and its text with the fault. Raises StaleFaultError."""
        if "/" in fault.at:
            path = self.root / fault.at
            return path, _replace_text(fault, path.read_text(encoding="utf-8"))
        pattern = Pattern(fault.old, fault.new)
        places = [(scope, *place) for scope in self._named(fault.at) for place in pattern.places(scope.node)]
        if len(places) != 1:
            raise StaleFaultError(f"{fault.name}: {self._why(fault, pattern, len(places))}")
        [(scope, nodes, bound)] = places
        return scope.path, pattern.replaced(scope.path.read_text(encoding="utf-8"), nodes, bound)

    def _named(self, at: str) -> list[Scope]:
        module, _, name = at.rpartition(":")
        name = _public(name)
        return [
            scope
            for scope in self.scopes.get(name.rpartition(".")[2], ())
            if f".{_public(scope.name)}".endswith(f".{name}")
            and (not module or f".{scope.module}".endswith(f".{module}"))
        ]

    def _why(self, fault: Fault, pattern: Pattern, places: int) -> str:
        """Message for a fault with no place or several, with suggestions."""
        if scopes := self._named(fault.at):
            files = ", ".join(sorted({str(scope.path.relative_to(self.root)) for scope in scopes}))
            message = f"its code occurs {places} times in {fault.at} ({files}), not once: {fault.old}"
        else:
            names = {scope.name for scopes in self.scopes.values() for scope in scopes}
            close = get_close_matches(fault.at.rpartition(":")[2], names, n=3)
            message = f"there is no {fault.at}; similar names: {', '.join(close) or 'none'}"
        elsewhere = sorted(
            self._innermost(pattern), key=lambda name: -SequenceMatcher(None, name, fault.at).ratio()
        )
        return f"{message}; it occurs once in {', '.join(elsewhere[:4]) or 'no other place'}"

    def _innermost(self, pattern: Pattern) -> list[str]:
        """Innermost definitions in which ``pattern`` matches once."""
        matches = [
            f"{scope.module}:{scope.name}"
            for scopes in self.scopes.values()
            for scope in scopes
            if len(pattern.places(scope.node)) == 1
        ]
        return [name for name in matches if not any(other.startswith(f"{name}.") for other in matches)]

    def test_id(self, fault: Fault) -> str:
        """Pytest's id of the test of ``fault``. Raises StaleFaultError."""
        file, _, name = fault.test.rpartition("::")
        matches = [path for path in self.tests if f"/{path}".endswith(f"/{fault.test}.py")] or [
            f"{path}::{name}"
            for path, names in self.tests.items()
            if name in names and (not file or f"/{path}".endswith(f"/{file}.py"))
        ]
        if len(matches) != 1:
            raise StaleFaultError(f"{fault.name}: {len(matches)} tests are called {fault.test}, not one")
        return matches[0]


def _public(name: str) -> str:
    return re.sub(r"\b_+", "", name)


def _definitions(node: ast.AST, prefix: str = "") -> list[tuple[str, ast.AST]]:
    """(qualified name, node) of all functions, classes and constants below ``node``, outer ones first."""
    definitions: list[tuple[str, ast.AST]] = []
    for child in ast.iter_child_nodes(node):
        inside = prefix
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            definitions.append((prefix + child.name, child))
            inside = f"{prefix}{child.name}."
        elif isinstance(child, (ast.Assign, ast.AnnAssign)) and isinstance(node, (ast.Module, ast.ClassDef)):
            targets = child.targets if isinstance(child, ast.Assign) else [child.target]
            definitions += [(prefix + name.id, child) for name in targets if isinstance(name, ast.Name)]
        definitions += _definitions(child, inside)
    return definitions


def _replace_text(fault: Fault, text: str) -> str:
    if (count := text.count(fault.old)) != 1:
        raise StaleFaultError(
            f"{fault.name}: its text occurs {count} times in {fault.at}, not once\n{fault.old}"
        )
    return text.replace(fault.old, fault.new)
