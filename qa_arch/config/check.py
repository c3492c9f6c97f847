"""Validation of a plain mapping against a schema of dataclasses.

A range is an annotation (``Annotated[int, Range(1)]``). Every message names the dotted key and the value,
and says what to do.
"""

from __future__ import annotations

import difflib
import math
import types
import typing
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from reprlib import Repr
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from qa_arch.errors import ConfigError

T = TypeVar("T")
MEASURED = "measured"
"""``Annotated[float, MEASURED]``: a number measured in a run, which may be infinite or NaN."""

_REPR = Repr()
_REPR.maxstring = _REPR.maxother = 200
short = _REPR.repr


@dataclass(frozen=True)
class Range:
    """Bounds of a number, inclusive unless ``above`` (lower bound) or ``below`` (upper bound) is set."""

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    below: bool = False

    def contains(self, value: float) -> bool:
        return (value > self.low if self.above else value >= self.low) and (
            value < self.high if self.below else value <= self.high
        )

    @property
    def requirement(self) -> str:
        return f"is out of range, it must be {self}"

    def __str__(self) -> str:
        low = "" if self.low == -math.inf else f"{'> ' if self.above else '>= '}{_bound(self.low)}"
        high = "" if self.high == math.inf else f"{'< ' if self.below else '<= '}{_bound(self.high)}"
        return " and ".join(part for part in (low, high) if part)


@dataclass(frozen=True)
class OneLine:
    """A name that is printed on one line, and cannot control a terminal."""

    requirement: typing.ClassVar = "must be one line without control characters"

    def contains(self, value: str) -> bool:
        return not {"Cc", "Zl", "Zp"} & {*map(unicodedata.category, value)}

    def __str__(self) -> str:
        return "on one line"


@dataclass(frozen=True)
class FolderName(OneLine):
    """A name that becomes a folder within another and cannot lead out of it; ``nested``: or several folders,
    ``a/b``."""

    nested: bool = False
    requirement: typing.ClassVar = "cannot be the name of a folder"

    def contains(self, value: str) -> bool:
        parts = value.split("/")
        inside = (self.nested or len(parts) == 1) and not {"", ".", ".."} & {*parts}
        return inside and super().contains(value)

    def __str__(self) -> str:
        return "that is the name of a folder"


def _bound(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else f"{value:g}"


def key_of(override: str) -> str:
    """Setting or group of an override of Hydra, with or without the + of an addition."""
    return override.lstrip("+").partition("=")[0]


def refuse_repeated(overrides: Sequence[str]) -> None:
    """Raise ConfigError for a setting or choice that two of ``overrides`` give: one would be ignored."""
    given: dict[str, str] = {}
    for override in overrides:
        key = key_of(override)
        if key in given:
            raise ConfigError(f"{given[key]} and {override}: give {key} once (in a sweep: {key}=A,B)")
        given[key] = override


def suggest(name: str, known: typing.Iterable[str], where: str = "", limit: int | None = None) -> str:
    """`` (did you mean 'x'?)`` for a similar known name, else the known names, at most ``limit`` of them.

    ``where`` is the section of the names, so that a suggestion is the full name of a setting.
    """
    known = sorted(known)
    near = _nearest(name, known)
    if near or not known:
        return f" (did you mean '{_join(where, near)}'?)" if near else ""
    rest = ", ..." if limit is not None and len(known) > limit else ""
    return f" (known: {', '.join(known[:limit])}{rest})"


def suggest_setting(name: str, known: typing.Iterable[str]) -> str:
    """``suggest`` among dotted settings: the same key in another section is preferred to a similar key.

    A section of a class has only its own keys, and the class may accept more than its YAML lists.
    """
    known = sorted(known)
    section, _, key = name.rpartition(".")
    if f"{section}._target_" in known:
        keys = [setting.rpartition(".")[2] for setting in known if setting.rpartition(".")[0] == section]
        if near := _nearest(key, keys):
            return f" (did you mean '{section}.{near}'?)"
        return f"; if the class of {section} takes it, add it to its YAML, or write +{name}=..."
    same = [setting for setting in known if setting.rpartition(".")[2] == name.rpartition(".")[2]]
    near = _nearest(name, same, cutoff=0.0) or _nearest(name, known)  # the key itself is right
    if near is None:
        sections = dict.fromkeys(setting.partition(".")[0] for setting in known)
        return f" (known: {', '.join(sections)}; qa-arch list settings shows all)"
    return f" (did you mean '{near}'?)"


def _nearest(name: str, known: typing.Iterable[str], cutoff: float = 0.6) -> str | None:
    folded = {choice.casefold(): choice for choice in known}
    near = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=cutoff)
    return folded[near[0]] if near else None


def from_mapping(schema: type[T], value: Any, where: str = "") -> T:
    """Convert ``value`` to an instance of the dataclass ``schema``; ConfigError names the dotted key.

    A schema may have a mapping ``refused``: key of another program -> what to say of it.
    """
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where or 'config'}: expected a mapping, got {short(value)}")
    hints = _hints(schema)  # type: ignore[arg-type]
    names = {f.name for f in fields(schema)}  # type: ignore[arg-type]
    for key in value:
        if remedy := getattr(schema, "refused", {}).get(key):
            raise ConfigError(f"{_join(where, str(key))}: {remedy}")
        if key not in names:
            raise ConfigError(f"unknown setting '{_join(where, str(key))}'{suggest(str(key), names, where)}")
    arguments = {key: convert(hints[key], item, _join(where, key)) for key, item in value.items()}
    try:
        return schema(**arguments)
    except TypeError as error:
        missing = [
            f.name
            for f in fields(schema)  # type: ignore[arg-type]
            if f.name not in arguments and f.default is f.default_factory  # both are MISSING
        ]
        raise ConfigError(f"{where or 'config'}: missing {', '.join(missing) or error}") from error


@cache
def _hints(schema: type) -> dict[str, Any]:
    return typing.get_type_hints(schema, include_extras=True)


def convert(hint: Any, value: Any, where: str) -> Any:
    """Check ``value`` against the type ``hint``; integers become floats, nothing else is coerced."""
    origin = get_origin(hint)
    if origin is Annotated:
        base, *notes = get_args(hint)
        if MEASURED in notes and isinstance(value, float):  # NaN, too, which is refused below
            return value
        value = convert(base, value, where)
        for note in notes:
            checked = isinstance(note, (Range, OneLine)) and value is not None
            if checked and not note.contains(value):
                raise ConfigError(f"{where}: {value!r} {note.requirement}")
        return value
    if origin in (Union, types.UnionType):
        return _union(get_args(hint), value, where)
    if origin is Literal:
        # 1 == True == 1.0 in Python, so the types are compared, too.
        if value in get_args(hint) and type(value) in {type(choice) for choice in get_args(hint)}:
            return value
        choices = [str(choice) for choice in get_args(hint)]
        raise ConfigError(f"{where}: {value!r} is not a choice{suggest(str(value), choices)}")
    if origin in (list, tuple):
        if not isinstance(value, list):
            raise ConfigError(f"{where}: expected a list, got {short(value)}")
        return origin(convert(get_args(hint)[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where}: expected a mapping, got {short(value)}")
        if len(names := {*map(str, value)}) < len(value):
            twice = next(name for name in names if [*map(str, value)].count(name) > 1)
            raise ConfigError(f"{where}: {twice!r} is given twice, as a text and as another value")
        keys, items = get_args(hint)
        return {
            convert(keys, str(key), where): convert(items, item, _join(where, str(key)))
            for key, item in value.items()
        }
    if is_dataclass(hint):
        return from_mapping(hint, value, where)  # type: ignore[arg-type]
    return _scalar(hint, value, where)


def _union(hints: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in hints:
        return None
    failures = []
    for hint in hints:
        if hint is not type(None):
            try:
                return convert(hint, value, where)
            except ConfigError as error:
                failures.append(error)
    if len(failures) == 1:
        raise failures[0]
    kinds = " or ".join(type_name(hint) for hint in hints)
    raise ConfigError(f"{where}: {short(value)} is not {kinds}")


def _scalar(hint: Any, value: Any, where: str) -> Any:
    if hint is Any or not isinstance(hint, type):  # other types are not checked
        return value
    if hint is float and type(value) is int and abs(value) < 2**1023:  # which a float can hold
        return float(value)
    if hint is int and type(value) is int and abs(value) >= 2**63:  # which neither torch nor numpy can hold
        raise ConfigError(f"{where}: {short(value)} is too large, an integer has 64 bits")
    fits = isinstance(value, hint) and (hint is bool or not isinstance(value, bool))  # a bool is an int
    if not fits or (hint is float and not math.isfinite(value)):
        raise ConfigError(f"{where}: expected {type_name(hint)}, got {short(value)}")
    return value


def type_name(hint: Any) -> str:
    """Describe a type of the schema with its range: ``an integer >= 1 or null``."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        base, *notes = inner
        return " ".join([type_name(base), *map(str, notes)])
    if origin is Literal:
        return "one of " + "|".join(map(str, inner))
    if origin in (Union, types.UnionType):
        return " or ".join(map(type_name, inner))
    if origin in (list, tuple):
        return f"a list (each {type_name(inner[0])})"
    if origin in (dict, Mapping):
        return "a section"
    plain = {int: "an integer", float: "a number", str: "a string", bool: "true or false", type(None): "null"}
    return plain.get(hint, getattr(hint, "__name__", str(hint)))


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key
