"""``types:FILE`` and ``types:synthetic:SPLIT``: questions with classes, in the format of the TREC files.

``train_5500.label`` and ``TREC_10.label`` (Li & Roth 2002) have a question per line: ``MAIN:sub``, then the
words of the question, separated by blanks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from qa_arch.data.formats import Format, OnError
from qa_arch.errors import DataError
from qa_arch.extras.selection.sets import CLASSES, class_set
from qa_arch.types.text import SelectionSet

_SYNTHETIC = "synthetic:"


def open_types(source: str, *, name: str = "") -> SelectionSet:
    """Open a file, or ``synthetic:SPLIT`` for the generated questions (train, calibration, dev).

    Raises DataError naming file and line.
    """
    if source.startswith(_SYNTHETIC):
        from qa_arch.extras.selection import wordings

        split = source.removeprefix(_SYNTHETIC)
        return class_set(name or split, wordings.named(split))
    path = Path(source).expanduser()
    return class_set(name or path.stem, _lines(path))


def _open(sources: Sequence[str], *, name: str, on_error: OnError) -> SelectionSet:
    return open_types(sources[0], name=name)


def _files(source: str) -> tuple[Path, ...]:
    return () if source.startswith(_SYNTHETIC) else (Path(source).expanduser(),)


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        label, _, question = line.strip().partition(" ")
        if label not in CLASSES:
            raise DataError(
                f"{path}: line {number}: {label!r} is not a class; write MAIN:sub, a blank and the question"
                " (DESC:def What is ...), as in train_5500.label"
            )
        if not question.strip():
            raise DataError(f"{path}: line {number}: no question follows {label}; fetch the file again")
        yield label, question.strip()


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise DataError(
            f"{path}: no such file; name train_5500.label or TREC_10.label, or types:synthetic:train"
        ) from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error})") from None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")  # as the files are published


FORMAT = Format("types:FILE", "a file of questions with classes", open=_open, holds="classes", files=_files)
