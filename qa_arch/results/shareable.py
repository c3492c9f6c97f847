"""What a page or a published record tells of the machine that wrote it: paths from the working folder on, or
their last parts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PATH = re.compile(r"""(?<![\w./}~$…])/(?:[^\s/:;,'"()]+/)*([^\s/:;,'"()]+/[^\s/:;,'"()]+)""")
"""An absolute path of two parts or more; its last two are the group."""


def shareable(value: Any) -> Any:
    """``value`` (JSON) with every absolute path in its texts shortened.

    A path below the working folder goes on from there and can still be copied into a command; of any other
    the last two parts are left, behind an ellipsis.
    """
    if isinstance(value, dict):
        return {key: shareable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shareable(item) for item in value]
    if not isinstance(value, str):
        return value
    return PATH.sub(r"…/\1", value.replace(f"{Path.cwd()}/", ""))
