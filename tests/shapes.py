"""Switch off jaxtyping's shape checks where a test traces a model: a trace has symbols in place of ints."""

from collections.abc import Iterator
from contextlib import contextmanager

from jaxtyping import config


@contextmanager
def unchecked_shapes() -> Iterator[None]:
    config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        config.update("jaxtyping_disable", False)
