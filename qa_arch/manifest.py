"""Extras: optional capabilities, each in a folder that can be deleted.

An extra is a package with a module ``manifest`` that defines ``EXTRA``. Those of this project are in
``qa_arch/extras/NAME/`` (tests in ``tests/extras/NAME/``, documentation in ``docs/extras/NAME.md``); other
packages register theirs through an entry point::

    [project.entry-points."qa_arch.extras"]
    mine = "mypackage.manifest:EXTRA"

The core calls ``extras()`` and never imports an extra by name. Manifests give modules as strings and import
nothing heavy, because ``qa-arch --help`` reads all of them.
"""

from __future__ import annotations

import logging
import pkgutil
from abc import ABC, abstractmethod
from argparse import ArgumentParser
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from qa_arch.errors import one_line

log = logging.getLogger(__name__)
GROUP = "qa_arch.extras"
BROKEN: list[str] = []
"""Parts of extras that were left out, and why."""


@dataclass(frozen=True)
class Command:
    """A subcommand of ``qa-arch``: a module with ``add_arguments(parser)`` and ``run(args) -> exit code``."""

    module: str
    """``MODULE``, or ``MODULE:NAME`` for the functions ``add_NAME_arguments`` and ``run_NAME``."""
    summary: str
    """One line of ``qa-arch --help``."""

    def prepare(self, parser: ArgumentParser) -> None:
        """Import the module, add the command's arguments to ``parser`` and set its default ``run``."""
        path, _, name = self.module.partition(":")
        module = import_module(path)
        getattr(module, f"add_{name}_arguments" if name else "add_arguments")(parser)
        parser.set_defaults(run=getattr(module, f"run_{name}" if name else "run"))


@dataclass(frozen=True)
class Recipe:
    """Training of models that find no spans, from data to record; see ``training.run.OpenRun``.

    Its module defines ``train(run)``, and what other commands need: ``check(config, trusted)`` of model, loss
    and heuristics; ``assemble(config, trusted)`` of data and model, and ``fitting(config, parts)``, what each
    rank fits of these; ``count_parameters(config, trusted)``; ``load(folder, record, *, device, precision,
    trusted)``; and for a command of ``cli.evaluate`` ``facts_of(questions, table)`` and ``score``, as that of
    ``evaluation``, and ``heuristics(config, questions, trusted)``. The predictor that ``load`` returns then
    has ``table(questions)`` and ``rank(questions, *, table, watch)``.
    """

    module: str
    loss: Mapping[str, Any]
    """Default loss section."""
    purpose: str
    """What its runs do in place of answering questions, and with which commands; ``{run}`` is the folder."""
    objective: str
    """Calibration score that a search maximises."""
    data: str
    """Module with ``require_files(config)``, which raises DataError for the first file that is missing or of
    another kind, and ``identity(source)``, neither of which reads the data; ``load_splits(config)``; and for
    a command of ``cli.evaluate`` ``open_set(config, source, name="")``."""
    encoder: bool = False
    """Whether its models have an encoder, which its runs save for others to start from."""
    unread: Collection[str] = ()
    """Settings, or sections (``decode.*``), that it does not read, and that are refused if typed."""

    def load(self) -> Any:
        """Import the module."""
        return import_module(self.module)


class ModelChange(ABC):
    """Base of a section of settings that changes the model of the run ``init_from`` before it is trained on.

    Its fields are a choice of the config group of the section's name.
    """

    @property
    @abstractmethod
    def label(self) -> str:
        """What is added to the model's name."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """Dotted setting -> value that such a run has unless the command line chooses another."""
        return {}

    @abstractmethod
    def check(self, config: Any) -> None:
        """Raise an error for what cannot work, before any weights are loaded."""

    @abstractmethod
    def change(self, config: Any, parts: Any) -> Any:
        """The ``SpanParts`` with the changed model; ``parts.model`` may be modified."""


@dataclass(frozen=True)
class Metrics:
    """Scores that ``qa-arch evaluate`` adds to the official ones of a prediction file."""

    module: str
    """Module with ``score(questions, texts, nbest)``: answers by question id and, if given, the probabilities
    of each question's candidates -> values for the JSON output."""
    summary: str
    """One line of ``qa-arch evaluate --help``."""


@dataclass(frozen=True)
class Extra:
    """A package's additions to ``qa-arch``; omitted fields add nothing."""

    name: str
    commands: Mapping[str, Command] = field(default_factory=dict)
    recipes: Mapping[str, Recipe] = field(default_factory=dict)
    """By the ``task`` in a model's YAML."""
    sections: Mapping[str, type] = field(default_factory=dict)
    """Section of the config -> the dataclass of its settings, perhaps a ``ModelChange``. It is None where no
    choice states it."""
    formats: Mapping[str, str] = field(default_factory=dict)
    """Scheme of a data source -> ``MODULE`` or ``MODULE:NAME`` of its ``data.files.Format``, by default
    ``FORMAT``."""
    families: Mapping[str, str] = field(default_factory=dict)
    """Family of a random encoder -> module that registers its classes with transformers when imported."""
    columns: str | None = None
    """Module whose ``COLUMNS`` are added to those of every table. It may define ``EPOCH`` and ``PROTOCOLS``,
    which are added to those of ``results.columns``."""
    attention: str | None = None
    """Module that computes attention maps for the service; see ``extras/inspection/reading.py``."""
    kernels: str | None = None
    """Module that decides where a kernel may compute the match-LSTM; see ``extras/kernels/proof.py``."""
    metrics: Mapping[str, Metrics] = field(default_factory=dict)
    """By the option of ``evaluate`` that adds them: ``text-metrics`` for ``--text-metrics``."""
    conf: Path | None = None
    """Folder with choices for the config groups."""


@cache
def extras() -> tuple[Extra, ...]:
    """All installed extras: those of this package, then those of entry points, each sorted by name.

    An entry point that cannot be loaded gives a warning: ``--help`` and ``doctor`` need to work without it.
    """
    spec = find_spec(GROUP)
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    bundled = [
        import_module(f"{GROUP}.{module.name}.manifest").EXTRA
        for module in pkgutil.iter_modules(folders)
        if module.ispkg
    ]
    external = [extra for point in entry_points(group=GROUP) for extra in _load(point)]
    return (*sorted(bundled, key=lambda extra: extra.name), *sorted(external, key=lambda extra: extra.name))


def from_extras(
    kind: Literal["commands", "recipes", "sections", "formats", "families", "metrics"],
    own: Collection[str] = (),
) -> dict[str, Any]:
    """Merge one field of all extras; a name in ``own`` or in an earlier extra is left out with a warning."""
    merged: dict[str, Any] = {}
    for extra in extras():
        for name, value in getattr(extra, kind).items():
            if name in own or name in merged:
                leave_out(f"extra {extra.name}: '{name}' of its {kind} already exists")
            else:
                merged[name] = value
    return merged


def model_changes() -> dict[str, type[ModelChange]]:
    """Section -> its class, for the sections that change the model of ``init_from``."""
    return {name: kind for name, kind in from_extras("sections").items() if issubclass(kind, ModelChange)}


def leave_out(problem: str) -> None:
    """Warn once about a part of an extra that cannot be used; ``doctor`` reports it too."""
    if problem not in BROKEN:
        BROKEN.append(problem)
        log.warning("qa-arch: %s; it is left out: repair or uninstall its package", problem)


def packages() -> list[str]:
    """Packages outside qa_arch that add extras."""
    return [point.module.partition(".")[0] for point in entry_points(group=GROUP)]


def module_of(kind: Literal["attention", "kernels"]) -> Any:
    """Import the module that the first extra with this field names; None if no extra has it."""
    module = next((name for extra in extras() if (name := getattr(extra, kind))), None)
    return import_module(module) if module else None


def _load(point: Any) -> list[Extra]:
    try:
        extra = point.load()
        if isinstance(extra, Extra):
            return [extra]
        problem = "is not a qa_arch.manifest.Extra"
    except Exception as error:  # whatever another package raises, the message names that package
        problem = f"cannot be loaded ({type(error).__name__}: {one_line(error)})"
    leave_out(f"entry point {point.value} of group {GROUP}: {problem}")
    return []
