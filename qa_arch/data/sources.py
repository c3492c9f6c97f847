"""Registry of data sources: opening, identity and portable spelling of a source, by its scheme.

A source is ``SCHEME:REST``, or a path: a file, a folder or a glob of SQuAD JSON, JSON Lines, CSV, TSV,
Parquet or MRQA. Several files form a single set. No other module refers to schemes by name.
``hub:NAME[@REVISION]:SPLIT[:CONFIG]`` is a split of a Hugging Face data set with SQuAD's columns, such as
``hub:google/xquad:validation:xquad.de``; slices such as ``train[:10%]`` work. ``synthetic:SPLIT[:LEVEL]`` is
a split of the built-in synthetic set, and ``memory:HASH`` are rows given from Python (``data.memory``).
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from glob import glob
from importlib import import_module
from pathlib import Path
from typing import Any

from qa_arch import hub
from qa_arch.config.check import suggest
from qa_arch.data import squad
from qa_arch.data.files import PASSAGES, Format, OnError, Paths, Use, as_list, content_hash
from qa_arch.data.question_sets import RawQuestion, build
from qa_arch.errors import DataError, UnavailableError, first_line, named, one_line
from qa_arch.files import DATA_FOLDER, data_folder
from qa_arch.manifest import from_extras
from qa_arch.types import QuestionSet

log = logging.getLogger(__name__)

_NAMES = {"squad": "rajpurkar/squad", "squad_v2": "rajpurkar/squad_v2"}


def split_source(source: str) -> tuple[str, str, str, str]:
    """(data set, revision, split, configuration) of a source without its scheme; missing parts are empty."""
    name, _, rest = source.partition(":")
    dataset, _, revision = name.partition("@")
    split = re.match(r"(?:\[[^]]*]?|[^:\[])*", rest)  # a colon in brackets belongs to a slice
    assert split is not None
    return _NAMES.get(dataset, dataset), revision, split[0], rest[split.end() + 1 :]


def _open_hub(sources: Sequence[str], *, name: str, on_error: OnError, use: Use) -> QuestionSet:
    """Read a split with SQuAD's columns; NAME may be a local folder that ``datasets`` loads.

    Raises UnavailableError if the hub cannot be reached and nothing is cached, DataError for an unknown split
    or configuration, or faulty records.
    """
    dataset, revision, split, config = split_source(sources[0])
    if not dataset or not split:
        raise DataError(
            f"hub:{sources[0]}: write hub:NAME:SPLIT or hub:NAME:SPLIT:CONFIG, such as"
            " hub:rajpurkar/squad_v2:validation"
        )
    source = f"hub:{dataset}{'@' + revision if revision else ''}:{split}{':' + config if config else ''}"
    try:
        rows = hub.retried(lambda: _load(dataset, revision, split, config))
    except Exception as error:  # hub clients raise errors of many libraries
        reason = one_line(error, 400)
        if isinstance(error, ValueError) and reason.startswith(("Unknown split", "Bad split")):
            raise DataError(f"{source}: {reason.rstrip('.')}; name an existing split") from error
        if isinstance(error, ValueError) and re.match(
            "Config name is missing|BuilderConfig .*not found", reason
        ):
            example = source.removesuffix(f":{config}") if config else source
            raise DataError(f"{source}: name a configuration: {example}:CONFIG ({reason})") from error
        if closed := hub.closed_data_set(dataset, revision, error):
            raise UnavailableError(f"{source}: {closed}") from error
        cause = hub.interruption(error) or f"{type(error).__name__}: {first_line(error)}"
        raise UnavailableError(
            f"{source}: cannot be loaded ({cause}); check the name and the network, "
            "or give SQuAD JSON files by path instead"
        ) from error
    batches = rows.with_format("arrow").iter(batch_size=1000)  # row by row takes six times as long
    records = (record for batch in batches for record in batch.to_pylist())
    questions = (RawQuestion(f"row {index}", record) for index, record in enumerate(records))
    title = name or ":".join(filter(None, (dataset, split, config)))
    return build(title, [(source, False, questions)], on_error, use)


def _load(dataset: str, revision: str, split: str, config: str) -> Any:
    """The rows of a split. Offline, ``datasets`` takes the newest that it has of any revision."""
    import datasets

    pinned = revision not in ("", "main") and not Path(dataset).is_dir()
    if not pinned or not datasets.config.HF_HUB_OFFLINE:
        return datasets.load_dataset(dataset, config or None, split=split, revision=revision or None)
    folder = hub.prepared(dataset, config, revision)
    if folder is None:
        raise FileNotFoundError(f"revision {revision} was not downloaded before")
    from datasets.packaged_modules.cache.cache import Cache

    name, version, commit = folder.parts[-3:]
    short = dataset.rpartition("/")[2]
    builder = Cache(dataset_name=short, config_name=name, version=version, hash=commit, repo_id=dataset)
    return builder.as_dataset(split=split)


HUB = Format("hub:NAME:SPLIT[:CONFIG]", "a hub set", open=_open_hub, files=lambda source: (), offline=False)


def _open_synthetic(sources: Sequence[str], *, name: str, on_error: OnError, use: Use) -> QuestionSet:
    from qa_arch.data import synthetic

    return synthetic.named(sources[0])


SYNTHETIC = Format(
    "synthetic:SPLIT",
    "the embedded set",
    open=_open_synthetic,
    files=lambda source: (),
    licence="These questions were generated by qa_arch and are free to use.",
)


OWN = {
    "hub": f"{__name__}:HUB",
    "memory": "qa_arch.data.memory:MEMORY",
    "mrqa": "qa_arch.data.squad:MRQA",
    "synthetic": f"{__name__}:SYNTHETIC",
}


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
    language: str | None = None,
) -> QuestionSet:
    """Open a source with passages. Raises DataError before reading for a source without.

    Answers are scored by the rules of ``language`` (default: English), part of the set's fingerprint.
    """
    require_passages(source)
    questions = open_source(source, name=name, on_error=on_error, use=use)
    assert isinstance(questions, QuestionSet)
    return questions if language in (None, questions.language) else replace(questions, language=language)


def open_listed(source: Paths, **options: Any) -> QuestionSet:
    """``open_passages``, with each faulty record that is left out in the log."""
    questions = open_passages(source, **options)
    for problem in questions.skipped:
        log.warning("left out: %s", problem)
    return questions


def format_of(source: Paths) -> Format:
    """Format of a source, determined by its scheme alone."""
    return _format(_resolve(source)[0])


def recorded_format(source: Paths) -> Format:
    """Format of a source of a record, whose files, which may have colons in their names, may not be here."""
    return _format(next((split_scheme(item)[0] for item in as_list(source)), ""))


def require_passages(source: Paths, setting: str = "") -> None:
    """Raise DataError unless ``source`` holds passages; ``setting`` is its config key, for the message."""
    require(source, PASSAGES, "data=squad2", setting)


def require(source: Paths, wanted: str, example: str, setting: str = "") -> None:
    """Raise DataError unless ``source`` is of the kind ``wanted``, of which ``example`` is a choice."""
    form = format_of(source)
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
    with named(setting):
        missing = [file for file in files(source) if not file.exists()]
    if missing:
        raise DataError(f"{setting}: {missing[0]} does not exist; check the path")


def portable(source: str) -> str:
    """Rewrite absolute paths relative to ``$QA_ARCH_DATA`` or the working folder (``./``).

    Schemes, including those of a corpus (``squad:FILE``), and relative paths are unchanged. Raises DataError
    for a path outside both.
    """
    prefix = re.match(r"\w+:(?=[\w/.])(?!//)", source)  # not that of a URL
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
    return source.replace(f"${DATA_FOLDER}/", f"{data_folder()}/")


def usage(*, passages: bool = True) -> str:
    """Spelling of the sources that hold ``passages``, or of all others, for help texts of commands."""
    known = [item for item in map(_format, ("", *schemes())) if item.typed]
    *most, last = [item.usage for item in known if (item.holds == PASSAGES) == passages] or [""]
    return f"{', '.join(most)} or {last}" if most else last


@cache
def schemes() -> Mapping[str, str]:
    """All schemes, sorted, and where their ``Format`` is: ``MODULE:NAME``, also of extras."""
    return dict(sorted((OWN | from_extras("formats", OWN)).items()))


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
