"""Extras: capabilities that someone can do without, each a folder that can be deleted.

An extra is a package with a module ``manifest`` that defines ``EXTRA``. Those of this project lie in
``qa_arch/extras/NAME/`` (their tests in ``tests/extras/NAME/``, their page in ``docs/extras/NAME.md``), and a
package of anybody's offers the same object through an entry point::

    [project.entry-points."qa_arch.extras"]
    mine = "mypackage.manifest:EXTRA"

The core asks ``extras()`` and imports no extra by name. A manifest names modules as text and imports nothing
heavy, because ``qa-arch --help`` reads all of them.
"""

from __future__ import annotations

import pkgutil
from argparse import ArgumentParser
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from qa_arch.errors import QaArchError

GROUP = "qa_arch.extras"
Reads = Literal["passages", "candidates", "classes", "corpus"]
"""The kinds of data of a task: questions with one of the first three, or texts to pre-train on."""


@dataclass(frozen=True)
class Command:
    """A subcommand of ``qa-arch``: a module with ``add_arguments(parser)`` and ``run(args) -> exit code``."""

    module: str
    """``MODULE``, or ``MODULE:NAME`` of one with ``add_NAME_arguments`` and ``run_NAME``."""
    summary: str
    """One line of ``qa-arch --help``."""

    def prepare(self, parser: ArgumentParser) -> None:
        """Import the module; give ``parser`` the command's arguments and, as ``run``, its function."""
        module, _, name = self.module.partition(":")
        inside = import_module(module)
        getattr(inside, f"add_{name}_arguments" if name else "add_arguments")(parser)
        parser.set_defaults(run=getattr(inside, f"run_{name}" if name else "run"))


@dataclass(frozen=True)
class TaskEntry:
    """The facts about a task that a config needs before the module that implements it is imported."""

    module: str
    """``MODULE`` or ``MODULE:NAME`` of its ``tasks.Task``; the name is ``TASK`` where none is given."""
    reads: Reads
    inputs: tuple[str, ...]
    """Arguments of the task's models that come from other sections: ``encoder``, ``vectors``."""
    loss: Mapping[str, Any]
    """The loss section of a config that names none."""
    distils: bool = False
    """Whether its models can learn from a teacher."""
    sources: str = "qa_arch.data.sources"
    """Its ``require_present(source, setting)`` and ``identity(source)`` know the task's data unread."""


@dataclass(frozen=True)
class Metrics:
    """Scores that ``qa-arch evaluate`` adds to the official ones of a prediction file."""

    module: str
    """One with ``score(questions, texts, nbest)``: the answers by question id, and where they are given the
    probabilities of the candidates of each -> values for the JSON output."""
    summary: str
    """One line of ``qa-arch evaluate --help``."""


@dataclass(frozen=True)
class Extra:
    """The additions of a package to ``qa-arch``; a field that is left out adds nothing."""

    name: str
    commands: Mapping[str, Command] = field(default_factory=dict)
    tasks: Mapping[str, TaskEntry] = field(default_factory=dict)
    """By the name that a model's YAML gives as its ``task``."""
    formats: Mapping[str, str] = field(default_factory=dict)
    """Scheme of a data source -> module whose ``FORMAT`` is the ``data.formats.Format``."""
    families: Mapping[str, str] = field(default_factory=dict)
    """Family of a random encoder -> module that registers its classes with transformers when imported."""
    columns: str | None = None
    """Module whose ``COLUMNS`` stand behind those of every table."""
    attention: str | None = None
    """Module that gives the service its attention; see ``extras/inspection/reading.py``."""
    kernels: str | None = None
    """Module that knows where a kernel may compute the match-LSTM; see ``extras/kernels/proof.py``."""
    metrics: Mapping[str, Metrics] = field(default_factory=dict)
    """By the option of ``evaluate`` that adds them: ``text-metrics`` for ``--text-metrics``."""
    contracts: str | None = None
    """Module whose ``CONTRACTS`` say, by task, what ``check-model`` holds a model of it to."""
    conf: Path | None = None
    """Folder with choices for the config groups."""


@cache
def extras() -> tuple[Extra, ...]:
    """Every extra at hand: those of this package, then those of entry points, sorted by name."""
    spec = find_spec(GROUP)
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    own = [
        import_module(f"{GROUP}.{module.name}.manifest").EXTRA
        for module in pkgutil.iter_modules(folders)
        if module.ispkg
    ]
    others = [_offered(point) for point in entry_points(group=GROUP)]
    return (*sorted(own, key=lambda extra: extra.name), *sorted(others, key=lambda extra: extra.name))


def offered(kind: Literal["commands", "tasks", "formats", "families", "metrics"]) -> dict[str, Any]:
    """One of the fields of all extras, joined; of two extras with the same name the first keeps it."""
    joined: dict[str, Any] = {}
    for extra in extras():
        for name, value in getattr(extra, kind).items():
            joined.setdefault(name, value)
    return joined


def module_of(kind: Literal["attention", "kernels"]) -> Any:
    """The module that does what only one can do, of the first extra that names one; None where none does."""
    module = next((name for extra in extras() if (name := getattr(extra, kind))), None)
    return import_module(module) if module else None


def _offered(point: Any) -> Extra:
    try:
        extra = point.load()
    except Exception as error:  # whatever a foreign package raises, the message names the package
        raise QaArchError(
            f"entry point {point.value} of group {GROUP}: cannot be loaded ({error})"
        ) from error
    if not isinstance(extra, Extra):
        raise QaArchError(f"entry point {point.value} of group {GROUP}: is no qa_arch.manifest.Extra")
    return extra
