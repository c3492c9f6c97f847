"""What can be chosen and set, with its documentation: choices of the config groups, settings of a schema.

All is read from files: nothing is composed, and no class that a config names is imported.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, get_type_hints

from qa_arch.config.check import type_name
from qa_arch.config.find import groups

TARGET = re.compile(r"^_target_: *([\w.]+)", re.MULTILINE)
KEY = re.compile(r"^(\w+):", re.MULTILINE)
NO_SETTINGS = ("defaults", "_target_", "task", "name")
"""Keys of a choice that say what it is."""


@dataclass(frozen=True)
class Setting:
    """A dotted setting of the schema."""

    name: str
    type: str
    """In words, with its range."""
    about: str
    """Empty where its name says all."""
    default: Any
    """``MISSING`` (of dataclasses) where the schema has none and ``conf/`` holds the value."""


def settings(schema: type, section: str = "") -> Iterator[Setting]:
    """Every setting of the dataclass ``schema`` and of the dataclasses in it, with the string below each."""
    hints = get_type_hints(schema, include_extras=True)
    documentation = _attribute_docstrings(schema)
    for item in fields(schema):
        name, hint = f"{section}{item.name}", hints[item.name]
        if is_dataclass(hint):
            assert isinstance(hint, type)
            yield from settings(hint, f"{name}.")
        else:
            text = documentation.get(item.name, "")
            yield Setting(name, type_name(hint), text, item.default)


def choices(group: str, folders: Sequence[Path]) -> dict[str, str]:
    """Choices of a config group, each with its documentation.

    That is the comment at the top of its file, else the first line of the docstring of the class it names.
    """
    return {
        name: about(choice_file(group, name, folders), folders)
        for name in groups(folders)[group]
        if not Path(name).name.startswith("_")
    }


def choice_file(group: str, name: str, folders: Sequence[Path]) -> Path:
    """The file of a choice; that of a choice that there is not does not exist."""
    files = [folder / group / f"{name}.yaml" for folder in folders]
    return next((file for file in files if file.is_file()), files[0])


def about(file: Path, folders: Sequence[Path] = ()) -> str:
    """What a config file says it is, in one line."""
    text = file.read_text(encoding="utf-8")
    comment = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        if not line.startswith("# @package"):
            comment.append(line.lstrip("# ").rstrip())
    if not comment and (match := TARGET.search(text)):
        return _class_docstring(match[1], folders)
    return " ".join(comment)


def own_settings(group: str, folders: Sequence[Path]) -> dict[str, str]:
    """Settings of the choices of a group without a schema, such as ``model``: key -> a choice that has it."""
    having: dict[str, str] = {}
    for name in sorted(choices(group, folders), key=lambda name: "/" in name):  # variants come last
        text = choice_file(group, name, folders).read_text(encoding="utf-8")
        for key in KEY.findall(text):
            if key not in NO_SETTINGS:
                having.setdefault(key, name)
    return having


def _attribute_docstrings(schema: type) -> dict[str, str]:
    """The string below each field, which Python itself does not keep."""
    (definition,) = (
        node
        for node in _module(inspect.getsourcefile(schema) or "").body
        if isinstance(node, ast.ClassDef) and node.name == schema.__name__
    )
    body = definition.body
    return {
        field.target.id: " ".join(note.value.value.split())
        for field, note in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(note, ast.Expr)
        and isinstance(note.value, ast.Constant)
        and isinstance(note.value.value, str)
    }


def _class_docstring(target: str, folders: Sequence[Path]) -> str:
    """The first line of a class's docstring, from its source; empty where that is not to be found."""
    module, _, name = target.rpartition(".")
    inside = Path(*module.split("."))
    for root in (*map(Path, sys.path), *folders):
        for file in (root / inside.with_suffix(".py"), root / inside / "__init__.py"):
            if file.is_file():
                for node in ast.walk(_module(str(file))):
                    if isinstance(node, ast.ClassDef) and node.name == name:
                        return (ast.get_docstring(node) or "").partition("\n")[0]
    return ""


@cache
def _module(file: str) -> ast.Module:
    return ast.parse(Path(file).read_text(encoding="utf-8"))
