"""Questions to a model one after another, about texts that stay until others are named."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from qa_arch.errors import ConfigError, DataError, QaArchError
from qa_arch.serving.excerpt import plain, sentence
from qa_arch.serving.query import Answer, Query

HELP = """\
a line is a question about the text; an empty line or Ctrl-D ends
/file PATH ...  read other texts from files
/text           type or paste another text, up to an empty line
/help           this"""


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
            raw = Path(path).read_bytes()
        except OSError as error:
            raise DataError(
                f"{path}: cannot be read ({error.strerror}); check path and permissions"
            ) from None
        contents.append(decode(raw, path))
    return Texts(tuple(contents), tuple(paths))


def decode(raw: bytes, source: str) -> str:
    """UTF-8 bytes as text; DataError that names ``source`` and the byte where they are none."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{source}: byte {error.start} is not UTF-8; convert it to UTF-8 first") from None


class Conversation:
    """Answers questions about the current texts and prints the answers, as words or as JSON."""

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
        self.console = Console(highlight=False, soft_wrap=True)

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
                    self._obey(line.strip())
            except QaArchError as error:
                if not self.typed:
                    raise
                self.console.print(plain(str(error)), markup=False)

    def _obey(self, line: str) -> None:
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
        return decode(raw, "standard input").rstrip("\r\n") if raw else None

    def answer(self, question: str) -> None:
        """Print the answer to ``question`` about the current texts."""
        texts = self.texts or Texts(("",))
        (answer,) = self.reading([Query(question, texts.contents, **self.options)])
        name = texts.names[answer.document] if texts.names and answer.document is not None else None
        if self.as_json:
            print(json.dumps({"question": question, **answer.as_dict(), "file": name}, ensure_ascii=False))
        else:
            for line in self._shown(answer, texts):
                self.console.print(line)

    def _shown(self, answer: Answer, texts: Texts) -> list[Text]:
        """The answer in its sentence, how sure it is, and the other spans."""
        several = len(texts.contents) > 1
        nothing = "no answer in these texts" if several else "no answer in this text"
        shown = [Text(plain(answer.text) or nothing)]
        if answer and answer.start is not None and answer.start >= 0 and answer.end is not None:
            before, span, after = sentence(texts.contents[answer.document or 0], answer.start, answer.end)
            bold = self.console.is_terminal
            parts = ("  ", before, (span, "bold") if bold else f"[{span}]", after)
            shown.append(Text.assemble(*parts, self._place(answer.document, texts)))
        shown.append(
            Text(
                f"  confidence {answer.confidence:.1%}, null odds {answer.null_odds:.2f}"
                f' ("no answer" above {answer.null_threshold:.2f})'
            )
        )
        for other in answer.alternatives:
            text = f"  {other.confidence:6.1%}  {plain(other.text)}"
            shown.append(Text(text + self._place(other.document, texts)))
        return shown

    @staticmethod
    def _place(document: int | None, texts: Texts) -> str:
        """The file that an answer is from, in brackets, where there are several."""
        if document is None or len(texts.names) < 2:
            return ""
        return f"  ({plain(texts.names[document])})"
