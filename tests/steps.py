"""Compression steps as a config gives them."""

from typing import Any

from qa_arch.config.check import from_mapping
from qa_arch.config.schema import METHODS, Step


def step(method: str, **settings: Any) -> Step:
    """A compression step of ``method``; ConfigError for an unknown setting."""
    return from_mapping(METHODS[method], settings)
