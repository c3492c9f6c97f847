"""Hydra composes each choice of groups once in a process; single settings are applied to a copy of it.

Hydra takes 0.14 s for a config, which the suite asks for thousands of times. What is unusual (folders
outside the checkout, additions, deletions, grids) is composed by Hydra as ever.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import OverrideType
from hydra.errors import ConfigCompositionException
from omegaconf.errors import OmegaConfBaseException

from qa_arch.cli.compose import _search_path
from qa_arch.config.find import config_folders, groups

ROOT = Path(__file__).resolve().parents[1]


def sharing(hydra_compose: Callable[..., Any]) -> Callable[..., Any]:
    """``hydra_compose``, which is called once for each choice of groups."""
    kept: dict[tuple[str, ...], Any] = {}
    known: dict[tuple[Path, ...], set[str]] = {}

    def compose(name: str, overrides: Sequence[str] = ()) -> Any:
        folders = tuple(config_folders())
        if list(overrides[:1]) != _search_path(folders):  # a folder of the user's own, or none at all
            return hydra_compose(name, overrides=overrides)
        if folders not in known:
            known[folders] = set(groups(folders))
        search, *words = overrides
        parsed = OverridesParser.create().parse_overrides(words)
        usual = all(
            one.type is OverrideType.CHANGE and not one.is_sweep_override() and not one.is_hydra_override()
            for one in parsed
        )
        if not usual or not all(folder.is_relative_to(ROOT) for folder in folders):
            return hydra_compose(name, overrides=overrides)
        choices = [one.input_line for one in parsed if one.key_or_group in known[folders]]
        key = (name, search, *choices)
        if key not in kept:
            kept[key] = hydra_compose(name, overrides=[search, *choices])
        config = deepcopy(kept[key])
        try:
            settings = [one for one in parsed if one.input_line not in choices]
            ConfigLoaderImpl._apply_overrides_to_config(settings, config)
        except OmegaConfBaseException as error:
            raise ConfigCompositionException().with_traceback(sys.exc_info()[2]) from error
        return config

    return compose
