"""The search for reference cycles, held off where many objects are made and none of them is in one."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """While entered, no search starts by itself; as ``@uncollected()``, while the function runs.

    New objects start one again and again, and it looks at all that live: where all of them are kept, it finds
    nothing, and the time of a large set grows faster than its size. Importing torch, transformers and
    Lightning leaves some 700,000.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
