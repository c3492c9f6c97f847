"""``qa-arch list``: choices of the config groups and settings, with their documentation."""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from itertools import pairwise, takewhile
from pathlib import Path
from textwrap import fill
from typing import Any, get_args, get_type_hints

from qa_arch.cli.runs import add_options
from qa_arch.config.check import suggest, suggest_setting, type_name
from qa_arch.config.find import config_folders, groups, use_config_dir
from qa_arch.config.schema import Config, SweepSettings
from qa_arch.errors import ConfigError

SETTINGS, COLUMNS = "settings", "columns"
WITHOUT_SCHEMA = ("model", "loss", "logger")
"""Sections whose settings are the arguments of the class that a choice names."""
KEY = re.compile(r"^(\w+):[^#\n]*(?:# (.*))?", re.MULTILINE)
"""A key of a choice and the comment beside it."""
PACKAGE = re.compile(r"^_target_: (\w+)(?:\.extras\.(\w+))?", re.MULTILINE)
PARENT = re.compile(r"^defaults:\s*(?:\[|- )([\w/]+)", re.MULTILINE)
NO_SETTINGS = ("defaults", "_target_", "task", "name")
"""Keys of a choice that identify it."""
LISTED_FIRST = ("baselines", "proposed model and its parts")
INDENT = " " * 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "examples: qa-arch list models lstm; qa-arch list settings batch; qa-arch list loggers"
    what = f"models, experiments, {SETTINGS}, {COLUMNS} (of tables), ... (`qa-arch list` alone shows all)"
    parser.add_argument("what", nargs="?", metavar="WHAT", help=what)
    parser.add_argument("filter", nargs="*", metavar="FILTER", help="words to find in names and descriptions")
    parser.add_argument("--json", action="store_true", help="print a list of JSON objects")
    add_options(parser, "--config-dir")


def run(args: argparse.Namespace) -> int:
    """Print one entry per match; raise ConfigError if there is none."""
    folders = config_folders(use_config_dir(args.config_dir, ()))
    if args.what == SETTINGS:
        entries = _settings(folders, args.config_dir)
    elif args.what == COLUMNS:
        from qa_arch.results import columns

        entries = [{"name": key, "about": column.heading} for key, column in columns.COLUMNS.items()]
    else:
        entries = _choices(args.what, folders, args.config_dir) if args.what else _everything(folders)
    words = [word.casefold() for word in args.filter]
    texts = [" ".join(map(str, entry.values())).casefold() for entry in entries]
    matches = [
        entry for entry, text in zip(entries, texts, strict=True) if all(word in text for word in words)
    ]
    if not matches:
        names = [entry["name"] for entry in entries]
        hint = (suggest_setting if args.what == SETTINGS else suggest)(args.filter[0], names)
        raise ConfigError(f"{args.what}: nothing matches '{' '.join(args.filter)}'{hint}")
    if args.json:
        print(json.dumps(matches, indent=2, ensure_ascii=False))
        return 0
    width = min(100, shutil.get_terminal_size().columns)
    for before, entry in pairwise([{}, *matches]):
        if (group := entry.get("group")) != before.get("group"):
            print(f"{group}:")
        default = f"; default {json.dumps(entry['default'], ensure_ascii=False)}" if "type" in entry else ""
        print("  ".join(filter(None, (entry["name"], entry.get("type", "") + default))))
        if text := entry["about"].replace("``", ""):
            print(fill(text, width, initial_indent=INDENT, subsequent_indent=INDENT, break_on_hyphens=False))
    return 0


def _everything(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """The config groups with their choices, and an entry for all settings."""
    shown = [group for group in groups(folders) if group != "special"]  # only other configs choose from it
    return [
        {"name": SETTINGS, "about": "every setting with its type, default and meaning"},
        {"name": COLUMNS, "about": "every column of qa-arch tables --columns"},
        *({"name": it, "about": f"{it}=NAME: {', '.join(_texts(it, folders))}"} for it in shown),
    ]


def _choices(what: str, folders: Sequence[Path], config_dir: str | None) -> list[dict[str, Any]]:
    """Choices of a group, each with the comment at the top of its file; models by whose they are."""
    known = groups(folders)
    names = (what, what.removesuffix("s"), what.removesuffix("es"))  # models, losses
    group = next((name for name in names if name in known), None)
    if group is None:
        named = [entry for entry in _settings(folders, config_dir) if what in re.split(r"\W", entry["name"])]
        hint = suggest(what, {SETTINGS, COLUMNS, *known})
        hint = f"; a setting is: qa-arch list {SETTINGS} {what}" if named else hint
        raise ConfigError(f"list: nothing is called '{what}'{hint}")
    entries, texts = [], _texts(group, folders)
    for name, text in texts.items():
        top = takewhile(lambda line: line.startswith("#"), text.splitlines())
        about = [line.lstrip("# ").rstrip() for line in top if not line.startswith("# @package")]
        whose = {"group": _whose(name, texts)} if group == "model" else {}
        entries.append({"name": f"{group}={name}", "about": " ".join(about), **whose})
    if group == "model":
        entries.sort(key=lambda entry: (entry["group"] not in LISTED_FIRST, entry["group"]))  # then by name
    return entries


def _whose(name: str, models: Mapping[str, str]) -> str:
    """What a model is listed under: the package of its class, which a variant has from its first default."""
    if match := PACKAGE.search(models[name]):
        package, extra = match.groups()
        named = {"baselines": LISTED_FIRST[0], "qa_arch": f"extra {extra}" if extra else LISTED_FIRST[1]}
        return named.get(package, package)
    parent = PARENT.search(models[name])
    return _whose(parent[1], models) if parent and parent[1] in models else "other"


def _texts(group: str, folders: Sequence[Path]) -> dict[str, str]:
    """Choice -> text of its file."""
    texts = {}
    for name in groups(folders)[group]:
        files = [folder / group / f"{name}.yaml" for folder in folders]
        if not Path(name).name.startswith("_"):
            texts[name] = next(file for file in files if file.is_file()).read_text(encoding="utf-8")
    return texts


def _settings(folders: Sequence[Path], config_dir: str | None) -> list[dict[str, Any]]:
    """Settings of the schema with their values in the default config, then those of classes."""
    from qa_arch.config.compose import compose

    composed = compose([], config_dir)
    entries = [*_schema_settings(Config, composed), *_schema_settings(SweepSettings, {}, "sweep.")]
    for group in WITHOUT_SCHEMA:
        about: dict[str, str] = {}
        for name, text in sorted(_texts(group, folders).items(), key=lambda item: "/" in item[0]):
            for key, note in KEY.findall(text):  # variants, in subfolders, come last
                about.setdefault(key, f"of {group}={name}{note and f': {note}'}")
        entries += [
            {"name": f"{group}.{key}", "about": text} for key, text in about.items() if key not in NO_SETTINGS
        ]
    return entries


def _schema_settings(schema: type, values: Mapping[str, Any], section: str = "") -> Iterator[dict[str, Any]]:
    """Every setting of the dataclass ``schema`` and of nested ones, with its docstring."""
    hints, about = get_type_hints(schema, include_extras=True), _attribute_docstrings(schema)
    for item in fields(schema):
        default = None if item.default is MISSING else item.default
        hint, value = hints[item.name], values.get(item.name, default)
        sections = (part for part in get_args(hint) if isinstance(part, type) and is_dataclass(part))
        hint = next(sections, hint)  # of an extra, or null
        if is_dataclass(hint):
            assert isinstance(hint, type)
            yield from _schema_settings(hint, value or {}, f"{section}{item.name}.")
        elif item.name not in WITHOUT_SCHEMA:
            kind, text = type_name(hint), about.get(item.name, "")
            yield {"name": section + item.name, "type": kind, "default": value, "about": text}


def _attribute_docstrings(schema: type) -> dict[str, str]:
    """Field -> the string below it, which Python does not keep."""
    definition = ast.parse(inspect.getsource(schema)).body[0]
    assert isinstance(definition, ast.ClassDef)
    return {
        field.target.id: " ".join(note.value.value.split())
        for field, note in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(note, ast.Expr)
        and isinstance(note.value, ast.Constant)
        and isinstance(note.value.value, str)
    }
