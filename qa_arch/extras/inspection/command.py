"""``qa-arch inspect``, and attention for the service."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from qa_arch.cli.runs import add_device_options, open_span_predictor, require_runs
from qa_arch.data.sources import open_passages, usage
from qa_arch.errors import ConfigError, DataError
from qa_arch.types.text import Example

if TYPE_CHECKING:
    from torch import nn

    from qa_arch.spans.predictor import SpanPredictor
    from qa_arch.types.text import AttentionMap


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run_folder", metavar="RUN", help="a run folder, or a checkpoint: its folder or hub id")
    add("--question", metavar="TEXT")
    add("--context", metavar="TEXT", help="the text to read")
    add("--data", nargs="+", metavar="SOURCE", help=f"in place of --question and --context: {usage()}")
    add("--id", metavar="ID", help="id of a question in --data")
    add(
        "--layer",
        metavar="L",
        help="layer, from 1, the first above the embeddings; all; or match, the match-LSTM",
    )
    add(
        "--head",
        metavar="H",
        help="head, from 1; mean (the default); all; for the match-LSTM forward or backward",
    )
    add(
        "--window",
        type=int,
        metavar="N",
        help="window of a long text, from 1 (default: the one with the answer)",
    )
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
    if args.data is None:
        example = Example("question", args.question, args.context)
    else:
        questions = open_passages(args.data)
        by_id = {example.id: example for example in questions.examples}
        if args.id not in by_id:
            raise DataError(f"--id: {questions.name} has no question {args.id}")
        example = by_id[args.id]
    predictor = open_span_predictor([args.run_folder], args)
    from qa_arch.extras.inspection.layers import ALL, MEAN, inspection_table, select_heads, write_page
    from qa_arch.extras.inspection.reading import inspect_question
    from qa_arch.results.tables import print_table

    inspection = inspect_question(predictor, example, window=args.window)
    chosen = select_heads(inspection.layers, args.layer, args.head)
    if args.html:
        head = MEAN if args.head in (None, ALL) else args.head
        path = write_page(inspection, args.html, chosen[0][0], head)
        print(f"{path}: {inspection.answer_text}; {inspection.window_text}", file=sys.stderr)
    if args.json:
        print(json.dumps(inspection.as_dict(chosen), ensure_ascii=False))
    elif not args.html:
        print_table(inspection_table(inspection, chosen))
    return 0


# What the core calls -------------------------------------------------------------------------------


def shows(model: nn.Module) -> bool:
    """Whether the model has a match-LSTM, whose attention can be shown."""
    from qa_arch.extras.inspection.reading import find_match_lstm

    return find_match_lstm(model) is not None


def attention_of(predictor: SpanPredictor, question: str, context: str) -> AttentionMap:
    """What the match-LSTM looks at, in the window that holds the best span.

    Raises ConfigError for a blank text, RunError where the model has no match-LSTM.
    """
    from qa_arch.extras.inspection.reading import match_attention

    return match_attention(predictor, Example("question", question, context))
