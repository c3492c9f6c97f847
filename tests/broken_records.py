"""Records and other JSON files with one field changed, for tests of readers."""

import json
from copy import deepcopy
from pathlib import Path
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


def change_json(path: Path, **values: Any) -> None:
    """Set fields of a JSON file: ``config__features__stride=5``."""
    content = json.loads(path.read_text())
    for name, value in values.items():
        content = changed(content, tuple(name.split("__")), value)
    path.write_text(json.dumps(content))


def change_record(folder: Path, **values: Any) -> None:
    """Set fields of the ``run.json`` in ``folder``."""
    change_json(folder / "run.json", **values)
