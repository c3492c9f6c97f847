"""``qa-arch suite``: every system on every set of a list, in one table with paired tests.

A suite is a file: ``sets``, by name, each with the ``data`` that ``--data`` would take, and where wanted the
``unit`` of intervals and ``published`` figures. Runs with weights are scored on the sets that their record
lacks; adopted systems stand beside the sets that they answered.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

import numpy as np

from qa_arch.cli.runs import add_device_options, add_engine, add_format, open_predictor, use_config_dir
from qa_arch.config.check import read, suggest
from qa_arch.config.files import read_yaml
from qa_arch.config.find import SUITES, conf_folder
from qa_arch.data.formats import OnError
from qa_arch.data.input_files import as_list
from qa_arch.data.sources import local, open_passages
from qa_arch.errors import ConfigError, DataError
from qa_arch.metrics.significance import Unit
from qa_arch.records import Runs, SplitFacts, find_runs, read_record
from qa_arch.results.suites import SuiteSet, suite_tables
from qa_arch.results.systems import find_system, group_by_system
from qa_arch.results.tables import print_table
from qa_arch.system.garbage import gc_disabled

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SetFile:
    """A set as a suite's file names it."""

    data: str | list[str]
    unit: Unit | None = None
    published: dict[str, float] = field(default_factory=dict)
    on_error: OnError = "raise"

    @property
    def sources(self) -> list[str]:
        return [local(source) for source in as_list(self.data)]


@dataclass(frozen=True)
class SuiteFile:
    sets: dict[str, SetFile]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example: qa-arch suite shifts runs/squad2 --baseline bert"
    add = parser.add_argument
    add("suite", metavar="SUITE", help=f"{', '.join(_names(conf_folder()))}, or a YAML file of your own")
    add("runs", nargs="*", metavar="RUNS", help="run folders, or folders of runs (default: runs)")
    add("--baseline", metavar="NAME", help="test every system against this one on every set")
    add(
        "--scored-only",
        action="store_true",
        help="score nothing, show what the records hold (default: score runs on the sets they lack)",
    )
    add_format(parser)
    add_device_options(parser)
    add_engine(parser)


def run(args: argparse.Namespace) -> int:
    """Score what is missing, then print the tables; what was left out is said on stderr."""
    suite = _read(args.suite, use_config_dir(args.config_dir, args.trust))
    all_runs = find_runs(args.runs or ["runs"])
    runs: Runs = [
        (folder, record)
        for folder, record in all_runs
        if record.status == "ok" and not (record.selects or record.pretrains)
    ]
    sets = [_opened(name, given) for name, given in suite.sets.items()]
    if not args.scored_only:
        runs = _score(runs, sets, suite, args)
    systems = group_by_system(runs)
    baseline = find_system(systems, args.baseline).label if args.baseline else None
    print_table(*suite_tables(systems, sets, baseline, title=Path(args.suite).stem), form=args.format)
    return 0


def _opened(name: str, given: SetFile) -> SuiteSet:
    questions = open_passages(given.sources, name=name, on_error=given.on_error)
    passages = np.array(questions.passage_numbers) if given.unit == "passage" else None
    numbers = np.array(questions.contrast_numbers)
    contrasts = numbers if len(np.unique(numbers)) < len(numbers) else None
    return SuiteSet(name, SplitFacts.of(questions), given.unit, passages, contrasts, given.published)


def _score(runs: Runs, sets: Sequence[SuiteSet], suite: SuiteFile, args: argparse.Namespace) -> Runs:
    """Score every trained run on the sets it lacks; the runs as they are recorded then. What may not be
    scored (articles it was trained on, a closed dev set) is said and left out."""
    lacking = {
        folder: [test.name for test in sets if test.split_in(record) is None]
        for folder, record in runs
        if not record.adopted
    }
    if not any(lacking.values()):
        return runs
    with gc_disabled():
        from qa_arch.cli.watch import watching
        from qa_arch.evaluation.runs import Request, evaluate_runs

    for folder, names in lacking.items():
        load = cache(partial(open_predictor, [str(folder)], args))
        for name in names:
            doing = f"{folder} on {name}"
            log.info("scoring %s", doing)
            data, on_error = suite.sets[name].sources, suite.sets[name].on_error
            request = Request(runs=[str(folder)], data=data, on_error=on_error, trust=args.trust)
            try:
                evaluate_runs(request, load, partial(watching, doing, "rows"))
            except (ConfigError, DataError) as error:
                log.warning("left out: %s: %s", doing, error)
    return [(folder, read_record(folder)) for folder, _ in runs]


def _read(name: str, config_dir: str | None) -> SuiteFile:
    """The suite of that name, or in that file; ConfigError says what is wrong with it."""
    folders = [conf_folder(), *([Path(config_dir)] if config_dir else [])]
    places = [folder / SUITES / f"{name}.yaml" for folder in folders]
    path = next((place for place in (Path(name), *places) if place.is_file()), None)
    if path is None:
        known = [known for folder in folders for known in _names(folder)]
        raise ConfigError(f"{name}: no such suite or file{suggest(name, known)}")
    content = read_yaml(path)
    try:
        suite = read(SuiteFile, content)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    if not suite.sets:
        raise ConfigError(f"{path}: names no set; give sets: NAME: data: SOURCE")
    return suite


def _names(folder: Path) -> list[str]:
    return sorted(path.stem for path in (folder / SUITES).glob("*.yaml"))
