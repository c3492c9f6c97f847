"""Planting faults: the place is found by the qualified name of a definition, in whatever file it is."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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
    """Code to replace, which occurs once there. Line breaks, spaces and trailing commas do not matter."""
    new: str
    """Its replacement."""
    test: str
    """End of a test file's path without ``.py``, or the name of a test, optionally with its file
    (``test_run::test_name``). At least one of these tests must fail."""


@dataclass(frozen=True, slots=True)
class Scope:
    """A definition in a file of a package: lines ``first`` to ``last``, from 1."""

    module: str
    name: str
    """Qualified name within the module."""
    path: Path
    first: int
    last: int


class Sources:
    """Definitions and tests of a checkout by name, as of construction."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.scopes: dict[str, list[Scope]] = defaultdict(list)
        """By the last part of the name."""
        for path in sorted(path for package in PACKAGES for path in (root / package).rglob("*.py")):
            module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
            for name, first, last in _definitions(ast.parse(path.read_text(encoding="utf-8"))):
                self.scopes[_public(name).rpartition(".")[2]].append(Scope(module, name, path, first, last))
        self.tests = {
            path.relative_to(root).as_posix(): re.findall(
                r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE
            )
            for path in sorted((root / "tests").rglob("test_*.py"))
        }

    def plant(self, fault: Fault) -> tuple[Path, str]:
        """File that ``fault`` changes, and its text with the fault. Raises StaleFaultError."""
        pattern, places = _in_any_layout(fault.old), []
        scopes = self._places(fault.at)
        if not scopes:
            raise StaleFaultError(f"{fault.name}: {fault.at} does not exist")
        for path, first, last in scopes:
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            begin = sum(map(len, lines[: first - 1]))
            end = begin + sum(map(len, lines[first - 1 : last]))
            text = "".join(lines)
            places += [(path, text, match) for match in pattern.finditer(text, begin, end)]
        if len(places) != 1:
            raise StaleFaultError(
                f"{fault.name}: its code occurs {len(places)} times in {fault.at}, not once: {fault.old}"
            )
        [(path, text, match)] = places
        line = text[text.rfind("\n", 0, match.start()) + 1 :]
        indent = line[: len(line) - len(line.lstrip(" "))]
        return path, text[: match.start()] + fault.new.replace("\n", f"\n{indent}") + text[match.end() :]

    def _places(self, at: str) -> list[tuple[Path, int, int | None]]:
        """Files, first and last lines of the definitions that ``at`` names."""
        if "/" in at:
            return [(path, 1, None) for path in [self.root / at] if path.is_file()]
        module, _, name = at.rpartition(":")
        name = _public(name)
        return [
            (scope.path, scope.first, scope.last)
            for scope in self.scopes.get(name.rpartition(".")[2], ())
            if f".{_public(scope.name)}".endswith(f".{name}")
            and (not module or f".{scope.module}".endswith(f".{module}"))
        ]

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


def _in_any_layout(code: str) -> re.Pattern[str]:
    parts = re.findall(r"\w+|[^\w\s]", code)
    return re.compile(r"\s*".join((r",?\s*" if part in ")]}" else "") + re.escape(part) for part in parts))


def _public(name: str) -> str:
    return re.sub(r"\b_+", "", name)


def _definitions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, int, int]]:
    """(qualified name, first and last line) of all functions, classes and constants below ``node``."""
    for child in ast.iter_child_nodes(node):
        inside = prefix
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            first = min([child.lineno, *(decorator.lineno for decorator in child.decorator_list)])
            yield prefix + child.name, first, child.end_lineno or first
            inside = f"{prefix}{child.name}."
        elif isinstance(child, (ast.Assign, ast.AnnAssign)) and isinstance(node, (ast.Module, ast.ClassDef)):
            targets = child.targets if isinstance(child, ast.Assign) else [child.target]
            for name in targets:
                if isinstance(name, ast.Name):
                    yield prefix + name.id, child.lineno, child.end_lineno or child.lineno
        yield from _definitions(child, inside)
