"""What a page or a published record tells of the machine that wrote it: paths from the working folder on, or
their last parts."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATH = re.compile(r"""(?<![\w./}~$…])/(?:[^\s/:;,'"()]+/)*([^\s/:;,'"()]+/[^\s/:;,'"()]+)""")
"""An absolute path of two parts or more; its last two are the group."""


def map_texts(value: Any, change: Callable[[str, str], str], where: str = "") -> Any:
    """``value`` (JSON) with ``change(text, where)`` for every text; ``where`` goes on with its keys."""
    if isinstance(value, dict):
        return {key: map_texts(item, change, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list):
        return [map_texts(item, change, where) for item in value]
    return change(value, where) if isinstance(value, str) else value


def shareable(value: Any) -> Any:
    """``value`` (JSON) with every absolute path in its texts shortened.

    A path below the working folder goes on from there and can still be copied into a command; of any other
    the last two parts are left, behind an ellipsis.
    """
    working_folder = f"{Path.cwd()}/"
    return map_texts(value, lambda text, _: PATH.sub(r"…/\1", text.replace(working_folder, "")))
