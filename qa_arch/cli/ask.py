"""``qa-arch ask``: answer questions about a text, one or many."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from qa_arch import terminal
from qa_arch.cli.runs import DEVICE, RUN_HELP, add_answer_options, add_options, open_reader
from qa_arch.errors import ConfigError, DataError, QaArchError
from qa_arch.files import plain_json
from qa_arch.qa.answers import Answer, Query, plain

TOP_K = 3
COMMANDS = "/file PATH ... reads other texts, /text lets you type one; an empty line or Ctrl-D quits"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "example: qa-arch ask deepset/roberta-base-squad2"
        " --question 'Who wrote it?' --context 'Ada Stone wrote it.'"
    )
    add = parser.add_argument
    add("run_folder", metavar="RUN", help=RUN_HELP)
    question = "the question (default: read questions from the terminal, or one per line from a pipe)"
    add("--question", metavar="TEXT", help=question)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--context", metavar="TEXT", help="the text to read (default: standard input)")
    files = "UTF-8 text files to read; the best answer in any of them is returned"
    source.add_argument("--file", nargs="+", action="extend", metavar="FILE", help=files)
    add_answer_options(parser, TOP_K)
    add("--json", action="store_true", help="print one JSON object per question (docs/asking.md)")
    add_options(parser, "--null-threshold", "--max-question", *DEVICE)


def run(args: argparse.Namespace) -> int:
    """Answer ``--question``, or the questions of standard input, and print the best spans."""
    options = {
        "top_k": TOP_K if args.top_k is None else args.top_k,
        "max_answer_tokens": args.max_answer_tokens,
        "null_threshold": args.null_threshold,
    }
    conversation = Conversation(options, as_json=args.json)
    if args.context is not None:
        conversation.texts = (args.context,)
    elif args.file:
        conversation.read_files(args.file)
    elif sys.stdin.isatty():
        conversation.read_text()
    elif args.question is not None:
        conversation.texts = (_decode(sys.stdin.buffer.read(), "standard input"),)
    else:
        raise ConfigError("no text to read: standard input holds the questions, so give --context or --file")
    if not (args.file or "".join(conversation.texts).strip() or sys.stdin.isatty()):
        source = "standard input" if args.context is None else "--context"
        raise ConfigError(f"{source}: is empty; give a text with --context or --file")
    conversation.query("?" if args.question is None else args.question)  # before the model is loaded
    conversation.reading = open_reader([args.run_folder], args).answer
    if args.question is None:
        conversation.run()
    else:
        conversation.answer(args.question)
    return 0


def _decode(raw: bytes, source: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{source}: byte {error.start} is not UTF-8; convert it to UTF-8 first") from None


class Conversation:
    """Answers questions about the current texts, as readable text or as JSON."""

    reading: Callable[[Sequence[Query]], Sequence[Answer]]

    def __init__(self, options: Mapping[str, Any], *, as_json: bool = False) -> None:
        self.options, self.as_json = options, as_json
        self.texts: tuple[str, ...] = ()
        self.files: tuple[str, ...] = ()
        """Paths of the texts; empty unless they were read from files."""
        self.interactive = sys.stdin.isatty() and sys.stdout.isatty()
        self.console = terminal.console(highlight=False, soft_wrap=True)
        if self.interactive and importlib.util.find_spec("readline"):
            importlib.import_module("readline")  # gives ``input`` line editing and history; writes no file

    def run(self) -> None:
        """Answer the lines of standard input; errors are printed if interactive, else the first is raised."""
        while (line := self._read_line("question> ")) is not None:
            if not line.strip():
                if self.interactive:
                    return
                continue
            try:
                command, *rest = line.split()
                if command == "/file" and rest:
                    self.read_files(rest)
                elif command == "/text":
                    self.read_text()
                elif command.startswith("/"):
                    raise ConfigError(f"{command}: {COMMANDS}")
                else:
                    self.answer(line.strip())
            except QaArchError as error:
                if not self.interactive:
                    raise
                self.console.print(plain(str(error)))

    def read_files(self, paths: Sequence[str]) -> None:
        """Use these files as texts, unchanged: converting line ends would shift the offsets of answers."""
        try:
            self.texts = tuple(_decode(Path(path).read_bytes(), path) for path in paths)
        except OSError as error:
            raise DataError(
                f"{error.filename}: cannot be read ({error.strerror}); check path and permissions"
            ) from None
        self.files = tuple(paths)

    def read_text(self) -> None:
        """Read the text from the lines up to an empty one."""
        if sys.stdin.isatty():
            print("text, then an empty line:", file=sys.stderr)
        lines = []
        while line := self._read_line(""):
            lines.append(line)
        self.texts, self.files = ("\n".join(lines),), ()

    def _read_line(self, prompt: str) -> str | None:
        """Next line without its line end; None at the end of input."""
        if self.interactive:
            try:
                return input(prompt)
            except EOFError:
                self.console.print()
                return None
        raw = sys.stdin.buffer.readline()
        return _decode(raw, "standard input").rstrip("\r\n") if raw else None

    def query(self, question: str) -> Query:
        return Query(question, self.texts, **self.options)

    def answer(self, question: str) -> None:
        """Print the answer to ``question`` with its sentence, probabilities and alternatives."""
        (answer,) = self.reading([self.query(question)])
        if self.as_json:
            name = self.files[answer.document] if self.files and answer.document is not None else None
            print(plain_json({"question": question, **answer.as_dict(), "file": name}, indent=None))
            return
        no_answer = "no answer in these texts" if len(self.texts) > 1 else "no answer in this text"
        lines = [Text(plain(answer.text) or no_answer)]
        if sentence := answer.in_sentence:
            before, span, after = sentence
            marked = (span, "bold") if self.console.is_terminal else f"[{span}]"
            lines.append(Text.assemble("  ", before, marked, after, self._source(answer.document)))
        confidence = f"confidence {percent(answer.confidence)}, " if answer else ""
        lines.append(
            Text(
                f"  {confidence}probability of no answer {percent(answer.no_answer_probability)}, null odds"
                f' {answer.null_odds:.2f} ("no answer" above {answer.null_threshold:.2f})'
            )
        )
        for other in answer.alternatives:
            text = f"  {percent(other.confidence):>6}  {plain(other.text)}"
            lines.append(Text(text + self._source(other.document)))
        if answer.warning:
            lines.append(Text(f"  {answer.warning}"))
        for line in lines:
            self.console.print(line)

    def _source(self, document: int | None) -> str:
        """File of an answer, in parentheses; empty unless there are several."""
        return "" if document is None or len(self.files) < 2 else f"  ({plain(self.files[document])})"


def percent(share: float) -> str:
    """Format as ``93.1%``; values just below 1 become ``>99.9%``, never 100%."""
    return ">99.9%" if 0.9995 <= share < 1 else f"{share:.1%}"
