"""Registry of data sources: opening, identity and portable spelling of a source, by its scheme.

A source is ``SCHEME:REST``, read by the module of that name in ``data.formats``, or SQuAD JSON: a file, a
folder or a glob. Several files form a single set. No other module refers to schemes by name.
"""

from __future__ import annotations

import os
import pkgutil
import re
from collections.abc import Mapping
from functools import cache
from glob import glob
from importlib import import_module
from pathlib import Path
from typing import Any

from qa_arch.config.check import suggest
from qa_arch.data import formats, squad
from qa_arch.data.formats import PASSAGES, Format, OnError, Use
from qa_arch.data.input_files import Paths, as_list, content_hash
from qa_arch.data.question_sets import question_set
from qa_arch.errors import DataError
from qa_arch.manifest import from_extras
from qa_arch.metrics.languages import ENGLISH
from qa_arch.types.text import QuestionSet

DATA_FOLDER = "QA_ARCH_DATA"
"""Environment variable that names the folder of data sets."""


def open_source(source: Paths, *, name: str = "", on_error: OnError = "raise", use: Use = "training") -> Any:
    """Open the set of ``source`` for ``use``, a ``QuestionSet`` if it holds passages; ``name`` is used by
    formats whose sets have no name.

    Raises DataError if it cannot be read or joined, UnavailableError without a required network.
    """
    scheme, parts = _resolve(source)
    return _format(scheme).open(parts, name=name, on_error=on_error, use=use)


def open_passages(
    source: Paths,
    *,
    name: str = "",
    on_error: OnError = "raise",
    use: Use = "training",
    language: str = ENGLISH,
) -> QuestionSet:
    """Open a source with passages. Raises DataError before reading for a source without.

    Answers are scored by the rules of ``language``, which is part of the set's fingerprint.
    """
    require_passages(source)
    questions = open_source(source, name=name, on_error=on_error, use=use)
    assert isinstance(questions, QuestionSet)
    if language == ENGLISH:
        return questions
    return question_set(
        questions.name, questions.examples, questions.protocol, questions.skipped, language=language
    )


def holds(source: Paths) -> str:
    """Kind of the questions in a source, determined by its scheme alone."""
    return _format(_resolve(source)[0]).holds


def licence(source: Paths) -> str:
    """Licence of the set, as a sentence; empty if its format does not know it."""
    return _format(_resolve(source)[0]).licence


def require_passages(source: Paths, setting: str = "") -> None:
    """Raise DataError unless ``source`` holds passages; ``setting`` is its config key, for the message."""
    require(source, PASSAGES, "data=squad2", setting)


def require(source: Paths, wanted: str, example: str, setting: str = "") -> None:
    """Raise DataError unless ``source`` is of the kind ``wanted``, of which ``example`` is a choice."""
    form = _format(_resolve(source)[0])
    if form.holds != wanted:
        raise DataError(
            f"{setting + ': ' if setting else ''}{' '.join(as_list(source))}: holds {form.holds}, not"
            f" {wanted}; use {form.model} with it, or {example}"
        )


def files(source: Paths) -> list[Path]:
    """Files of a source, in order; none if its name identifies it."""
    scheme, parts = _resolve(source)
    return [file for part in parts for file in _format(scheme).files(part)]


def identity(source: Paths) -> str:
    """Content hashes of the files of a source, in order; the source itself if it has no files.

    Raises DataError for a missing file.
    """
    scheme, parts = _resolve(source)
    hashes = "+".join(map(content_hash, files(source))) or "+".join(parts)
    return f"{scheme}:{hashes}" if scheme else hashes


def available(source: Paths) -> bool:
    """Whether the source needs no network and its files exist."""
    scheme, _ = _resolve(source)
    try:
        return _format(scheme).offline and all(file.exists() for file in files(source))
    except DataError:
        return False


def require_present(source: Paths, setting: str) -> None:
    """Raise DataError naming the config key ``setting`` if a file of ``source`` does not exist."""
    try:
        missing = [file for file in files(source) if not file.exists()]
    except DataError as error:
        raise DataError(f"{setting}: {error}") from None
    if missing:
        raise DataError(f"{setting}: {missing[0]} does not exist; check the path")


def counts(source: str) -> dict[str, int]:
    """Counts of ``questions``, right ``answers`` and ``question_words`` of a set without passages."""
    scheme, parts = _resolve(source)
    count = _format(scheme).counts
    assert count is not None
    return dict(count(parts[0]))


def portable(source: str) -> str:
    """Rewrite absolute paths relative to ``$QA_ARCH_DATA`` or the working folder (``./``).

    Schemes, including those of a corpus (``squad:FILE``), and relative paths are unchanged. Raises DataError
    for a path outside both.
    """
    prefix = re.match(r"\w+:(?=[\w/.])(?!//)", source)
    if prefix:
        return f"{prefix[0]}{portable(source[prefix.end() :])}"
    path = Path(source)
    if not path.is_absolute():
        return source
    data = os.environ.get(DATA_FOLDER)  # may be a link: paths can start with its name or its target
    folders = (Path(data).absolute(), Path(data).resolve()) if data else ()
    for base, name in (*((folder, f"${DATA_FOLDER}") for folder in folders), (Path.cwd(), ".")):
        if path.is_relative_to(base):
            return f"{name}/{path.relative_to(base).as_posix()}"
    raise DataError(
        f"{source} is outside the working folder and ${DATA_FOLDER};"
        f" set {DATA_FOLDER} to a folder that contains it"
    )


def local(source: str) -> str:
    """Expand ``$QA_ARCH_DATA`` (default ``data``) in a portable source."""
    return source.replace(f"${DATA_FOLDER}/", f"{os.environ.get(DATA_FOLDER, 'data')}/")


def usage(*, passages: bool = True) -> str:
    """Spelling of the sources that hold ``passages``, or of all others, for help texts."""
    known = [_format(scheme) for scheme in ("", *schemes())]
    *most, last = [item.usage for item in known if (item.holds == PASSAGES) == passages] or [""]
    return f"{', '.join(most)} or {last}" if most else last


@cache
def schemes() -> Mapping[str, str]:
    """All schemes, sorted, and their modules: those of ``data.formats`` and of extras."""
    own = {name: f"{formats.__name__}.{name}" for _, name, _ in pkgutil.iter_modules(formats.__path__)}
    return dict(sorted((own | from_extras("formats", own)).items()))


def split_scheme(source: str) -> tuple[str, str]:
    """(scheme, rest) of a source; a path has an empty scheme, even if it contains colons."""
    scheme, colon, rest = source.partition(":")
    return (scheme, rest) if colon and scheme in schemes() else ("", source)


def _resolve(source: Paths) -> tuple[str, list[str]]:
    """(scheme, parts without it) of a source. Raises DataError for parts that cannot be joined."""
    items = as_list(source)
    if not items:
        raise DataError(f"no data given; name {usage()}")
    pairs = [split_scheme(item) for item in items]
    mixed = len({scheme for scheme, _ in pairs}) > 1
    for item, (scheme, _) in zip(items, pairs, strict=True):
        if not scheme:
            _reject_unknown_scheme(item)
        data_format = _format(scheme)
        if len(items) > 1 and (not data_format.joins or (mixed and scheme)):
            raise DataError(f"{item}: {data_format.title} cannot be joined with others; name one at a time")
    return pairs[0][0], [rest for _, rest in pairs]


def _reject_unknown_scheme(path: str) -> None:
    """Raise DataError for a path that does not exist and starts with an unknown scheme."""
    match = re.match(r"([A-Za-z]\w+):", path)
    if match and not Path(path).exists() and not glob(path):  # noqa: PTH207 (it may be absolute)
        hint = suggest(match[1], schemes())
        raise DataError(f"{path}: no such file, and no scheme '{match[1]}:'{hint}")


@cache
def _format(scheme: str) -> Format:
    if not scheme:
        return squad.FORMAT
    module, _, name = schemes()[scheme].partition(":")
    return getattr(import_module(module), name or "FORMAT")
