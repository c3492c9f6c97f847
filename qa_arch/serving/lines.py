"""Answer questions from JSON lines into JSON lines: any size in constant memory, resumable.

An input line is an object with ``question`` and ``context`` or ``documents``; an output line is
``Answer.as_dict`` with the question's id, or an ``error`` (docs/asking.md lists all fields). Answers are
appended to ``OUT.partial``, synced to disk part by part, and the finished file is renamed to ``OUT``;
``OUT.origin.json`` records data, models and settings. Part boundaries depend on the input alone, so an
interrupted call resumes after the last complete part and writes the same bytes as an uninterrupted one.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
import math
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, fields
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

from pydantic import ValidationError

from qa_arch import __version__
from qa_arch.data.files import OnError
from qa_arch.data.question_sets import RecordError, clip, json_type
from qa_arch.errors import FULL, ConfigError, DataError, QaArchError, RunError
from qa_arch.files import MAX_JSON_BYTES, files_hash, hold, parse_json, read_json, unique_keys, write_json
from qa_arch.models.checkpoint_files import names_checkpoint, open_checkpoint
from qa_arch.qa.answers import QUERY, Answer, Fault, Query
from qa_arch.records import GRAPH, MODEL, TOKENIZER, VECTORS, read_record
from qa_arch.types import Problem

STANDARD = "-"
"""File name that stands for standard input or output."""
PART_LINES, PART_BYTES = 256, 4 << 20
"""Maximum lines of a part, and bytes after which no further line is added."""
HEAD_BYTES = 1 << 20
"""A data file is identified by the hash of its first bytes, its size and its modification time."""
IGNORED = ("title", "answers", "is_impossible", "plausible_answers", "kind", "original_id")
"""Fields of flat SQuAD records that do not affect the answer."""
QUERY_FIELDS = ("context", *(item.name for item in fields(Query)))
"""Those of ``Query``; in a line they override the options of the command."""
FIELDS = ("id", *QUERY_FIELDS, "meta", *IGNORED)
_EXPECTED = 'a line is an object {"question": ..., "context": ...} (for SQuAD JSON give --out a folder)'
log = logging.getLogger(__name__)

IfExists = Literal["resume", "replace", "fail"]


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive lines answered together, hence always in the same batches."""

    lines: tuple[tuple[int, bytes], ...]
    """(line number from 1, content)."""
    position: int = 0
    """Bytes of the file read up to the end of the part."""


@dataclass(frozen=True, slots=True)
class AnsweredPart:
    """Output lines of a part, one per input line, and the problems of lines without an answer."""

    content: bytes
    position: int
    problems: tuple[Problem, ...] = ()
    cut: int = 0
    """Number of questions of which the end was not read."""


@dataclass(frozen=True, slots=True)
class LineCounts:
    lines: int
    """Lines in the output."""
    before: int
    """Lines answered by an earlier call."""
    problems: int
    """Lines this call could not answer."""
    cut: int = 0
    """Questions of which this call did not read the end."""


AnswerPart = Callable[[Part], AnsweredPart]
Answering = Callable[[Iterator[Part]], Iterable[AnsweredPart]]
"""Answers parts in order, reading only a few ahead."""


def answer_file(
    data: str,
    out: str,
    start: Callable[[], AbstractContextManager[Answering]],
    *,
    models: Sequence[str],
    settings: Mapping[str, Any],
    on_error: OnError = "raise",
    if_exists: IfExists = "resume",
    watch: Callable[[int, int | None, int], None] = lambda *_: None,
) -> LineCounts | None:
    """Answer the questions in ``data`` into ``out`` (``-``: standard streams); None if already done.

    ``start`` loads ``models`` once everything else is checked; ``settings`` are all other settings that
    answers depend on. ``resume`` continues an unfinished file or starts a new one. ``watch`` receives the
    input bytes processed, the total bytes if known, and the lines answered by this call. Raises DataError for
    the first faulty line (with ``skip`` only for unreadable data), RunError if ``out`` cannot be resumed.
    """
    path, partial, origin_file = (Path(f"{out}{suffix}") for suffix in ("", ".partial", ".origin.json"))
    pipe = data == STANDARD or Path(data).is_fifo()
    origin = None if pipe else origin_of(data, models, settings)
    with ExitStack() as stack:
        if out != STANDARD:
            stack.enter_context(_unfinished(partial, origin is not None and if_exists == "resume"))
            stack.enter_context(hold(path.parent, "file", file=path.name))
            if data != STANDARD and any(
                own.exists() and own.samefile(data) for own in (path, partial, origin_file)
            ):
                raise ConfigError(f"--out {out}: writing it would overwrite the data file; name another file")
            if if_exists != "replace" and not _needs_answers(path, partial, origin_file, origin, if_exists):
                return None
        parts, size = stack.enter_context(open_input(data))
        answering = stack.enter_context(start())
        before = problems = cut = 0
        file: BinaryIO = sys.stdout.buffer
        if out != STANDARD:
            if if_exists == "replace":  # the origin last, so that no answers remain without it
                for old in (path, partial, origin_file):
                    old.unlink(missing_ok=True)
            if not partial.exists():  # the origin goes first: answers of unknown origin cannot be resumed
                write_json(origin_file, origin)
            partial.touch()
            file = stack.enter_context(partial.open("r+b"))
            before, parts = _skip_finished(file, parts)
        lines = before
        for part in answering(parts):
            _report_problems(part, on_error, resumable=out != STANDARD)
            file.write(part.content)
            file.flush()
            if out != STANDARD:
                os.fsync(file.fileno())
            lines, problems = lines + part.content.count(b"\n"), problems + len(part.problems)
            cut += part.cut
            watch(part.position, size, lines - before)
        if out != STANDARD:
            partial.replace(path)  # while the lock is held
    return LineCounts(lines, before, problems, cut)


def _report_problems(part: AnsweredPart, on_error: OnError, *, resumable: bool) -> None:
    """Log the faulty lines of a part; DataError for the first, unless they are skipped."""
    again = ", --if-exists replace starts again with a corrected file" if resumable else ""
    for problem in part.problems:
        if on_error == "raise":
            raise DataError(f"{problem}; --on-error skip continues without such lines{again}")
        log.warning("left out: %s", problem)


@contextmanager
def _unfinished(partial: Path, resumes: bool) -> Iterator[None]:
    """Name ``partial`` in the error for a full disk, and say how to go on, also after an interrupt."""
    again = f"repeat the command {'to continue' if resumes else 'with --if-exists replace'}"
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        message = f"{partial}: cannot be written ({error.strerror}); free space, then {again}"
        raise QaArchError(message) from error
    except KeyboardInterrupt:
        log.info("%s: unfinished; %s", partial, again)
        raise


def _needs_answers(
    path: Path, partial: Path, origin_file: Path, origin: Mapping[str, Any] | None, if_exists: IfExists
) -> bool:
    """Whether ``path`` is incomplete. RunError if an existing file cannot be resumed."""
    remedy = "--if-exists replace starts again; or name another --out"
    existing = next((file for file in (partial, path) if file.exists()), None)
    if existing is None:
        return True
    if if_exists == "fail":
        raise RunError(f"{existing}: already exists; --if-exists resume continues it; {remedy}")
    if origin is None:
        raise RunError(f"{existing}: already exists, and data from a pipe cannot be resumed; {remedy}")
    recorded = read_json(origin_file, remedy)
    if not isinstance(recorded, dict):  # null after a pipe
        raise RunError(f"{existing}: {origin_file.name} does not record what it was made from; {remedy}")
    for name in {**origin, **recorded}:
        old, new = recorded.get(name), origin.get(name)
        if old != new:
            before, now = (", ".join(map(str, v)) if isinstance(v, list) else str(v) for v in (old, new))
            raise RunError(f"{existing}: was made with {name} {clip(before)}, now {clip(now)}; {remedy}")
    return existing == partial


def _skip_finished(file: BinaryIO, parts: Iterator[Part]) -> tuple[int, Iterator[Part]]:
    """Truncate ``file`` after its last complete part; return the lines kept and the parts still to answer."""
    end, lines = 0, 0
    for part in parts:
        written = list(islice(file, len(part.lines)))  # an answer for each line
        if len(written) < len(part.lines) or not written[-1].endswith(b"\n"):
            parts = chain([part], parts)
            break
        end, lines = end + sum(map(len, written)), lines + len(part.lines)
    file.seek(end)
    file.truncate()
    return lines, parts


@contextmanager
def open_input(data: str) -> Iterator[tuple[Iterator[Part], int | None]]:
    """Yield the parts of a file, or of standard input for ``-``, and the file's size (None for a pipe).

    gzip is detected by content, not by name. Raises DataError if the file cannot be read.
    """
    with nullcontext(sys.stdin.buffer) if data == STANDARD else _open(data) as file:
        seekable = data != STANDARD and file.seekable()
        compressed = cast(Any, file).peek(2).startswith(b"\x1f\x8b")  # a pipe cannot be read twice
        content = cast(BinaryIO, gzip.GzipFile(fileobj=file) if compressed else file)
        parts = parts_of(content, data, file.tell if seekable else lambda: 0)
        yield parts, os.fstat(file.fileno()).st_size if seekable else None


def _open(data: str) -> BinaryIO:
    try:
        return Path(data).open("rb")
    except OSError as error:
        raise DataError(f"{data}: cannot be read ({error.strerror}); check path and permissions") from None


def parts_of(file: BinaryIO, name: str, position: Callable[[], int]) -> Iterator[Part]:
    """Group the non-blank lines of ``file`` into parts, lazily."""
    part: list[tuple[int, bytes]] = []
    number = size = 0
    try:
        # One byte more than is allowed, which tells a line that is too long.
        for number, line in enumerate(iter(lambda: file.readline(MAX_JSON_BYTES + 1), b""), 1):
            if len(line) > MAX_JSON_BYTES:
                most = f"{MAX_JSON_BYTES >> 20} MiB"
                raise DataError(f"{name}: line {number}: is longer than {most}; write one question per line")
            if line.strip():
                part.append((number, line))
                size += len(line)
            if len(part) == PART_LINES or size >= PART_BYTES:
                yield Part(tuple(part), position())
                part, size = [], 0
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"{name}: the gzip file is damaged or cut short after line {number} ({error}); compress or"
            " download it again"
        ) from error
    if part:
        yield Part(tuple(part), position())


def answer_part(
    part: Part,
    answer_queries: Callable[[Sequence[Query]], Sequence[Answer]],
    *,
    file: str,
    options: Mapping[str, Any],
) -> AnsweredPart:
    """Answer the lines of a part, in order, with ``answer_queries`` (``Reader.answer``).

    ``options`` of ``Query`` are the defaults for lines that set none.

    A faulty line becomes ``{"id": ..., "error": ...}`` and a problem naming file, line, field and remedy; the
    others are answered.
    """
    rows: list[dict[str, Any]] = []
    queries: list[Query] = []
    problems: list[Problem] = []
    for number, line in part.lines:
        row: dict[str, Any] = {"id": number}
        rows.append(row)
        try:
            queries.append(_query(line, row, options))
        except RecordError as fault:
            message = f"{fault.where}: {fault.message}" if fault.where else fault.message
            row["error"] = f"line {number}: {message}"
            problems.append(Problem(file, f"line {number}", message))
    answers = answer_queries(queries) if queries else ()
    # A faulty line has no query: the other lines take the answers in turn.
    answered = iter(answers)
    for row in rows:
        if "error" not in row:
            row.update(next(answered).as_dict())
    content = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows).encode()
    cut = sum(answer.question_cut > 0 for answer in answers)
    return AnsweredPart(content, part.position, tuple(problems), cut)


def _query(line: bytes, row: dict[str, Any], options: Mapping[str, Any]) -> Query:
    """Parse a line into a query, copying its id and ``meta`` to ``row``. Raises RecordError."""
    try:
        # The first line may begin with a byte order mark.
        content = parse_json(line.decode("utf-8-sig"), object_pairs_hook=unique_keys)
    except UnicodeDecodeError as error:
        raise RecordError("", f"byte {error.start} is not UTF-8; save the file as UTF-8") from None
    except UnicodeEncodeError:
        raise RecordError("", "an escape like \\ud83d is half a character; write both halves") from None
    except ValueError as error:
        raise RecordError("", f"broken JSON ({error}); {_EXPECTED}") from None
    if not isinstance(content, dict) or ("data" in content and "question" not in content):
        raise RecordError("", f"is {json_type(content)}, not a question; {_EXPECTED}")
    if (id_ := content.get("id")) is not None:
        # A boolean is an int in Python, and no id.
        if type(id_) not in (str, int):
            raise RecordError("id", f"is {json_type(id_)}; use a string or a whole number, or leave it out")
        row["id"] = id_
    if "meta" in content:
        try:
            json.dumps(content["meta"], allow_nan=False)
        except ValueError:
            raise RecordError("meta", "holds Infinity or NaN, which is no JSON; use null") from None
        row["meta"] = content["meta"]
    # A null leaves an option as the command line has it; an unknown field is refused, also with a null.
    own = {
        name: value
        for name, value in content.items()
        if name not in FIELDS or (name in QUERY_FIELDS and value is not None)
    }
    try:
        return QUERY.validate_python({**options, **own})
    except ValidationError as error:
        fault = Fault.of(error, FIELDS)
        raise RecordError(fault.field, fault.message) from None


def origin_of(data: str, models: Sequence[str], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Everything the answers depend on except the device; infinite numbers as strings.

    Raises DataError for unreadable data, RunError for a model that is not a run.
    """
    with _open(data) as file:
        stat, digest = os.fstat(file.fileno()), hashlib.sha256(file.read(HEAD_BYTES)).hexdigest()
    return {
        "data.name": Path(data).name,
        "data.size": stat.st_size,
        "data.modified": stat.st_mtime_ns,
        "data.head_sha256": digest,
        "models": [_model_identity(model) for model in models],
        **{
            f"settings.{name}": str(value) if value in (math.inf, -math.inf) else value
            for name, value in settings.items()
        },
        "part_lines": PART_LINES,
        "part_bytes": PART_BYTES,
        "qa_arch": __version__,
    }


def _model_identity(source: str) -> str:
    """Identity of a run: hash of its weights, tokenizer, vectors, graph, config and fitted calibration; of a
    downloaded checkpoint: its revision."""
    if names_checkpoint(source):
        return f"{source} {open_checkpoint(source).revision}"
    run = Path(source)
    files = [path for name in (MODEL, TOKENIZER, VECTORS) for path in (run / name).rglob("*")]
    record = read_record(source)
    # Not the whole record, to which evaluation and benchmarks add.
    settings = (record.config, record.run_hash, record.members, record.precision)
    fitted = (record.threshold, record.confidence, record.answerability)
    digest = hashlib.sha256(repr((*settings, *fitted)).encode())
    digest.update(files_hash(run, [path for path in (*files, run / GRAPH) if path.is_file()]).encode())
    return f"{run.resolve().name} {digest.hexdigest()}"
