"""Scripts of ``experiments/``, loaded as modules."""

from collections.abc import Callable
from types import ModuleType

import pytest
from scripts import load


@pytest.fixture(scope="session")
def script() -> Callable[[str], ModuleType]:
    return load
