"""``qa-arch inspect``: attention of a model over a question and its text."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from qa_arch.cli.runs import (
    DEVICE,
    add_options,
    open_predictor,
    open_reader,
    page_file,
    refuse_options,
    require_runs,
)
from qa_arch.config.target import require_packages
from qa_arch.data.sources import open_passages, usage
from qa_arch.errors import ConfigError, DataError
from qa_arch.types import Example

if TYPE_CHECKING:
    from qa_arch.extras.inspection.layers import Inspection

NO_QUESTION = (
    "give a question: --question TEXT --context TEXT, or --data SOURCE --id ID; or to a model that writes"
    " --context TEXT alone"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run_folder", metavar="RUN", help="a run folder, or a checkpoint (folder or hub id)")
    add("--question", metavar="TEXT")
    add("--context", metavar="TEXT", help="the text to read")
    add("--data", nargs="+", metavar="SOURCE", help=f"instead of --question and --context: {usage()}")
    add("--id", metavar="ID", help="question id in --data")
    add(
        "--layer",
        metavar="L",
        help="layer: 1 (next to the embeddings) and up; all; or match (the match-LSTM)",
    )
    add(
        "--head",
        metavar="H",
        help="head: 1 and up; mean (default); all; for the match-LSTM forward or backward",
    )
    add(
        "--window",
        type=int,
        metavar="N",
        help="window of a long text, from 1 (default: the window with the answer)",
    )
    page = "write a page with heatmaps (default: of all layers and heads)"
    add("--html", type=page_file, metavar="F.html", help=page)
    add("--json", action="store_true", help="print all probabilities of the selected layers and heads")
    add_options(parser, *DEVICE)


def run(args: argparse.Namespace) -> int:
    """Print a table or JSON; write a page with ``--html``."""
    options = {"--question": args.question, "--context": args.context, "--data": args.data, "--id": args.id}
    given = [option for option, value in options.items() if value is not None]
    if given not in (["--question", "--context"], ["--context"], ["--data", "--id"]):
        raise ConfigError(NO_QUESTION)
    require_runs([args.run_folder])
    if args.html:
        require_packages("report", "--html")
    inspection = _inspection(args)
    from qa_arch.extras.inspection.layers import ALL, inspection_table, select_heads, write_page
    from qa_arch.results.tables import print_table

    chosen = select_heads(inspection.layers, args.layer, args.head)
    if args.html:
        shown = chosen if args.layer or args.head else select_heads(inspection.layers, ALL, ALL)
        path = write_page(inspection, args.html, shown)
        print(f"{path}: {inspection.answer_text}; {inspection.window_text}", file=sys.stderr)
    if args.json:
        print(json.dumps(inspection.as_dict(chosen), ensure_ascii=False))
    elif not args.html:
        print_table(inspection_table(inspection, chosen))
    return 0


def _inspection(args: argparse.Namespace) -> Inspection:
    if args.data is not None:
        questions = open_passages(args.data, use="answering")
        by_id = {example.id: example for example in questions.examples}
        if args.id not in by_id:
            raise DataError(f"--id: {questions.name} has no question {args.id}")
        example = by_id[args.id]
    elif args.question is not None:
        example = Example("question", args.question, args.context)
    else:
        writer = open_predictor([args.run_folder], args)
        if not hasattr(writer, "attend"):
            raise ConfigError(NO_QUESTION)
        refuse_options(args, ("window",), "is for questions; leave it out for a model that writes")
        from qa_arch.extras.inspection.reading import inspect_written

        return inspect_written(writer, args.context)
    reader = open_reader([args.run_folder], args)
    from qa_arch.extras.inspection.reading import inspect_question

    return inspect_question(reader, example, window=args.window)
