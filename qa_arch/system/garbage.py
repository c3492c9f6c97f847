"""Python's garbage collector, switched off while many objects without reference cycles are created."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_disabled() -> Iterator[None]:
    """Disable automatic garbage collection in the ``with`` block or the decorated function.

    New objects trigger collections that visit every live object. If all new objects stay alive, these find
    nothing and make the run time of a large set superlinear. Importing torch, transformers and Lightning
    leaves some 700,000 objects alive.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
