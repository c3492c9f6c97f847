"""``qa-arch EXTRA evaluate RUN``: score a run of a recipe on another set, and add that to its record."""

from __future__ import annotations

import argparse
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from qa_arch.cli.runs import (
    DEVICE,
    PERMISSION,
    add_options,
    keep_inputs,
    open_predictor,
    print_scores,
    refuse_options,
)
from qa_arch.config.schema import recipe_of
from qa_arch.config.target import TRUSTED
from qa_arch.errors import RunError
from qa_arch.models.checkpoint_files import run_config
from qa_arch.process import gc_disabled
from qa_arch.records import DEV, Points, read_trained
from qa_arch.terminal import watching


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
    keep_inputs(args)
    folder, record = Path(args.run_folder), read_trained(args.run_folder)
    config = run_config(record.config)
    if (entry := recipe_of(config.model)) is None:
        raise RunError(f"{folder}: finds spans; score it with qa-arch evaluate --run")
    with gc_disabled():
        from qa_arch.evaluation import Permission, open_permitted, score_opened

        recipe, source = entry.load(), import_module(entry.data)
    permission = Permission(args.final, args.experiments, args.allow_overlap)
    opened = open_permitted(
        record,
        config,
        permission,
        dev=lambda dev: source.open_set(config, dev, DEV),
        data=partial(source.open_set, config, args.data) if args.data else None,
    )

    def heuristics() -> Points | None:
        trusted = (*TRUSTED, *args.trust)
        return recipe.heuristics(config, opened.questions, trusted) if config.references else None

    scored, split = score_opened(
        folder,
        record,
        opened,
        partial(open_predictor, [args.run_folder], args),
        partial(watching, "predicting", "rows"),
        permission=permission,
        data=args.data,
        score=recipe.score,
        heuristics=heuristics,
        facts_of=recipe.facts_of,
    )
    print_scores(scored, split, args)
    return 0
