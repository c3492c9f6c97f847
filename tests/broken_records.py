"""Records with a single field set wrong, for the tests of readers."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

REMOVED = object()


def changed(base: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of ``base`` with the field at ``path`` set to ``value``, or removed."""
    copy = deepcopy(base)
    if not path:
        return value
    parent = copy
    for key in path[:-1]:
        parent = parent[key]
    if value is REMOVED:
        del parent[path[-1]]
    else:
        parent[path[-1]] = value
    return copy
