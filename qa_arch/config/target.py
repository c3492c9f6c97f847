"""``_target_`` without Hydra: import a class by its dotted name, from trusted packages only.

A run folder may come from anybody, and importing a name executes code. So a config may only name
targets under ``qa_arch.`` and ``baselines.``, or under a prefix that the user gave on the command
line (``--trust mypackage``).
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
"""Keys of a model's YAML that describe it and are no arguments of its class."""
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def locate(target: Any, trusted: Sequence[str] = TRUSTED) -> type:
    """The class that ``target`` names; ConfigError where it is not trusted or does not exist."""
    if not isinstance(target, str) or not all(part.isidentifier() for part in target.split(".")):
        raise ConfigError(f"_target_: {target!r} is not a dotted class name")
    if not _under(target, trusted):
        raise ConfigError(
            f"_target_: '{target}' is outside {', '.join(trusted)} and was not imported;"
            f" if you trust it, add --trust {target.split('.')[0]}"
        )
    module_name, _, name = target.rpartition(".")
    try:
        found = getattr(importlib.import_module(module_name), name)
    except (ModuleNotFoundError, AttributeError) as error:
        raise ConfigError(f"_target_: '{target}' cannot be imported ({error})") from error
    if not isinstance(found, type) or not _under(f"{found.__module__}.", trusted):  # or imported there
        raise ConfigError(f"_target_: '{target}' is not a class of that module")
    return found


def _under(name: str, prefixes: Sequence[str]) -> bool:
    return any(name.startswith(f"{prefix.rstrip('.')}.") for prefix in prefixes)


def accepts(target: type, argument: str) -> bool:
    """Whether the class takes ``argument`` by name."""
    return argument in inspect.signature(target).parameters


def arguments(
    target: type,
    section: Mapping[str, Any],
    given: typing.Collection[str],
    *,
    where: str = "model",
    descriptive: typing.Collection[str] = DESCRIPTIVE,
) -> dict[str, Any]:
    """The keyword arguments of ``target`` in the config section ``where``, checked against its signature.

    ``given`` are the parameters that the caller supplies and a config may not name; ``descriptive`` are keys
    of the section that are no arguments. A class with ``**kwargs`` takes any other key.
    """
    signature = inspect.signature(target).parameters
    open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in signature.values())
    parameters = {name: p for name, p in signature.items() if p.kind not in VARIADIC}
    hints = _hints(target)
    settable = [name for name in parameters if name not in given]
    taken: dict[str, Any] = {}
    for key, value in section.items():
        if key in descriptive:
            continue
        if key in given or (key not in settable and not open_ended):
            raise ConfigError(f"unknown setting '{where}.{key}'{suggest(key, settable)}")
        taken[key] = convert(hints.get(key, Any) if key in settable else Any, value, f"{where}.{key}")
    missing = [n for n in settable if parameters[n].default is inspect.Parameter.empty and n not in taken]
    if missing:
        raise ConfigError(f"{where}: {target.__name__} also needs {', '.join(missing)}")
    return taken


def _hints(target: type) -> dict[str, Any]:
    """Types of the constructor's parameters; empty where some exist for type checkers only."""
    try:
        return typing.get_type_hints(inspect.unwrap(target.__init__), include_extras=True)  # type: ignore[misc]
    except NameError:
        return {}
