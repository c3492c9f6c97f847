"""Questions as JSON lines in, answers as JSON lines out, a part of the file at a time.

An input line is an object with ``question`` and ``context`` or ``documents``; ``docs/asking.md`` has all
fields. An output line is ``Answer.as_dict`` with the question's id, or an ``error``.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from qa_arch.config.check import suggest
from qa_arch.data.examples import RecordError, clip, json_type
from qa_arch.errors import ConfigError, DataError
from qa_arch.serving.query import Answer, Query
from qa_arch.types.text import Problem

STANDARD = "-"
"""Standard input or output in place of a file."""
PART_LINES, PART_BYTES = 256, 4 << 20
"""Most lines of a part, and bytes at which it takes no further line."""
LONGEST_LINE = 64 << 20
"""Bytes above which a line is not read, so that memory stays constant."""
OPTIONS = ("top_k", "max_answer_tokens", "null_threshold", "distinct")
"""Fields of a line that are options of ``Query``; they come before those of the command."""
IGNORED = ("title", "answers", "is_impossible", "plausible_answers", "kind")
"""Fields of flat SQuAD records on which no answer depends."""
FIELDS = ("id", "question", "context", "documents", *OPTIONS, "meta", *IGNORED)
_OBJECT, _SQUAD = '{"question": ..., "context": ...}', "(for SQuAD JSON give --out a folder)"

Line = tuple[int, bytes]
"""Number in the file, from 1, and content; of a line that is too long its first bytes."""
Reading = Callable[[Sequence[Query]], Sequence[Answer]]
"""``Reader.answer``, which answers queries in order."""


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive lines that are answered together, so in the same batches whoever answers them.

    The content of the file alone decides where a part ends.
    """

    lines: tuple[Line, ...]
    position: int = 0
    """Bytes of the file that had been read at the end of the part."""


@dataclass(frozen=True, slots=True)
class AnsweredPart:
    """The output lines of a part, as many as its lines, and what is wrong with those that have no answer."""

    content: bytes
    lines: int
    position: int
    problems: tuple[Problem, ...] = ()


def is_stream(data: str) -> bool:
    """Whether ``data`` can be read but once: standard input, or a pipe."""
    return data == STANDARD or Path(data).is_fifo()


@contextmanager
def open_input(data: str) -> Iterator[tuple[Iterator[Part], int | None]]:
    """The parts of a file, or of standard input for ``-``, and the file's size where it has one.

    gzip is decompressed, however the file is called. Raises DataError where the file cannot be read.
    """
    try:
        opened = nullcontext(sys.stdin.buffer) if data == STANDARD else Path(data).open("rb")  # noqa: SIM115
    except OSError as error:
        raise DataError(f"{data}: cannot be read ({error.strerror}); check path and permissions") from None
    with opened as file:
        packed = cast(Any, file).peek(2).startswith(b"\x1f\x8b")
        content = cast(BinaryIO, gzip.GzipFile(fileobj=file) if packed else file)
        if is_stream(data):
            yield parts(lines(content, data), lambda: 0), None
        else:
            yield parts(lines(content, data), file.tell), os.fstat(file.fileno()).st_size


def lines(file: BinaryIO, name: str) -> Iterator[Line]:
    """The lines of ``file`` that are not blank, none of them longer than ``LONGEST_LINE`` + 1 bytes."""
    number = 0
    try:
        while line := file.readline(LONGEST_LINE + 1):
            number += 1
            rest = line
            while len(rest) > LONGEST_LINE and not rest.endswith(b"\n"):
                rest = file.readline(LONGEST_LINE + 1)
            if line.strip():
                yield number, line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"{name}: the gzip file is damaged or cut short behind line {number} ({error}); compress or"
            " fetch it again"
        ) from error


def parts(lines: Iterable[Line], position: Callable[[], int]) -> Iterator[Part]:
    """``lines`` in parts, none of them read before the part that it belongs to is wanted."""
    part: list[Line] = []
    size = 0
    for number, line in lines:
        part.append((number, line))
        size += len(line)
        if len(part) == PART_LINES or size >= PART_BYTES:
            yield Part(tuple(part), position())
            part, size = [], 0
    if part:
        yield Part(tuple(part), position())


def answer_part(part: Part, reading: Reading, *, file: str, options: Mapping[str, Any]) -> AnsweredPart:
    """The output lines of a part, in order. ``options`` of ``Query`` are for lines that give none.

    A faulty line becomes ``{"id": ..., "error": ...}`` and a problem that names file, line, field and
    remedy; the others are answered.
    """
    rows: list[dict[str, Any]] = []
    queries: list[Query] = []
    problems: list[Problem] = []
    for number, line in part.lines:
        row: dict[str, Any] = {"id": number}
        rows.append(row)
        try:
            queries.append(_query(_fields(line, number), row, options))
        except RecordError as fault:
            where = f"line {number}"
            message = f"{fault.where}: {fault.message}" if fault.where else fault.message
            row["error"] = f"{where}: {message}"
            problems.append(Problem(file, where, message))
    answers = iter(reading(queries) if queries else ())
    for row in rows:
        if "error" not in row:
            row.update(next(answers).as_dict())
    content = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows).encode()
    return AnsweredPart(content, len(rows), part.position, tuple(problems))


def _fields(line: bytes, number: int) -> dict[str, Any]:
    """The JSON object in a line. Raises RecordError."""
    if len(line) > LONGEST_LINE:
        raise RecordError("", f"is longer than {LONGEST_LINE >> 20} MiB; give its documents a line each")
    try:
        text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        value = json.loads(text)
    except UnicodeDecodeError as error:
        raise RecordError("", f"byte {error.start} is not UTF-8; save the file as UTF-8") from None
    except json.JSONDecodeError as error:
        raise RecordError(
            "",
            f"broken JSON at column {error.colno}: {error.msg}; a line is a whole object {_OBJECT} {_SQUAD}",
        ) from None
    except (ValueError, RecursionError) as error:
        raise RecordError("", f"the JSON cannot be read ({error}); write the line again") from None
    if not isinstance(value, dict):
        raise RecordError("", f"is {json_type(value)}, not an object {_OBJECT} {_SQUAD}")
    if "data" in value and "question" not in value:
        raise RecordError("", f"has 'data' and no question; a line is an object {_OBJECT} {_SQUAD}")
    return value


def _query(fields: dict[str, Any], row: dict[str, Any], options: Mapping[str, Any]) -> Query:
    """The query that a line states; its id and ``meta`` go into ``row``. Raises RecordError."""
    row["id"] = _id(fields, row["id"])
    if "meta" in fields:
        _check_writable("meta", fields["meta"])
        row["meta"] = fields["meta"]
    for name in fields:
        if name not in FIELDS:
            raise RecordError(
                clip(name),
                f"is no field of a question{suggest(name, FIELDS)}; what is to be copied to the answer"
                ' goes into "meta"',
            )
    own = {name: fields[name] for name in OPTIONS if fields.get(name) is not None}
    documents = _documents(fields)
    try:
        return Query(_required("question", fields), documents, **{**options, **own})
    except (ConfigError, DataError) as error:  # "top_k: 0 is out of range, ..."
        field, _, message = str(error).partition(": ")
        given = "documents" in fields or not field.startswith("documents")
        raise RecordError(field if given else "context", message) from None


def _id(fields: Mapping[str, Any], number: int) -> str | int:
    """The line's own id, else its number."""
    value = fields.get("id")
    if value is None:
        return number
    if type(value) not in (str, int):
        raise RecordError("id", f"is {json_type(value)}; write a text or a whole number, or leave it out")
    _check_writable("id", value)
    return value


def _check_writable(name: str, value: Any) -> None:
    """Raises RecordError for what Python reads from JSON but JSON in UTF-8 does not hold."""
    try:
        json.dumps({name: value}, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise RecordError(name, "holds half a surrogate pair; write the whole character") from None
    except ValueError:
        raise RecordError(name, "holds NaN or an infinite number; write null or a text") from None
    except RecursionError:
        raise RecordError(name, "is nested too deeply; write it as a text") from None


def _documents(fields: Mapping[str, Any]) -> Any:
    documents = fields.get("documents")
    if documents is None:
        return (_required("context", fields),)
    if fields.get("context") is not None:
        raise RecordError("documents", "stands beside a context; give only one of the two")
    return documents


def _required(name: str, fields: Mapping[str, Any]) -> Any:
    if name not in fields:
        other = " (or a list of texts as documents)" if name == "context" else ""
        raise RecordError(name, f"is missing; every line needs this field{other}: add it")
    return fields[name]
