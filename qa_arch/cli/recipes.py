"""``qa-arch EXTRA evaluate RUN``: score a run of a recipe on another set, and add that to its record."""

from __future__ import annotations

import argparse
import logging
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from qa_arch.cli.runs import DEVICE, PERMISSION, add_options, open_predictor, print_scores, refuse_options
from qa_arch.config.schema import recipe_of
from qa_arch.config.target import TRUSTED
from qa_arch.errors import ConfigError, RunError
from qa_arch.models.checkpoint_files import run_config
from qa_arch.process import gc_disabled
from qa_arch.records import (
    DEV,
    WRITING,
    changing,
    questions_folder,
    read_trained,
    write_questions,
    write_record,
)

log = logging.getLogger(__name__)


def add_evaluate(commands: Any, run_help: str, data_help: str) -> None:
    """Add the command ``evaluate`` to the subcommands of an extra."""
    parser = commands.add_parser("evaluate", help="score a run on another set, and add that to its record")
    parser.set_defaults(action=_evaluate)
    add = parser.add_argument
    add("run_folder", metavar="RUN", help=run_help)
    add("--data", nargs="+", metavar="SOURCE", help=f"{data_help} (default: the run's dev set)")
    add("--json", action="store_true", help="print the scores as JSON, not as a table")
    add("--out", metavar="F", help="also write the scores to this file, as JSON")
    add_options(parser, *PERMISSION, *DEVICE)


def _evaluate(args: argparse.Namespace) -> int:
    """Check that the set may be scored; score it, write rows and record, and print the scores."""
    if not args.final:
        refuse_options(args, ("experiments",), "is for --final, which registration and log belong to")
    folder, record = Path(args.run_folder), read_trained(args.run_folder)
    config = run_config(record.config)
    if (entry := recipe_of(config.model)) is None:
        raise RunError(f"{folder}: finds spans; score it with qa-arch evaluate --run")
    if not args.data and config.data.dev is None:
        raise ConfigError("data.dev: the run's config names no dev set; give one with --data")
    with gc_disabled():
        from qa_arch.cli.watch import watching
        from qa_arch.evaluation import require_permitted, split_name
        from qa_arch.provenance import dev_access, experiment_folders, log_dev_access, require_registered

        recipe, source, dev = entry.load(), import_module(entry.data), None
    if config.data.dev is not None and (not args.data or not config.data.open_dev):
        dev = source.open_set(config, config.data.dev, DEV)
    questions: Any = source.open_set(config, args.data) if args.data else dev
    permission = {"final": args.final, "allow_overlap": args.allow_overlap}
    is_dev, overlap = require_permitted(record, config, questions, dev, questions.titles, **permission)
    split = DEV if is_dev else split_name(questions, record)
    experiments = experiment_folders(config.name, args.experiments) if args.final else []
    for experiment in experiments:
        require_registered(experiment, record, questions.fingerprint)
    predictor, accesses = open_predictor([args.run_folder], args), []
    if args.final:
        accesses.append(dev_access(folder.resolve().name, record.run_hash, questions))
        log.info("%s: one more access to dev", log_dev_access(experiments[0], accesses[0]))
    with watching("predicting", "rows") as watch:
        table = predictor.table(questions)
        points, rows, _ = recipe.score(predictor, questions, table, folder, split, watch)
    references = recipe.heuristics(config, questions, (*TRUSTED, *args.trust)) if config.references else {}
    if overlap:
        points = {name: replace(point, overlap=overlap) for name, point in points.items()}
    with changing(folder, patience=WRITING) as current:  # another set may have been scored meanwhile
        if current is None or current.created != record.created:
            raise RunError(f"{folder}: is no longer the run that was scored; score it again")
        hashed = write_questions(questions_folder(folder, split), rows)
        scored = replace(
            current,
            scores={**current.scores, split: points},
            rows={**current.rows, split: hashed},
            data={**current.data, split: recipe.facts_of(questions, table)},
            references={**current.references, split: references},
            dev_accesses=(*current.dev_accesses, *accesses),
        )
        write_record(folder, scored)
    print_scores(scored, split, args)
    return 0
