"""Questions as JSON lines in, answers as JSON lines out: any size in constant memory, resumable.

An input line is an object with ``question`` and ``context`` or ``documents``; an output line is
``Answer.as_dict`` with the question's id, or an ``error`` (docs/asking.md has all fields). Answers are
appended to ``OUT.partial``, each part synced to disk, and the whole file is renamed to ``OUT``;
``OUT.origin.json`` says what they were made from. Where a part ends depends on the file alone, so that an
interrupted call goes on behind the finished parts and the bytes are those of an uninterrupted one.
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
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

from qa_arch import __version__
from qa_arch.config.check import suggest
from qa_arch.config.files import parse_json, read_json, write_json
from qa_arch.config.identity import files_hash
from qa_arch.data.formats import OnError
from qa_arch.data.question_sets import RecordError, clip, json_type
from qa_arch.errors import ConfigError, DataError, RunError, UnavailableError
from qa_arch.models.checkpoint_files import names_checkpoint, open_checkpoint
from qa_arch.records import GRAPH, MODEL, ONNX, TOKENIZER, VECTORS, Seconds, read_record
from qa_arch.serving.answers import Answer, Query
from qa_arch.system import lock
from qa_arch.types.text import Problem

STANDARD = "-"
"""Standard input or output in place of a file."""
PART_LINES, PART_BYTES = 256, 4 << 20
"""Most lines of a part, and bytes at which it takes no further line."""
HEAD = 1 << 20
"""Bytes of the data file whose hash identifies it, together with its size and time of change."""
OPTIONS = ("top_k", "max_answer_tokens", "null_threshold", "distinct")
"""Fields of a line that are options of ``Query``; they come before those of the command."""
IGNORED = ("title", "answers", "is_impossible", "plausible_answers", "kind")
"""Fields of flat SQuAD records on which no answer depends."""
FIELDS = ("id", "question", "context", "documents", *OPTIONS, "meta", *IGNORED)
_WANTED = 'a line is an object {"question": ..., "context": ...} (for SQuAD JSON give --out a folder)'
log = logging.getLogger(__name__)

IfExists = Literal["resume", "replace", "fail"]
Reading = Callable[[Sequence[Query]], Sequence[Answer]]
"""``Reader.answer``, which answers queries in order."""


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive lines that are answered together, so in the same batches whoever answers them."""

    lines: tuple[tuple[int, bytes], ...]
    """Number in the file, from 1, and content."""
    position: int = 0
    """Bytes of the file that had been read at the end of the part."""


@dataclass(frozen=True, slots=True)
class AnsweredPart:
    """The output lines of a part, as many as its lines, and what is wrong with those that have no answer."""

    content: bytes
    position: int
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class Summary:
    lines: int
    """Lines of the output."""
    before: int
    """The lines that an earlier call had answered."""
    problems: int
    """Lines that this call could not answer."""


AnswerPart = Callable[[Part], AnsweredPart]
Answering = Callable[[Iterator[Part]], Iterable[AnsweredPart]]
"""Answers parts in their order, reading few of them ahead."""


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
) -> Summary | None:
    """Answer the questions of ``data`` into ``out`` (``-``: standard streams); None if that is done already.

    ``start`` loads ``models``, after all else is checked; ``settings`` are all others on which answers
    depend. ``resume`` continues an unfinished file, or starts it. ``watch`` gets the bytes of the input that
    are done, all bytes if known, and the lines that this call answered. Raises DataError for the first faulty
    line (with ``skip`` only for data that cannot be read at all), RunError where ``out`` is in the way.
    """
    path, partial = Path(out), Path(f"{out}.partial")
    pipe = data == STANDARD or Path(data).is_fifo()
    origin = None if pipe else origin_of(data, models, settings)
    with ExitStack() as stack:
        if out != STANDARD:
            stack.enter_context(lock.hold(path.parent, path.name, name=f".{path.name}.lock"))
            if not _may_begin(path, partial, origin, if_exists):
                return None
        parts, size = stack.enter_context(open_input(data))
        answering = stack.enter_context(start())
        before = problems = 0
        file: BinaryIO = sys.stdout.buffer
        if out != STANDARD:
            if not partial.exists():  # first the origin: answers of unknown origin could not be resumed
                write_json(Path(f"{out}.origin.json"), origin)
            partial.touch()
            file = stack.enter_context(partial.open("r+b"))
            before, parts = _behind_finished(file, parts)
        lines = before
        for part in answering(parts):
            for problem in part.problems:
                if on_error == "raise":
                    raise DataError(
                        f"{problem}; --on-error skip continues without such lines, --if-exists replace"
                        " starts again with a corrected file"
                    )
                log.warning("left out: %s", problem)
            file.write(part.content)
            file.flush()
            if out != STANDARD:
                os.fsync(file.fileno())
            lines, problems = lines + part.content.count(b"\n"), problems + len(part.problems)
            watch(part.position, size, lines - before)
    if out != STANDARD:
        partial.replace(path)
    return Summary(lines, before, problems)


def _may_begin(path: Path, partial: Path, origin: Mapping[str, Any] | None, if_exists: IfExists) -> bool:
    """Whether there is something to do; RunError for a file in the way that is no part of what is wanted."""
    sidecar, remedy = Path(f"{path}.origin.json"), "--if-exists replace starts again; or name another --out"
    if if_exists == "replace":
        for old in (path, partial, sidecar):  # the origin last: none is ever taken for what it is not
            old.unlink(missing_ok=True)
    existing = next((file for file in (partial, path) if file.exists()), None)
    if existing is None:
        return True
    if if_exists == "fail":
        raise RunError(f"{existing}: already exists; --if-exists resume continues it; {remedy}")
    if origin is None:
        raise RunError(f"{existing}: already exists, and data from a pipe cannot be resumed; {remedy}")
    recorded = read_json(sidecar, remedy)
    for name in {**origin, **recorded}:
        old, new = recorded.get(name), origin.get(name)
        if old != new:
            before, now = (", ".join(v) if isinstance(v, list) else str(v) for v in (old, new))
            raise RunError(
                f"{existing}: was made with {name} {clip(before)}, which now are {clip(now)}; {remedy}"
            )
    return existing == partial


def _behind_finished(file: BinaryIO, parts: Iterator[Part]) -> tuple[int, Iterator[Part]]:
    """Lines of the parts that are whole in ``file``, which is cut behind them, and the parts after them."""
    end, lines = 0, 0
    for part in parts:
        written = list(islice(file, len(part.lines)))
        if len(written) < len(part.lines) or not written[-1].endswith(b"\n"):
            parts = chain([part], parts)
            break
        end, lines = end + sum(map(len, written)), lines + len(part.lines)
    file.seek(end)
    file.truncate()
    return lines, parts


@contextmanager
def open_input(data: str) -> Iterator[tuple[Iterator[Part], int | None]]:
    """The parts of a file, or of standard input for ``-``, and the file's size (0 of a pipe).

    gzip is decompressed, whatever the file's name. Raises DataError where the file cannot be read.
    """
    with nullcontext(sys.stdin.buffer) if data == STANDARD else _open(data) as file:
        seekable = data != STANDARD and file.seekable()
        packed = cast(Any, file).peek(2).startswith(b"\x1f\x8b")
        content = cast(BinaryIO, gzip.GzipFile(fileobj=file) if packed else file)
        parts = parts_of(content, data, file.tell if seekable else lambda: 0)
        yield parts, os.fstat(file.fileno()).st_size if seekable else None


def _open(data: str) -> BinaryIO:
    try:
        return Path(data).open("rb")
    except OSError as error:
        raise DataError(f"{data}: cannot be read ({error.strerror}); check path and permissions") from None


def parts_of(file: BinaryIO, name: str, position: Callable[[], int]) -> Iterator[Part]:
    """The lines of ``file`` that are not blank, in parts; none is read before its part is wanted."""
    part: list[tuple[int, bytes]] = []
    number = size = 0
    try:
        for number, line in enumerate(file, 1):
            if line.strip():
                part.append((number, line))
                size += len(line)
            if len(part) == PART_LINES or size >= PART_BYTES:
                yield Part(tuple(part), position())
                part, size = [], 0
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"{name}: the gzip file is damaged or cut short behind line {number} ({error}); compress or"
            " fetch it again"
        ) from error
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
            queries.append(_query(line, row, options))
        except RecordError as fault:
            message = f"{fault.where}: {fault.message}" if fault.where else fault.message
            row["error"] = f"line {number}: {message}"
            problems.append(Problem(file, f"line {number}", message))
    answers = iter(reading(queries) if queries else ())
    for row in rows:
        if "error" not in row:
            row.update(next(answers).as_dict())
    content = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows).encode()
    return AnsweredPart(content, part.position, tuple(problems))


def _query(line: bytes, row: dict[str, Any], options: Mapping[str, Any]) -> Query:
    """The query that a line states; its id and ``meta`` go into ``row``. Raises RecordError."""
    try:
        fields = parse_json(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise RecordError("", f"byte {error.start} is not UTF-8; save the file as UTF-8") from None
    except ValueError as error:
        raise RecordError("", f"broken JSON ({error}); {_WANTED}") from None
    if not isinstance(fields, dict) or ("data" in fields and "question" not in fields):
        raise RecordError("", f"is {json_type(fields)} and no question; {_WANTED}")
    if (id_ := fields.get("id")) is not None:
        if type(id_) not in (str, int):
            raise RecordError("id", f"is {json_type(id_)}; write a text or a whole number, or leave it out")
        row["id"] = id_
    if "meta" in fields:
        row["meta"] = fields["meta"]
    for name in fields:
        if name not in FIELDS:
            hint = suggest(name, FIELDS)
            raise RecordError(clip(name), f"is no field of a question{hint}; 'meta' is copied to the answer")
    given = [name for name in ("context", "documents") if fields.get(name) is not None]
    if "question" not in fields or not given:
        missing = "question" if "question" not in fields else "context"
        raise RecordError(missing, "is missing; a line needs a question, and a context or documents")
    if len(given) == 2:
        raise RecordError("documents", "stands beside a context; give only one of the two")
    texts = fields[given[0]] if given == ["documents"] else (fields["context"],)
    own = {name: fields[name] for name in OPTIONS if fields.get(name) is not None}
    try:
        return Query(fields["question"], texts, **{**options, **own})
    except (ConfigError, DataError) as error:  # "top_k: 0 is out of range, ..."
        field, _, message = str(error).partition(": ")
        raise RecordError(given[0] if field.startswith("documents") else field, message) from None


def origin_of(data: str, models: Sequence[str], settings: Mapping[str, Any]) -> dict[str, Any]:
    """All that the bytes of the answers depend on, but for the device; an infinite number is a text.

    Raises DataError for data that cannot be read, RunError for a model that is no run.
    """
    with _open(data) as file:
        facts, digest = os.fstat(file.fileno()), hashlib.sha256(file.read(HEAD)).hexdigest()
    return {
        "data.name": Path(data).name,
        "data.size": facts.st_size,
        "data.modified": facts.st_mtime_ns,
        "data.head_sha256": digest,
        "models": [_model(model) for model in models],
        **{
            f"settings.{name}": str(value) if value in (math.inf, -math.inf) else value
            for name, value in settings.items()
        },
        "part_lines": PART_LINES,
        "part_bytes": PART_BYTES,
        "qa_arch": __version__,
    }


def _model(source: str) -> str:
    """The identity of a run: the hash of weights, tokenizer, vectors and graph, of its config, and of what
    was fitted after training; of a downloaded checkpoint its revision."""
    if names_checkpoint(source):
        return f"{source} {open_checkpoint(source).revision}"
    run = Path(source)
    files = [path for name in (MODEL, ONNX, TOKENIZER, VECTORS) for path in (run / name).rglob("*")]
    # Without what evaluating the run changes, and no answer depends on.
    settings = replace(read_record(source), scores={}, references={}, data={}, seconds=Seconds())
    digest = hashlib.sha256(repr(asdict(settings)).encode())
    digest.update(files_hash(run, [path for path in (*files, run / GRAPH) if path.is_file()]).encode())
    return f"{run.resolve().name} {digest.hexdigest()}"


# On a Ray cluster -----------------------------------------------------------------------------------

WINDOW = 4
"""Parts per actor that are under way or wait for an earlier part: how far the file is read ahead."""
RESTARTS, RETRIES = 10, 3
"""How often an actor is started anew, and how often a part that was lost with an actor is tried again."""
OBJECT_STORE = 256 << 20
"""Bytes of the object store where Ray is started here; most parts have less than 1 MiB."""


class _Actor:
    """Loads with its first part, whose caller sees what goes wrong, and again where it is started anew."""

    def __init__(self, load: Callable[[], AnswerPart]) -> None:
        self._load = load
        self._answer_part: AnswerPart | None = None

    def answer(self, part: Part) -> AnsweredPart:
        self._answer_part = self._answer_part or self._load()
        return self._answer_part(part)


@contextmanager
def actors(load: Callable[[], AnswerPart], count: int | None = None) -> Iterator[Answering]:
    """Start ``count`` actors that hold what ``load`` returns, and yield what answers parts with them.

    Not Ray Data: a part has to stay whole for its answers to be, to the byte, those of a single process.
    An actor has a GPU where the cluster has any, else a CPU; by default all of these are used. The cluster
    is that of ``RAY_ADDRESS``, else Ray is started on this machine. Raises UnavailableError without Ray or
    for more actors than devices, RunError where actors die too often, and what ``load`` raises.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    here = {"address": "local", "include_dashboard": False, "object_store_memory": OBJECT_STORE}
    try:
        import ray

        started = {} if os.environ.get("RAY_ADDRESS") else here
        ray.init(logging_level="ERROR", log_to_driver=False, **started)
    except Exception as error:  # which Ray raises itself, where a node takes too long
        reason = " ".join(str(error).split())[:200]
        raise UnavailableError(
            f"--on ray: Ray does not start ({reason}); pip install 'qa-arch[ray]', and check RAY_ADDRESS"
        ) from error
    try:
        cpus, gpus = (int(ray.cluster_resources().get(kind, 0)) for kind in ("CPU", "GPU"))
        devices = min(gpus, cpus) or cpus
        count = devices if count is None else count
        if not 1 <= count <= devices:
            raise UnavailableError(
                f"--actors {count}: the cluster has {gpus} GPUs and {cpus} CPUs; give at most {devices}"
            )
        actor = ray.remote(_Actor).options(
            num_cpus=1, num_gpus=min(gpus, 1), max_restarts=RESTARTS, max_task_retries=RETRIES
        )
        pool = [actor.remote(load) for _ in range(count)]
        yield lambda parts: _in_order(ray, pool, parts)
    finally:
        ray.shutdown()


def _in_order(ray: Any, pool: list[Any], parts: Iterator[Part]) -> Iterator[AnsweredPart]:
    """The answers to ``parts``, in order; the actors take turns."""
    queue: deque[Any] = deque()
    try:
        for actor, part in zip(cycle(pool), parts, strict=False):
            if len(queue) == WINDOW * len(pool):
                yield ray.get(queue.popleft())
            queue.append(actor.answer.remote(part))
        while queue:
            yield ray.get(queue.popleft())
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error
    except ray.exceptions.RayError as error:
        reason = " ".join(str(error).split())[:200]
        raise RunError(
            f"--on ray: the actors do not stay alive ({reason}); Ray's logs say why (often memory:"
            " fewer --actors); then give the same command again, which continues"
        ) from error
