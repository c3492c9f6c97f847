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

SETTINGS = "settings"
WITHOUT_SCHEMA = ("model", "loss", "logger")
"""Sections whose settings are the arguments of the class that their choice names."""
INDENT = " " * 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "examples: qa-arch list models lstm; qa-arch list settings batch; qa-arch list loggers"
    parser.add_argument(
        "what",
        nargs="?",
        metavar="WHAT",
        help=f"models, experiments, {SETTINGS} or another of what `qa-arch list` alone names",
    )
    parser.add_argument("filter", nargs="*", metavar="FILTER", help="words that name or description have")
    parser.add_argument("--json", action="store_true", help="print a list of JSON objects")
    add_config_dir(parser)


def run(args: argparse.Namespace) -> int:
    """Print one entry for each match; ConfigError where there is none."""
    folders = config_folders(use_config_dir(args.config_dir, ()))
    if args.what == SETTINGS:
        entries = _settings(folders, args.config_dir)
    else:
        entries = _choices(args.what, folders) if args.what else _everything(folders)
    words = [word.casefold() for word in args.filter]
    texts = [" ".join(map(str, entry.values())).casefold() for entry in entries]
    matches = [
        entry for entry, text in zip(entries, texts, strict=True) if all(word in text for word in words)
    ]
    if not matches:
        names = [entry["name"] for entry in entries]
        hint = (suggest_setting if args.what == SETTINGS else suggest)(args.filter[0], names)
        raise ConfigError(f"{args.what}: none matches '{' '.join(args.filter)}'{hint}")
    if args.json:
        print(json.dumps(matches, indent=2, ensure_ascii=False))
        return 0
    width = min(100, shutil.get_terminal_size().columns)
    for entry in matches:
        default = f"; default {json.dumps(entry['default'], ensure_ascii=False)}" if "type" in entry else ""
        print("  ".join(filter(None, (entry["name"], entry.get("type", "") + default))))
        if text := entry["about"].replace("``", ""):
            print(fill(text, width, initial_indent=INDENT, subsequent_indent=INDENT, break_on_hyphens=False))
    return 0


def _everything(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """The config groups with their choices, and how to find settings."""
    entries = [{"name": SETTINGS, "about": "every setting with its type, default and meaning"}]
    for group, names in groups(folders).items():
        public = ", ".join(name for name in names if not Path(name).name.startswith("_"))
        if group != "special":  # chosen by others
            entries.append({"name": group, "about": f"{group}=NAME: {public}"})
    return entries


def _choices(what: str, folders: Sequence[Path]) -> list[dict[str, Any]]:
    known = groups(folders)
    names = (what, what.removesuffix("s"), what.removesuffix("es"))  # models, losses
    group = next((name for name in names if name in known), None)
    if group is None:
        raise ConfigError(f"list: nothing is called '{what}'{suggest(what, {SETTINGS, *known})}")
    return [{"name": f"{group}={name}", "about": text} for name, text in choices(group, folders).items()]


def _settings(folders: Sequence[Path], config_dir: str | None) -> list[dict[str, Any]]:
    """The settings of the schema with their values in the default config, and those of classes."""
    from qa_arch.cli.compose import compose

    composed = compose([], config_dir)
    entries: list[dict[str, Any]] = []
    for item in (*settings(Config), *settings(SweepSettings, "sweep.")):
        if item.name in WITHOUT_SCHEMA:
            for key, choice in own_settings(item.name, folders).items():
                about = f"a setting of {item.name}={choice}"
                entries.append({"name": f"{item.name}.{key}", "about": about})
            continue
        value: Any = composed
        for key in item.name.split("."):
            missing = None if item.default is MISSING else item.default
            value = value[key] if isinstance(value, dict) and key in value else missing
        if not isinstance(value, dict):
            entries.append({"name": item.name, "type": item.type, "default": value, "about": item.about})
    return entries
