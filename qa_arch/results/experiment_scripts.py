"""Running ``experiments/*/tables.py``, which says what an experiment shows: see ``results.experiments``.

The file is code of the checkout and is executed: only that of an experiment folder which was named
(``qa-arch tables experiments/demo``, ``--all``), never one among records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from qa_arch.errors import ConfigError, QaArchError
from qa_arch.results.columns import Table

TABLES = "tables.py"


def experiment_tables(folder: Path) -> list[Table]:
    """The tables of one experiment, less what nothing is recorded or published for yet.

    Executes ``tables.py`` in the folder. Raises RunError where there are records and a table names others,
    ConfigError where the file cannot be executed or asks for what there is not.
    """
    return [table for table in _call(folder, _module(folder).tables) if table.rows]


def experiment_figures(folder: Path) -> list[Path]:
    """Draw the experiment's figures beside its table; those of which nothing is recorded are left out."""
    draw = getattr(_module(folder), "figures", None)
    return [] if draw is None else [path for paths in _call(folder, draw) for path in paths]


def _module(folder: Path) -> ModuleType:
    path = folder / TABLES
    spec = spec_from_file_location(f"experiment_{folder.name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    with _named(path):
        spec.loader.exec_module(module)
    if not hasattr(module, "tables"):
        raise ConfigError(f"{path}: defines no tables(folder); see qa_arch/results/experiments.py")
    return module


def _call(folder: Path, function: Callable[[Path], Any]) -> Any:
    with _named(folder / TABLES):
        return function(folder)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Errors of the checkout's own code name its file; what the records say wrong has named theirs."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    except QaArchError:
        raise
    except Exception as error:
        raise ConfigError(f"{path}: cannot be executed ({type(error).__name__}: {error})") from error
