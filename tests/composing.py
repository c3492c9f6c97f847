"""Compose each choice of config groups once per process.

Hydra takes 0.14 s per config, and the suite composes thousands, most of which differ in single settings only.
What takes the time depends only on the chosen files: their order, and merging them. The rest, such as
applying single settings, is left to Hydra. Of folders outside the checkout nothing is kept.
"""

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hydra._internal import config_loader_impl, defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra.core.object_type import ObjectType

ROOT = Path(__file__).resolve().parents[1]


def use_caches(patch: pytest.MonkeyPatch) -> None:
    """Give Hydra the caches below."""
    for place, name, cached in (
        (ConfigRepository, "load_config", read_once),
        (config_loader_impl, "create_defaults_list", listed_once),
        (ConfigLoaderImpl, "_compose_config_from_defaults_list", merged_once),
    ):
        patch.setattr(place, name, cached(getattr(place, name)))


def is_ours(source: Any) -> bool:
    return source.scheme() != "file" or Path(source.path).is_relative_to(ROOT)


def read_once(load: Callable[..., Any]) -> Callable[..., Any]:
    """``ConfigRepository.load_config``, called once per file of the checkout.

    Composition changes what it is given, so every call unpickles a copy, which takes a third of the time.
    """
    pickled: dict[tuple[str, str], bytes] = {}

    def load_config(repository: Any, config_path: str) -> Any:
        source = repository._find_object_source(config_path, ObjectType.CONFIG)
        if source is None or not is_ours(source):
            return load(repository, config_path)
        key = (source.path, config_path)
        if key not in pickled:
            pickled[key] = pickle.dumps(load(repository, config_path))
        return pickle.loads(pickled[key])

    return load_config


def listed_once(create: Callable[..., Any]) -> Callable[..., Any]:
    """``create_defaults_list``, called once per choice of groups."""
    results: dict[tuple[Any, ...], Any] = {}

    def create_once(
        repo: Any, config_name: str | None, overrides_list: list[Any], prepend_hydra: bool, skip_missing: bool
    ) -> Any:
        if not all(map(is_ours, repo.get_sources())):
            return create(repo, config_name, overrides_list, prepend_hydra, skip_missing)
        settings = defaults_list.Overrides(repo, overrides_list).config_overrides
        choices = (
            override.input_line
            for override in overrides_list
            if not override.is_sweep_override() and override not in settings
        )
        paths = tuple(source.path for source in repo.get_sources())
        key = (paths, config_name, prepend_hydra, skip_missing, *choices)
        if key not in results:
            results[key] = create(repo, config_name, overrides_list, prepend_hydra, skip_missing)
        return replace(results[key], config_overrides=settings)

    return create_once


def merged_once(merge: Callable[..., Any]) -> Callable[..., Any]:
    """``_compose_config_from_defaults_list``, called once per list of files."""
    pickled: dict[tuple[Any, ...], bytes] = {}

    def merge_once(loader: Any, defaults: list[Any], repo: Any) -> Any:
        if not all(map(is_ours, repo.get_sources())):
            return merge(loader, defaults, repo)
        key = (tuple(source.path for source in repo.get_sources()), repr(defaults))
        if key not in pickled:
            pickled[key] = pickle.dumps(merge(loader, defaults, repo))
        return pickle.loads(pickled[key])

    return merge_once
