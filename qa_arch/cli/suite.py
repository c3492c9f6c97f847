"""``qa-arch suite``: score every system on several test sets, with paired tests.

A suite is a YAML file with ``sets`` by name, each with its ``data`` as for ``--data`` and optionally the
``unit`` of intervals and ``published`` scores. Trained runs are scored on the sets that their record lacks;
adopted systems appear for the sets that they answered.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from qa_arch.cli.runs import DEVICE, add_options, open_predictor
from qa_arch.config.check import from_mapping, suggest
from qa_arch.config.find import SUITES, conf_folder, use_config_dir
from qa_arch.data.files import OnError, as_list
from qa_arch.data.sources import local, open_passages
from qa_arch.errors import ConfigError, DataError, RunError, named
from qa_arch.files import read_yaml
from qa_arch.metrics.significance import Unit
from qa_arch.process import gc_disabled
from qa_arch.records import RunRecord, Runs, SplitFacts, find_runs, read_record, require_rows
from qa_arch.results.suite import OWN_DEV, SuiteSet, suite_tables
from qa_arch.results.systems import find_system, group_by_system
from qa_arch.results.tables import print_table
from qa_arch.terminal import watching
from qa_arch.types import Language

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SetFile:
    """A set of a suite's file."""

    data: str | list[str]
    unit: Unit | None = None
    published: dict[str, float] = field(default_factory=dict)
    on_error: OnError = "raise"
    language: Language = "en"

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
    scored_only = "only show recorded scores (default: first score runs on the sets that they lack)"
    add("--scored-only", action="store_true", help=scored_only)
    add_options(parser, "--format", "--json", *DEVICE)


def run(args: argparse.Namespace) -> int:
    """Score runs on missing sets, then print the tables; sets that were left out are logged to stderr."""
    suite = _read_suite(args.suite, use_config_dir(args.config_dir, args.trust))
    all_runs = find_runs(args.runs or ["runs"], read_run=read_record)  # ``_score`` mends what does not fit
    runs: Runs = [
        (folder, record) for folder, record in all_runs if record.status == "ok" and record.finds_spans
    ]
    sets = [_open_set(name, entry) for name, entry in suite.sets.items()]
    names: dict[str | None, str] = {}
    for test in sets:
        if (other := names.setdefault(test.facts.fingerprint, test.name)) != test.name:
            raise ConfigError(
                f"{args.suite}: sets.{other} and sets.{test.name} hold the same questions, and their tests"
                " would count twice; leave one out"
            )
    if not args.scored_only:
        runs = _score(runs, sets, suite, args)
    systems = group_by_system(runs)
    baseline = find_system(systems, args.baseline).label if args.baseline else None
    print_table(*suite_tables(systems, sets, baseline, title=Path(args.suite).stem), form=args.format)
    return 0


def _open_set(name: str, entry: SetFile) -> SuiteSet:
    questions = open_passages(
        entry.sources, name=name, on_error=entry.on_error, use="scoring", language=entry.language
    )
    passages = np.array(questions.passage_numbers) if entry.unit == "passage" else None
    numbers = np.array(questions.contrast_numbers)
    contrasts = numbers if len(np.unique(numbers)) < len(numbers) else None  # None: no question has any
    return SuiteSet(name, SplitFacts.of(questions), entry.unit, passages, contrasts, entry.published)


def _score(runs: Runs, sets: Sequence[SuiteSet], suite: SuiteFile, args: argparse.Namespace) -> Runs:
    """Score every trained run on the sets that its record lacks, and return the updated runs.

    Sets that a run may not be scored on (training articles, a held-out dev set), or can not (a checkpoint
    that has changed since), are logged and left out.
    """
    missing = {
        folder: [test.name for test in sets if not _is_scored(folder, record, test)]
        for folder, record in runs
        if not record.adopted
    }
    if not any(missing.values()):
        return runs
    with gc_disabled():
        from qa_arch.evaluation import evaluate_run

    for folder, names in missing.items():
        load = cache(partial(open_predictor, [str(folder)], args))  # once for all of its sets
        for name in names:
            pair = f"{folder} on {name}"
            log.info("scoring %s", pair)
            entry, watch = suite.sets[name], partial(watching, pair, "rows")
            options: Any = {"on_error": entry.on_error, "language": entry.language, "trust": args.trust}
            try:
                evaluate_run(folder, load, watch, data=entry.sources, **options)
            except (ConfigError, DataError, RunError) as error:
                log.warning(
                    "left out: %s: %s (options are those of qa-arch evaluate --run %s)", pair, error, folder
                )
    return [(folder, read_record(folder)) for folder, _ in runs]


def _is_scored(folder: Path, record: RunRecord, test: SuiteSet) -> bool:
    split = test.split_in(record)
    if split is None:
        return False
    try:
        require_rows(folder, record, split)
    except RunError:
        return False
    return True


def _read_suite(name: str, config_dir: str | None) -> SuiteFile:
    """Read a suite by name or path; raises ConfigError if it does not exist or is invalid."""
    folders = [conf_folder(), *([Path(config_dir)] if config_dir else [])]
    paths = [Path(name), *(folder / SUITES / f"{name}.yaml" for folder in folders)]
    path = next(filter(Path.is_file, paths), None)
    if path is None:
        known = [known for folder in folders for known in _names(folder)]
        raise ConfigError(f"{name}: no such suite or file{suggest(name, known)}")
    content = read_yaml(path)
    with named(str(path)):
        suite = from_mapping(SuiteFile, content)
    if not suite.sets:
        raise ConfigError(f"{path}: has no sets; add sets: NAME: data: SOURCE")
    if OWN_DEV in suite.sets:
        raise ConfigError(f"{path}: sets.{OWN_DEV}: is the column of the runs' dev sets; choose another name")
    return suite


def _names(folder: Path) -> list[str]:
    return sorted(path.stem for path in (folder / SUITES).glob("*.yaml"))
