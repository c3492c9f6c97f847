"""``qa-arch ask``: answer a question about texts, or one question after another."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.text import Text

from qa_arch.cli.runs import add_answer_options, add_engine, add_run_options, open_reader
from qa_arch.errors import ConfigError, DataError, QaArchError
from qa_arch.serving.answers import Answer, Query, plain, sentence
from qa_arch.system import terminal

TOP_K = 3
HELP = """\
a line is a question about the text; an empty line or Ctrl-D ends
/file PATH ...  read other texts from files
/text           type or paste another text, up to an empty line
/help           this"""


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
    options = {
        "top_k": TOP_K if args.top_k is None else args.top_k,
        "max_answer_tokens": args.max_answer_tokens,
        "null_threshold": args.margin,
    }
    Query("", ("",), **options)  # refuses what is out of range before a model is loaded
    texts = None
    if args.context is not None:
        texts = Texts((args.context,))
    elif args.file:
        texts = read_files(args.file)
    elif args.question is not None:
        texts = Texts((_decoded(sys.stdin.buffer.read(), "standard input"),))
    elif not sys.stdin.isatty():
        raise ConfigError("no text to read: give --context or --file, as standard input has the questions")
    reader = open_reader([args.run_folder], args)
    conversation = Conversation(reader.answer, texts, options, as_json=args.json)
    if args.question is None:
        conversation.run()
    else:
        conversation.answer(args.question)
    return 0


@dataclass(frozen=True, slots=True)
class Texts:
    """What questions are about, and the files it is from; no names where it is from none."""

    contents: tuple[str, ...]
    names: tuple[str, ...] = ()


def read_files(paths: Sequence[str]) -> Texts:
    """The exact texts; line ends stay, else the offsets would differ from those of the files."""
    contents = []
    for path in paths:
        try:
            contents.append(_decoded(Path(path).read_bytes(), path))
        except OSError as error:
            raise DataError(
                f"{path}: cannot be read ({error.strerror}); check path and permissions"
            ) from None
    return Texts(tuple(contents), tuple(paths))


def _decoded(raw: bytes, source: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{source}: byte {error.start} is not UTF-8; convert it to UTF-8 first") from None


class Conversation:
    """Answers questions about texts, which stay until others are named, in words or as JSON."""

    def __init__(
        self,
        reading: Callable[[Sequence[Query]], Sequence[Answer]],
        texts: Texts | None,
        options: Mapping[str, Any],
        *,
        as_json: bool = False,
    ) -> None:
        self.reading, self.texts, self.options, self.as_json = reading, texts, options, as_json
        self.typed = sys.stdin.isatty() and sys.stdout.isatty()
        self.console = terminal.console(highlight=False, soft_wrap=True)

    def run(self) -> None:
        """Answer the lines of standard input; what is typed may hold mistakes, a pipe ends with the first."""
        if self.typed and importlib.util.find_spec("readline"):
            importlib.import_module("readline")  # line editing and history in ``input``; no file is written
        while True:
            try:
                if self.texts is None:
                    self._read_text()
                line = self._line("question> ")
                if line is None or (self.typed and not line.strip()):
                    return
                if line.strip():
                    self._do(line.strip())
            except QaArchError as error:
                if not self.typed:
                    raise
                self.console.print(plain(str(error)), markup=False)

    def _do(self, line: str) -> None:
        command, _, rest = line.partition(" ")
        if command == "/file":
            if not rest.strip():
                raise ConfigError("/file: name a file, or several")
            self.texts = read_files([rest] if Path(rest).is_file() else rest.split())
        elif command == "/text":
            self._read_text()
        elif line == "/help":
            self.console.print(HELP, markup=False)
        else:
            self.answer(line)

    def _read_text(self) -> None:
        """Take the lines up to an empty one as the text."""
        if self.typed:
            self.console.print("text, then an empty line:", markup=False)
        lines = []
        while line := self._line(""):
            lines.append(line)
        self.texts = Texts(("\n".join(lines),))

    def _line(self, prompt: str) -> str | None:
        """The next line without its end; None behind the last."""
        if self.typed:
            try:
                return input(prompt)
            except EOFError:
                self.console.print()
                return None
        raw = sys.stdin.buffer.readline()
        return _decoded(raw, "standard input").rstrip("\r\n") if raw else None

    def answer(self, question: str) -> None:
        """Print the answer to ``question``: in its sentence, how sure it is, and the other spans."""
        texts = self.texts or Texts(("",))
        (answer,) = self.reading([Query(question, texts.contents, **self.options)])
        if self.as_json:
            name = texts.names[answer.document] if texts.names and answer.document is not None else None
            print(json.dumps({"question": question, **answer.as_dict(), "file": name}, ensure_ascii=False))
            return
        nothing = "no answer in these texts" if len(texts.contents) > 1 else "no answer in this text"
        shown = [Text(plain(answer.text) or nothing)]
        if answer and answer.start is not None and answer.start >= 0 and answer.end is not None:
            before, span, after = sentence(texts.contents[answer.document or 0], answer.start, answer.end)
            bold = self.console.is_terminal
            marked = (span, "bold") if bold else f"[{span}]"
            shown.append(Text.assemble("  ", before, marked, after, _place(answer.document, texts)))
        shown.append(
            Text(
                f"  confidence {answer.confidence:.1%}, null odds {answer.null_odds:.2f}"
                f' ("no answer" above {answer.null_threshold:.2f})'
            )
        )
        for other in answer.alternatives:
            text = f"  {other.confidence:6.1%}  {plain(other.text)}"
            shown.append(Text(text + _place(other.document, texts)))
        for line in shown:
            self.console.print(line)


def _place(document: int | None, texts: Texts) -> str:
    """The file that an answer is from, in brackets, where there are several."""
    if document is None or len(texts.names) < 2:
        return ""
    return f"  ({plain(texts.names[document])})"
