"""Steps of compression as a config gives them."""

from __future__ import annotations

from typing import Any

from qa_arch.config.check import read
from qa_arch.config.compression_steps import METHODS, Step


def step(method: str, **settings: Any) -> Step:
    """The step of that method; ConfigError for a setting that it does not have."""
    return read(METHODS[method], settings)
