"""Scripts of ``experiments/``, loaded as modules."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

EXPERIMENTS = Path(__file__).parents[1] / "experiments"


def load(name: str) -> ModuleType:
    """``load("real_part/build.py")``: the module, which may import its neighbours as when it is run."""
    path = EXPERIMENTS / name
    spec = importlib.util.spec_from_file_location(name.replace("/", "_").removesuffix(".py"), path)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(path.parent)
        sys.modules[spec.name] = module  # dataclasses look up their module
        spec.loader.exec_module(module)
    return module
