"""``qa-arch inspect``: what a model looks at, layer by layer and head by head, over one question."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from qa_arch.cli.runs import add_device_options, open_span_predictor, require_runs
from qa_arch.data.sources import open_passages, usage
from qa_arch.errors import ConfigError, DataError
from qa_arch.extras.inspection.attention import add_head_options
from qa_arch.types.text import Example

if TYPE_CHECKING:
    from qa_arch.extras.inspection.layers import AttentionLayer, Inspection


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run_folder", metavar="RUN", help="a run folder, or a checkpoint: its folder or hub id")
    add("--question", metavar="TEXT")
    add("--context", metavar="TEXT", help="the text to read")
    add("--data", nargs="+", metavar="SOURCE", help=f"in place of --question and --context: {usage()}")
    add("--id", metavar="ID", help="the question of --data")
    add_head_options(parser)
    add("--window", type=int, metavar="N", help="of a long text, from 1 (default: that with the answer)")
    add("--html", metavar="F.html", help="write a page with all layers and heads")
    add("--json", action="store_true", help="print all probabilities of the layers and heads chosen")
    add_device_options(parser)


def run(args: argparse.Namespace) -> int:
    """Print a table, or JSON; write a page where one is named."""
    given = {"--question": args.question, "--context": args.context, "--data": args.data, "--id": args.id}
    named = [option for option, value in given.items() if value is not None]
    if named not in (["--question", "--context"], ["--data", "--id"]):
        raise ConfigError("name a question: --question TEXT --context TEXT, or --data SOURCE --id ID")
    require_runs([args.run_folder])
    example = _example(args)
    predictor = open_span_predictor([args.run_folder], args)
    from qa_arch.extras.inspection.layers import ALL, inspection_table, select_heads
    from qa_arch.extras.inspection.reading import inspect_question
    from qa_arch.results.tables import print_table

    inspection = inspect_question(predictor, example, window=args.window)
    chosen = select_heads(inspection.layers, args.layer, args.head)
    if args.html:
        _write_page(inspection, args.html, chosen[0][0], None if args.head == ALL else args.head)
    if args.json:
        print(json.dumps(inspection.as_dict(chosen), ensure_ascii=False))
    elif not args.html:
        print_table(inspection_table(inspection, chosen))
    return 0


def _example(args: argparse.Namespace) -> Example:
    """The question that the arguments name; DataError where the set has none of that id."""
    if args.data is None:
        return Example("question", args.question, args.context)
    questions = open_passages(args.data)
    example = next((example for example in questions.examples if example.id == args.id), None)
    if example is None:
        raise DataError(f"--id: {questions.name} has no question {args.id}")
    return example


def _write_page(inspection: Inspection, out: str, layer: AttentionLayer, head: str | None) -> None:
    from qa_arch.extras.inspection.layers import MEAN
    from qa_arch.extras.inspection.page import write_inspection

    path, left_out = write_inspection(inspection, out, opened=(layer, head or MEAN))
    if left_out:
        print(
            f"left out to keep the page small: layers {', '.join(left_out)}; --layer names the wanted",
            file=sys.stderr,
        )
    print(
        f"{path}: {len(inspection.layers) - len(left_out)} layers, {inspection.window_text}", file=sys.stderr
    )
