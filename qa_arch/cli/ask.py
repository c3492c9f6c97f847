"""``qa-arch ask``: answer a question about texts, or one question after another."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from qa_arch.cli.runs import add_answer_options, add_engine, add_run_options, open_reader
from qa_arch.errors import ConfigError
from qa_arch.serving.query import Query

if TYPE_CHECKING:
    from qa_arch.cli.conversation import Texts

TOP_K = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_folder", metavar="RUN", help="a run folder")
    parser.add_argument(
        "--question",
        metavar="TEXT",
        help="without it questions are read one after another, from the terminal or line by line from a pipe",
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--context", metavar="TEXT", help="the text to read (default: standard input)")
    source.add_argument(
        "--file",
        nargs="+",
        action="extend",
        metavar="FILE",
        help="UTF-8 text files to read; several are searched for the same question",
    )
    add_answer_options(parser, TOP_K)
    parser.add_argument("--json", action="store_true", help="print a JSON object a question (docs/asking.md)")
    add_run_options(parser)
    add_engine(parser)


def run(args: argparse.Namespace) -> int:
    """Print the answer to ``--question``, or to one question after another, with the best spans."""
    from qa_arch.cli.conversation import Conversation

    options = {
        "top_k": TOP_K if args.top_k is None else args.top_k,
        "max_answer_tokens": args.max_answer_tokens,
        "null_threshold": args.margin,
    }
    Query("", ("",), **options)  # refuses what is out of range before a model is loaded
    texts = _texts(args)
    reader = open_reader([args.run_folder], args)
    conversation = Conversation(reader.answer, texts, options, as_json=args.json)
    if args.question is None:
        conversation.run()
    else:
        conversation.answer(args.question)
    return 0


def _texts(args: argparse.Namespace) -> Texts | None:
    """The texts that the arguments name; None where the user is to give them in the conversation."""
    from qa_arch.cli.conversation import Texts, decode, read_files

    if args.context is not None:
        return Texts((args.context,))
    if args.file:
        return read_files(args.file)
    if args.question is not None:
        return Texts((decode(sys.stdin.buffer.read(), "standard input"),))
    if not sys.stdin.isatty():
        raise ConfigError("no text to read: give --context or --file, as standard input has the questions")
    return None
