"""``qa-arch``: one subcommand a module; nothing heavy is imported before it is needed."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys

from qa_arch.errors import QaArchError

COMMANDS = {
    "train": "train a model, or several side by side, and record what came out",
    "evaluate": "score predictions with the official arithmetic, or a trained run on a data set",
    "predict": "answer every question of a file with a trained run",
    "ask": "answer one question about one text",
    "data": "write data sets (the embedded synthetic one)",
    "stats": "describe data sets: examples, negatives, articles, lengths",
    "params": "count a model's parameters by block, without loading weights",
    "tables": "print a table of recorded runs",
    "doctor": "say what is installed, what can be reached, and how to mend the rest",
}
INTERRUPTED = 130


def main(argv: list[str] | None = None) -> int:
    """Run one subcommand; the exit code is 0 for success, 2 for wrong usage or settings."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = next((word for word in arguments if not word.startswith("-")), None)
    parser = _parser(command)
    args = parser.parse_args(arguments)
    if args.command is None:
        parser.print_help()
        return 0
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        return int(args.run(args))
    except QaArchError as error:
        if args.debug:
            raise
        print(f"qa-arch: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("qa-arch: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away (`| head`); Python must not complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser(command: str | None) -> argparse.ArgumentParser:
    """The parser; only the subcommand that was named is imported and fills in its arguments."""
    parser = argparse.ArgumentParser(
        prog="qa-arch", description="Train, score and compare span-extraction models."
    )
    parser.add_argument("--version", action="version", version=_version())
    choices = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, summary in COMMANDS.items():
        sub = choices.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        sub.add_argument("--debug", action="store_true", help="show the traceback of an error")
        if name == command:
            module = importlib.import_module(f"qa_arch.cli.{name}")
            module.add_arguments(sub)
            sub.set_defaults(run=module.run)
    return parser


def _version() -> str:
    from qa_arch import __version__

    return f"qa-arch {__version__}"


if __name__ == "__main__":
    sys.exit(main())
