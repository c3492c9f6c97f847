"""``qa-arch list``: what can be chosen and set, with its documentation."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from dataclasses import MISSING
from pathlib import Path
from textwrap import fill
from typing import Any

from qa_arch.cli.runs import add_config_dir, use_config_dir
from qa_arch.config.catalogue import choices, own_settings, settings
from qa_arch.config.check import suggest, suggest_setting
from qa_arch.config.find import config_folders, groups
from qa_arch.config.schema import Config, SweepSettings
from qa_arch.errors import ConfigError

KINDS = {"models": "model", "experiments": "experiment", "data": "data", "encoders": "encoder"}
"""What may be listed -> the config group; every other group has its own name."""
SETTINGS = "settings"
WITHOUT_SCHEMA = ("model", "loss", "logger")
"""Sections whose settings are the arguments of the class that their choice names."""
INDENT = " " * 4
MOST = 3
"""Choices named of those that have a setting."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "examples: qa-arch list models lstm; qa-arch list settings batch; qa-arch list trainer"
    parser.add_argument(
        "what",
        metavar="WHAT",
        help=f"{', '.join(KINDS)}, {SETTINGS}, or any config group (trainer, loss, ...)",
    )
    parser.add_argument("filter", nargs="*", metavar="FILTER", help="words that name or description have")
    parser.add_argument("--json", action="store_true", help="print a list of JSON objects")
    add_config_dir(parser)


def run(args: argparse.Namespace) -> int:
    """Print one entry for each match; ConfigError where there is none."""
    folders = config_folders(use_config_dir(args.config_dir, ()))
    entries = _settings(folders, args.config_dir) if args.what == SETTINGS else _choices(args.what, folders)
    words = [word.casefold() for word in args.filter]
    matches = [entry for entry in entries if all(word in _text(entry) for word in words)]
    if not matches:
        names = [entry["name"] for entry in entries]
        hint = (suggest_setting if args.what == SETTINGS else suggest)(args.filter[0], names)
        raise ConfigError(f"{args.what}: none matches '{' '.join(args.filter)}'{hint}")
    if args.json:
        print(json.dumps(matches, indent=2, ensure_ascii=False))
    else:
        _print(matches)
    return 0


def _choices(what: str, folders: Sequence[Path]) -> list[dict[str, Any]]:
    group = KINDS.get(what, what)
    known = groups(folders)
    if group not in known:
        raise ConfigError(f"list: nothing is called '{what}'{suggest(what, {*KINDS, SETTINGS, *known})}")
    return [{"name": f"{group}={name}", "about": text} for name, text in choices(group, folders).items()]


def _settings(folders: Sequence[Path], config_dir: str | None) -> list[dict[str, Any]]:
    """The settings of the schema with their values in the default config, and those of classes."""
    from qa_arch.cli.compose import compose

    composed = compose([], config_dir)
    entries: list[dict[str, Any]] = []
    for item in settings(Config):
        value = _at(composed, item.name, item.default)
        if item.name in WITHOUT_SCHEMA:
            for key, having in own_settings(item.name, folders).items():
                entries.append({"name": f"{item.name}.{key}", "about": _of(item.name, having)})
        elif not isinstance(value, dict):
            entries.append({"name": item.name, "type": item.type, "default": value, "about": item.about})
    for item in settings(SweepSettings, "sweep."):
        default = None if item.default is MISSING else item.default
        entries.append({"name": item.name, "type": item.type, "default": default, "about": item.about})
    return entries


def _at(composed: Any, name: str, default: Any) -> Any:
    for key in name.split("."):
        if not isinstance(composed, dict) or key not in composed:
            return None if default is MISSING else default
        composed = composed[key]
    return composed


def _of(group: str, having: Sequence[str]) -> str:
    more = f" and {len(having) - MOST} more" if len(having) > MOST else ""
    first = sorted(having, key=lambda name: "/" in name)  # variants behind what they vary
    return f"a setting of {group}={', '.join(first[:MOST])}{more}"


def _text(entry: dict[str, Any]) -> str:
    return " ".join(map(str, entry.values())).casefold()


def _print(entries: Sequence[dict[str, Any]]) -> None:
    width = min(100, shutil.get_terminal_size().columns)
    for entry in entries:
        facts = [entry["name"]]
        if "type" in entry:
            facts.append(f"{entry['type']}; default {json.dumps(entry['default'], ensure_ascii=False)}")
        print("  ".join(facts))
        if entry["about"]:
            text = entry["about"].replace("``", "")
            print(fill(text, width, initial_indent=INDENT, subsequent_indent=INDENT, break_on_hyphens=False))
