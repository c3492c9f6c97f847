"""Corpora: streams of documents from text files, passages of question sets, and hub data sets.

Sources are spelled like those of ``data.sources``:

- a text file, a folder of ``*.txt`` or a glob: UTF-8, a blank line ends a document;
- ``squad:SOURCE``, or SOURCE alone: each distinct passage of a question set is a document; SOURCE is anything
  ``data.train`` accepts (SQuAD JSON, ``mrqa:FILE``, ``synthetic:train``; ``squad:hub:NAME:SPLIT``);
- ``hub:NAME[@REVISION][:COLUMN[:CONFIG]]``: each row of the ``train`` split of a hub data set, streamed.

Question sets are loaded whole; the other kinds are streamed in constant memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from qa_arch.config.schema import Config, Source
from qa_arch.data import sources
from qa_arch.data.files import TABLES, TEXTS, Paths, as_list, content_hash, expand
from qa_arch.errors import ConfigError, DataError, UnavailableError, first_line, named
from qa_arch.hub import closed_data_set, interruption, retried, split_revision

LONGEST = 1 << 20
"""A document of a text file ends at the line that brings it to this many characters."""
SPLIT = "train"
"""Split read from a hub data set."""
_QUESTIONS = (*(pattern.removeprefix("*") for pattern in TEXTS), *TABLES)
"""Suffixes of files read as question sets even without ``squad:``."""


@dataclass(frozen=True)
class Corpus:
    """Documents in a fixed order; every pass reads them again from the source."""

    source: str
    """Source as given, for messages."""
    name: str
    """Source without folders, for records."""
    fingerprint: str
    """Hash of the content; for a hub data set, of its files at a commit."""
    stream: Callable[[], Iterator[str]]
    parts: Mapping[str, str] = field(default_factory=dict)
    """Fingerprint -> source of each file or data set that it was made of."""
    titles: ClassVar[frozenset[str]] = frozenset()
    """Always empty: documents have no article titles by which to detect overlap with a test set."""

    def documents(self) -> Iterator[str]:
        """Iterate over the documents, none of them blank.

        Raises DataError for an unreadable source and, at the end, for a corpus without text.
        """
        empty = True
        for document in self.stream():
            empty = False
            yield document
        if empty:
            raise DataError(f"{self.source}: holds no text; name a corpus with documents")


def open_corpus(paths: Paths) -> Corpus:
    """Open one source, or several as one concatenated corpus.

    Raises DataError for a missing file, an empty folder or a glob of texts and records, UnavailableError if a
    hub data set cannot be reached. Documents are read later, by ``documents``.
    """
    items = [_with_scheme(item) for item in as_list(paths)]
    if not items:
        raise DataError("no corpus was named; give a text file, squad:FILE or hub:NAME")
    parts = [part for item in items for part in _open(item)]
    return Corpus(
        parts[0].source if len(parts) == 1 else " + ".join(items),
        ", ".join(map(_without_folders, items)),
        parts[0].fingerprint if len(parts) == 1 else _digest(*(part.fingerprint for part in parts)),
        lambda: (document for part in parts for document in part.stream()),
        {part.fingerprint: part.source for part in parts},
    )


def _with_scheme(source: str) -> str:
    """``source`` with ``squad:`` prepended if it is a question set."""
    scheme = sources.split_scheme(source)[0]
    has_questions = scheme in {*sources.schemes()} - {"hub"} or (not scheme and source.endswith(_QUESTIONS))
    return f"squad:{source}" if has_questions and not source.startswith("squad:") else source


def _open(source: str) -> list[Corpus]:
    """One corpus per text file, otherwise a single one."""
    scheme, _, rest = source.partition(":")
    if scheme == "squad":
        fingerprint = _digest("passages", sources.identity(rest))
        return [Corpus(source, source, fingerprint, partial(_passages, rest))]
    if scheme == "hub":
        return [_hub_data_set(rest)]
    return [
        Corpus(str(path), path.name, _digest("text", content_hash(path)), partial(_text_documents, path))
        for path in _text_files(source)
    ]


def _text_files(source: str) -> list[Path]:
    """Files of a text corpus. Raises DataError for a missing one, and one that holds records."""
    paths = expand(source, ["*.txt"])
    if records := [path for path in paths if path.name.endswith(_QUESTIONS)]:
        raise DataError(f"{records[0]}: holds records, not text; name question sets as squad:FILE")
    return [*paths]


def _without_folders(source: str) -> str:
    """``source`` without its folders, which differ between machines."""
    scheme, colon, rest = source.rpartition(":")
    return source if scheme.startswith("hub") else f"{scheme}{colon}{Path(rest).name}"


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _passages(source: str) -> Iterator[str]:
    questions = sources.open_passages(source, use="answering")
    passages = dict.fromkeys(example.context for example in questions.examples)
    return (passage for passage in passages if passage.strip())


def _text_documents(path: Path) -> Iterator[str]:
    """Documents of ``path``: runs of lines between blank lines."""
    lines: list[str] = []
    size = 0
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            for line in file:
                if text := line.rstrip():
                    lines.append(text)
                    size += len(line)
                if lines and (not text or size >= LONGEST):
                    yield "\n".join(lines)
                    lines, size = [], 0
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: is not UTF-8 text (contains byte 0x{error.object[error.start]:02x}); name a text file,"
            " unpack a packed one (gunzip), or convert it (from Latin-1: iconv -f ISO-8859-1 -t UTF-8)"
        ) from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check its permissions") from None
    if lines:
        yield "\n".join(lines)


def _hub_data_set(rest: str) -> Corpus:
    """Corpus for ``NAME[@REVISION][:COLUMN[:CONFIG]]``; the column defaults to ``text``.

    NAME may be a local folder that ``datasets`` can load. Nothing is downloaded until documents are read.
    """
    from datasets import load_dataset_builder

    place, column, config = [*rest.split(":", 2), "", ""][:3]
    name, _, revision = place.partition("@")
    column = column or "text"
    if not name:
        raise DataError(f"hub:{rest}: names no data set; write hub:NAME:COLUMN, such as hub:OWNER/NAME:text")
    with _hub_errors(rest):
        builder = retried(lambda: load_dataset_builder(name, config or None, revision=revision or None))
    # File names on the hub contain their commit. Offline, a cached data set lists no files, and all its
    # configurations have the hash of one commit.
    files = (builder.config.data_files or {}).get(SPLIT) or [f"{builder.config.name}:{builder.hash}"]
    hashes = [content_hash(Path(file)) if Path(file).is_file() else str(file) for file in files]
    fingerprint = _digest("hub", "\0".join([column, *hashes]))
    return Corpus(f"hub:{rest}", rest, fingerprint, partial(_rows, rest, builder, column))


def _rows(rest: str, builder: Any, column: str) -> Iterator[str]:
    with _hub_errors(rest):
        for number, row in enumerate(builder.as_streaming_dataset(split=SPLIT)):
            text = row.get(column)
            if not isinstance(text, str):
                raise DataError(
                    f"hub:{rest}: row {number} has no text in column '{column}'; name a text column as"
                    f" hub:NAME:COLUMN (columns: {', '.join(row)})"
                )
            if text.strip():
                yield text


@contextmanager
def _hub_errors(rest: str) -> Iterator[None]:
    try:
        yield
    except DataError:
        raise
    except Exception as error:  # hub clients raise exceptions from many libraries
        if closed := closed_data_set(*split_revision(rest.partition(":")[0]), error):
            raise UnavailableError(f"hub:{rest}: {closed}") from error
        cause = interruption(error) or f"{type(error).__name__}: {first_line(error)}"
        raise UnavailableError(
            f"hub:{rest}: cannot be read ({cause}); check the name and the network,"
            " or give text files by path instead"
        ) from error


# The corpora of a run -------------------------------------------------------------------------------


def require_files(config: Config) -> None:
    """Raise DataError naming the config key if a file of a corpus is missing.

    Reads nothing and does not query the hub.
    """
    for setting, source in config.data.opened.items():
        for item in map(_with_scheme, as_list(source)):
            scheme, _, rest = item.partition(":")
            if scheme == "squad":
                sources.require_present(rest, setting)
            elif scheme != "hub":
                with named(setting):
                    _text_files(item)


def identity(source: Source) -> str:
    """Fingerprint of the corpus that a setting names, without reading its documents."""
    return open_corpus(source).fingerprint


def open_set(config: Config, source: Source, name: str = "") -> Corpus:
    """Open a corpus to score."""
    return open_corpus(source)


def refuse_articles(config: Config) -> None:
    """Raise ConfigError if articles would have to be held out of a corpus."""
    if config.data.hold_out_articles and config.data.calibration is None:
        raise ConfigError(
            "data.hold_out_articles: a corpus has no articles; set data.hold_out_share, a fraction of"
            " its documents, or name data.calibration"
        )


def load_splits(config: Config) -> dict[str, Corpus]:
    """Train, calibration and dev corpora of a run, in this order; splits without data are omitted.

    Without a calibration corpus, ``data.hold_out_share`` of the training documents is held out;
    ``data.train_questions`` then truncates train. Raises ConfigError for settings that need questions,
    DataError for a file or data set that is both trained on and scored.
    """
    data = config.data
    refuse_articles(config)
    splits = {"train": open_corpus(data.train)}
    if data.calibration is not None:
        splits["calibration"] = open_corpus(data.calibration)
        _require_disjoint(splits["train"], splits["calibration"], "data.calibration")
    elif data.hold_out_share:
        parts = split(splits["train"], data.hold_out_share, data.split_seed)
        splits = dict(zip(("train", "calibration"), parts, strict=True))
    if count := data.train_questions:
        full, title = splits["train"], f"(first {count:,} documents)"
        splits["train"] = replace(
            full,
            source=f"{full.source} {title}",
            name=f"{full.name} {title}",
            fingerprint=_digest(full.fingerprint, str(count)),
            stream=lambda: islice(full.documents(), count),
        )
    if data.dev is not None and data.open_dev:
        splits["dev"] = open_corpus(data.dev)
        _require_disjoint(splits["train"], splits["dev"], "data.dev")
    return splits


def _require_disjoint(train: Corpus, scored: Corpus, setting: str) -> None:
    """Raise DataError if a file or data set of ``scored`` is trained on; copies have the same fingerprint."""
    if shared := [source for key, source in scored.parts.items() if key in train.parts]:
        raise DataError(f"{setting}: {shared[0]} is part of data.train; score text that is not trained on")


def split(corpus: Corpus, share: float, seed: int) -> tuple[Corpus, Corpus]:
    """(rest, held out): a hash of seed and text holds out each document with probability ``share``.

    Equal documents stay in the same part, and the order of the corpus does not matter. Reading an empty part
    raises DataError.
    """

    def is_held(document: str) -> bool:
        digest = hashlib.blake2b(f"{seed}\0{document}".encode(), digest_size=8).digest()
        return int.from_bytes(digest) < share * 2**64

    def part(held: bool, title: str) -> Corpus:
        return replace(
            corpus,
            source=f"{corpus.source} ({title} of seed {seed}, share {share:g})",
            name=f"{corpus.name} ({title})",
            fingerprint=_digest(corpus.fingerprint, repr(share), str(seed), title),
            stream=lambda: (text for text in corpus.documents() if is_held(text) == held),
        )

    return part(False, "rest"), part(True, "held out")
