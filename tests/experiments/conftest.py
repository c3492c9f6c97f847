"""The scripts of ``experiments/`` as modules."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture(scope="session")
def script() -> Callable[[str], ModuleType]:
    """``script("real_part/build.py")``, which may import what lies beside it, as when it is run."""

    def load(place: str) -> ModuleType:
        path = EXPERIMENTS / place
        spec = importlib.util.spec_from_file_location(place.replace("/", "_").removesuffix(".py"), path)
        module = importlib.util.module_from_spec(spec)
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(path.parent)
            sys.modules[spec.name] = module  # dataclasses look their module up
            spec.loader.exec_module(module)
        return module

    return load
