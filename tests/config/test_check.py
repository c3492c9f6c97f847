"""Reading configs: types, ranges, and errors that name the key and a remedy."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest

from qa_arch.config.check import Range, convert, read
from qa_arch.errors import ConfigError


@dataclass(frozen=True)
class Inner:
    depth: Annotated[int, Range(1, 4)]
    rate: Annotated[float, Range(0, above=True)] = 0.5


@dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner
    mode: Literal["fast", "slow"] = "fast"
    share: Annotated[float, Range(0, 1)] | None = None
    count: Literal["all"] | Annotated[int, Range(1)] = "all"
    names: list[str] = field(default_factory=list)
    table: dict[str, dict[str, Any]] = field(default_factory=dict)
    flag: bool = False


VALID = {"name": "x", "inner": {"depth": 2}}


def test_values_are_converted_and_missing_ones_get_defaults():
    assert read(Outer, VALID) == Outer("x", Inner(2))
    actual = read(Outer, {**VALID, "inner": {"depth": 4, "rate": 2}, "share": 1, "count": 3, "names": ["a"]})
    assert actual == Outer("x", Inner(4, 2.0), share=1.0, count=3, names=["a"])
    assert type(actual.inner.rate) is type(actual.share) is float
    assert [convert(str | list[str] | None, value, "x") for value in ("a", ["a"], None)] == ["a", ["a"], None]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nmae": 1}, "unknown setting 'nmae' (did you mean 'name'?)"),
        ({"inner": {"depth": 2, "dept": 3}}, "unknown setting 'inner.dept' (did you mean 'inner.depth'?)"),
        ({"zzz": 1}, "unknown setting 'zzz' (known: count, flag, inner, mode, name, names, share, table)"),
        ({"inner": 3}, "inner: expected a mapping, got 3"),
        ({"name": 3}, "name: expected a string, got 3"),
        ({"inner": {"depth": 0}}, "inner.depth: 0 is out of range, it must be >= 1 and <= 4"),
        ({"inner": {"depth": True}}, "inner.depth: expected an integer, got True"),
        ({"inner": {"depth": 2, "rate": 0}}, "inner.rate: 0.0 is out of range, it must be > 0"),
        ({"inner": {"depth": 2, "rate": float("inf")}}, "inner.rate: expected a number, got inf"),
        ({"mode": "fst"}, "mode: 'fst' is not a choice (did you mean 'fast'?)"),
        ({"count": 0}, "count: 0 is not one of all or an integer >= 1"),
        ({"flag": 1}, "flag: expected true or false, got 1"),
        ({"names": ["a", 2]}, "names[1]: expected a string, got 2"),
        ({"table": {"a": 1}}, "table.a: expected a mapping, got 1"),
    ],
)
def test_invalid_values_are_named(change, message):
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        read(Outer, {**VALID, **change})
    assert "\n" not in str(caught.value)
