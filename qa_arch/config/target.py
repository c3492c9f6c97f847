"""Resolution of ``_target_``: import a class by its dotted name, from trusted packages only.

Run folders may come from anyone, and an import executes code. So a config may only name targets under
``qa_arch.`` and ``baselines.``, or under a prefix given on the command line (``--trust mypackage``).
"""

from __future__ import annotations

import importlib
import inspect
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from qa_arch.config.check import convert, suggest
from qa_arch.errors import ConfigError

TRUSTED = ("qa_arch", "baselines")
DESCRIPTIVE = frozenset({"_target_", "task", "name"})
"""Keys of a model's YAML that are not arguments of its class."""


def locate(target: Any, trusted: Sequence[str] = TRUSTED) -> type:
    """Class named ``target``; ConfigError if it is not trusted or does not exist."""
    if not isinstance(target, str) or not all(part.isidentifier() for part in target.split(".")):
        raise ConfigError(f"_target_: {target!r} is not a dotted class name")
    if not _under(target, trusted):
        raise ConfigError(
            f"_target_: '{target}' is outside {', '.join(trusted)} and was not imported;"
            f" if you trust it, add --trust {target.split('.')[0]}"
        )
    module_name, _, name = target.rpartition(".")
    try:
        cls = getattr(importlib.import_module(module_name), name)
    except (ModuleNotFoundError, AttributeError) as error:
        raise ConfigError(f"_target_: '{target}' cannot be imported ({error})") from error
    if not isinstance(cls, type) or not _under(f"{cls.__module__}.", trusted):  # or imported there
        raise ConfigError(f"_target_: '{target}' is not a class of that module")
    return cls


def _under(name: str, prefixes: Sequence[str]) -> bool:
    return any(name.startswith(f"{prefix.rstrip('.')}.") for prefix in prefixes)


def accepts(target: type, argument: str) -> bool:
    """Whether the class has a parameter ``argument``."""
    return argument in inspect.signature(target).parameters


def arguments(target: type, section: Mapping[str, Any], supplied: typing.Collection[str]) -> dict[str, Any]:
    """The keyword arguments of ``target`` in a config section, checked against its signature.

    ``supplied`` are parameters that the caller passes itself and a config may not set.
    """
    parameters = inspect.signature(target).parameters
    hints = typing.get_type_hints(inspect.unwrap(target.__init__), include_extras=True)  # type: ignore[misc]
    settable = [name for name in parameters if name not in supplied]
    converted: dict[str, Any] = {}
    for key, value in section.items():
        if key in DESCRIPTIVE:
            continue
        if key not in settable:
            raise ConfigError(f"unknown setting 'model.{key}'{suggest(key, settable)}")
        converted[key] = convert(hints.get(key, Any), value, f"model.{key}")
    missing = [n for n in settable if parameters[n].default is inspect.Parameter.empty and n not in converted]
    if missing:
        raise ConfigError(f"model: {target.__name__} also needs {', '.join(missing)}")
    return converted
