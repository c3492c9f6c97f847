"""Compose each choice of config groups once per process, and apply single settings to a copy.

Hydra takes 0.14 s per config, and the suite composes thousands. Unusual overrides (folders outside the
checkout, additions, deletions, grids) are left to Hydra, which reads each file of the checkout once.
"""

import pickle
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

from qa_arch.config.compose import _search_path
from qa_arch.config.find import config_folders, groups

ROOT = Path(__file__).resolve().parents[1]


def cached(hydra_compose: Callable[..., Any]) -> Callable[..., Any]:
    """``hydra_compose`` with a cache: called once per choice of groups."""
    composed: dict[tuple[str, ...], Any] = {}
    group_names: dict[tuple[Path, ...], set[str]] = {}

    def compose(name: str, overrides: Sequence[str] = (), **options: Any) -> Any:
        folders = tuple(config_folders())
        if list(overrides[:1]) != _search_path(folders):  # the user's own folder, or none
            return hydra_compose(name, overrides=overrides, **options)
        if folders not in group_names:
            group_names[folders] = set(groups(folders))
        search, *remaining = overrides
        parsed = OverridesParser.create().parse_overrides(remaining)
        is_usual = all(
            override.type is OverrideType.CHANGE
            and not override.is_sweep_override()
            and not override.is_hydra_override()
            for override in parsed
        )
        if not is_usual or not all(folder.is_relative_to(ROOT) for folder in folders):
            return hydra_compose(name, overrides=overrides, **options)
        choices = [
            override.input_line for override in parsed if override.key_or_group in group_names[folders]
        ]
        key = (name, search, *choices, *options)
        if key not in composed:
            composed[key] = hydra_compose(name, overrides=[search, *choices], **options)
        config = deepcopy(composed[key])
        try:
            settings = [override for override in parsed if override.input_line not in choices]
            ConfigLoaderImpl._apply_overrides_to_config(settings, config)
        except OmegaConfBaseException as error:
            raise ConfigCompositionException().with_traceback(sys.exc_info()[2]) from error
        return config

    return compose


def read_once(load: Callable[..., Any]) -> Callable[..., Any]:
    """``ConfigRepository.load_config`` that parses each file once, unless it searches folders of the user.

    Composition changes what it is given, so every call unpickles a copy, which takes a third of the time.
    """
    pickled: dict[tuple[str, ...], bytes] = {}

    def load_config(repository: Any, config_path: str) -> Any:
        sources = repository.get_sources()
        if not all(Path(source.path).is_relative_to(ROOT) for source in sources if source.scheme() == "file"):
            return load(repository, config_path)
        key = (config_path, *(source.path for source in sources))
        if key not in pickled:
            pickled[key] = pickle.dumps(load(repository, config_path))
        return pickle.loads(pickled[key])

    return load_config
