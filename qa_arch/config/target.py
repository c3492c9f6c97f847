"""Resolution of ``_target_``: import a class by its dotted name, from trusted packages only.

Run folders may come from anyone, and an import executes code. So a config may only name targets under
``qa_arch.`` and ``baselines.``, or under a prefix given on the command line (``--trust mypackage``).
"""

from __future__ import annotations

import importlib
import inspect
import typing
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from qa_arch.config.check import convert, suggest
from qa_arch.errors import ConfigError

TRUSTED = ("qa_arch", "baselines")
DESCRIPTIVE = frozenset({"_target_", "task", "name"})
"""Keys of a section that describe it and are no arguments of its class."""
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class Given:
    """Marks a parameter that is a class of its own, chosen by a ``_target_`` inside the section.

    The parameter receives ``partial(class, **settings)`` and is called with the arguments named here, which
    the section may not name: ``Annotated[Callable[..., Head], Given(("in_dim", "sentinel"))]``.
    """

    arguments: tuple[str, ...]


def require_trusted(section: Any, trusted: Sequence[str], where: str = "") -> None:
    """Raise ConfigError for the first ``_target_`` in ``section`` that ``locate`` would not import."""
    if not isinstance(section, Mapping):
        return
    key = f"{where}._target_" if where else "_target_"
    for name, value in section.items():
        if name != "_target_":
            require_trusted(value, trusted, f"{where}.{name}" if where else name)
        elif not isinstance(value, str) or not all(part.isidentifier() for part in value.split(".")):
            raise ConfigError(f"{key}: {value!r} is not a dotted class name")
        elif not _under(value, trusted):
            raise ConfigError(
                f"{key}: '{value}' is outside {', '.join(trusted)} and was not imported;"
                f" if you trust it, add --trust {value.split('.')[0]}"
            )


def locate(target: Any, trusted: Sequence[str] = TRUSTED, where: str = "") -> type:
    """The class that ``target`` names; ConfigError where it is not trusted or does not exist.

    ``where`` is the section that names it, for messages.
    """
    require_trusted({"_target_": target}, trusted, where)
    key = f"{where}._target_" if where else "_target_"
    module_name, _, name = target.rpartition(".")
    try:
        located = getattr(importlib.import_module(module_name), name)
    except (ModuleNotFoundError, AttributeError) as error:
        raise ConfigError(f"{key}: '{target}' cannot be imported ({error})") from error
    # What that module itself imported from elsewhere is not trusted with it.
    if not isinstance(located, type) or not _under(f"{located.__module__}.", trusted):
        raise ConfigError(f"{key}: '{target}' is not a class of that module")
    return located


def _under(name: str, prefixes: Sequence[str]) -> bool:
    return any(name.startswith(f"{prefix.rstrip('.')}.") for prefix in prefixes)


def accepts(target: type, argument: str) -> bool:
    """Whether the class takes ``argument`` by name."""
    return argument in _parameters(target)


def _parameters(target: type) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(target).parameters
    except ValueError:  # of builtin classes some have none
        return {}


def arguments(
    target: type,
    section: Mapping[str, Any],
    given: Collection[str],
    *,
    where: str = "model",
    trusted: Sequence[str] = TRUSTED,
    descriptive: Collection[str] = DESCRIPTIVE,
) -> dict[str, Any]:
    """The keyword arguments of ``target`` in the config section ``where``, checked against its signature.

    ``given`` are the parameters that the caller supplies and a config may not name; ``descriptive`` are keys
    of the section that are no arguments. A parameter marked by ``Given`` arrives as a partial of the class
    that its own section names. A class with ``**kwargs`` takes any other key.
    """
    signature = _parameters(target)
    open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in signature.values())
    parameters = {name: p for name, p in signature.items() if p.kind not in VARIADIC}
    hints = _hints(target)
    settable = [name for name in parameters if name not in given]
    taken: dict[str, Any] = {}
    # Nested sections last: they may repeat a plain setting, which is then the one that a message names.
    for key in sorted(section, key=lambda key: _given(hints.get(key)) is not None):
        if key in descriptive:
            continue
        if key in given or (key not in settable and not open_ended):
            raise ConfigError(f"unknown setting '{where}.{key}'{suggest(key, settable, where)}")
        value, place = section[key], f"{where}.{key}"
        hint = hints.get(key, Any) if key in settable else Any
        if (inner := _given(hint)) is not None:
            taken[key] = None if value is None else _partial(value, inner, place, trusted)
        else:
            taken[key] = convert(hint, value, place)
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


def _given(hint: Any) -> Given | None:
    parts = (hint, *typing.get_args(hint))  # of ``Annotated[...] | None`` as well
    notes = (note for part in parts for note in getattr(part, "__metadata__", ()))
    return next((note for note in notes if isinstance(note, Given)), None)


def _partial(section: Any, inner: Given, where: str, trusted: Sequence[str]) -> partial:
    """The class that a section inside a section names, with its settings; nothing is made yet."""
    if not isinstance(section, Mapping):
        raise ConfigError(f"{where}: expected a mapping with a _target_, got {section!r}")
    target = locate(section.get("_target_"), trusted, where)
    if lacking := [name for name in inner.arguments if not accepts(target, name)]:
        raise ConfigError(f"{where}._target_: {target.__name__} does not take {', '.join(lacking)}")
    return partial(target, **arguments(target, section, inner.arguments, where=where, trusted=trusted))
