"""Corpora: streams of documents from text files, passages of question sets, and hub data sets.

A source is spelled like one of ``data.sources``:

- a text file, a folder of ``*.txt`` or a glob: UTF-8, a blank line ends a document;
- ``squad:SOURCE``, or SOURCE alone: each distinct passage of a question set is a document; SOURCE is whatever
  ``data.train`` takes (SQuAD JSON, ``mrqa:FILE``, ``synthetic:train``; ``squad:hub:NAME:SPLIT``);
- ``hub:NAME[@REVISION][:COLUMN[:CONFIG]]``: each row of the ``train`` split of a hub data set, streamed.

Only a question set is read as a whole; the other kinds take constant memory, however large they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from qa_arch.config.schema import Data, Source
from qa_arch.data import sources
from qa_arch.data.input_files import Paths, as_list, content_hash, expand
from qa_arch.errors import ConfigError, DataError, UnavailableError

LONGEST = 1 << 20
"""Characters after which a document of a text file ends with its line."""
SPLIT = "train"
"""The split of a hub data set that is read."""
_QUESTIONS = (".json", ".jsonl", ".json.gz", ".jsonl.gz")
"""Endings of files that are question sets without ``squad:`` in front."""


@dataclass(frozen=True)
class Corpus:
    """Documents in a fixed order, read again from their source by every pass."""

    source: str
    """As it was spelled, for messages."""
    name: str
    """Without folders, as it stands in records."""
    fingerprint: str
    """Hash of the content; of a hub data set, of its files at a commit."""
    stream: Callable[[], Iterator[str]]
    protocol: str = ""
    """The objective of the run that reads it."""
    titles: ClassVar[frozenset[str]] = frozenset()
    """Always empty: documents have no articles by which a test set could be found to be trained on."""

    def documents(self) -> Iterator[str]:
        """Documents one after another, none of them blank.

        Raises DataError for a source that cannot be read and, at the end, for a corpus without text.
        """
        empty = True
        for document in self.stream():
            empty = False
            yield document
        if empty:
            raise DataError(f"{self.source}: holds no text; name a corpus with documents")


def open_corpus(paths: Paths, protocol: str = "") -> Corpus:
    """The corpus of a source, or of several, one after another.

    Raises DataError for a missing file or an empty folder, UnavailableError where a hub data set cannot be
    reached. Documents are read later, by ``documents``.
    """
    items = [_as_corpus(item) for item in as_list(paths)]
    if not items:
        raise DataError("no corpus was named; give a text file, squad:FILE or hub:NAME")
    parts = [part for item in items for part in _open(item)]
    return Corpus(
        parts[0].source if len(parts) == 1 else " + ".join(items),
        ", ".join(map(_title, items)),
        parts[0].fingerprint if len(parts) == 1 else _digest(*(part.fingerprint for part in parts)),
        lambda: (document for part in parts for document in part.stream()),
        protocol,
    )


def _as_corpus(source: str) -> str:
    """``source`` with ``squad:`` in front where it is a question set."""
    scheme = sources.split_scheme(source)[0]
    questions = scheme in {*sources.schemes()} - {"hub"} or (not scheme and source.endswith(_QUESTIONS))
    return f"squad:{source}" if questions and not source.startswith("squad:") else source


def _open(source: str) -> list[Corpus]:
    """The corpora of a source: a single one, or one per text file."""
    scheme, _, rest = source.partition(":")
    if scheme == "squad":
        fingerprint = _digest("passages", sources.identity(rest))
        return [Corpus(source, source, fingerprint, partial(_passages, rest))]
    if scheme == "hub":
        return [_hub_data_set(rest)]
    return [
        Corpus(str(path), path.name, _digest("text", content_hash(path)), partial(_text_documents, path))
        for path in expand(source, "*.txt")
    ]


def _title(source: str) -> str:
    """The source without its folders, which differ from machine to machine."""
    scheme, colon, rest = source.rpartition(":")
    return source if scheme.startswith("hub") else f"{scheme}{colon}{Path(rest).name}"


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _passages(source: str) -> Iterator[str]:
    questions = sources.open_passages(source)
    passages = dict.fromkeys(example.context for example in questions.examples)
    return (passage for passage in passages if passage.strip())


def _text_documents(path: Path) -> Iterator[str]:
    """Documents of ``path``: its lines up to a blank line, joined by line breaks."""
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
            f"{path}: is not UTF-8 text (it holds 0x{error.object[error.start]:02x}); name a text file, or"
            " save it as UTF-8 (from Latin-1: iconv -f ISO-8859-1 -t UTF-8)"
        ) from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check its permissions") from None
    if lines:
        yield "\n".join(lines)


def _hub_data_set(rest: str) -> Corpus:
    """The corpus of ``NAME[@REVISION][:COLUMN[:CONFIG]]``; the column defaults to ``text``.

    NAME may be a local folder that ``datasets`` loads. Nothing is downloaded before documents are read.
    """
    from datasets import load_dataset_builder

    place, column, config = [*rest.split(":", 2), "", ""][:3]
    name, _, revision = place.partition("@")
    column = column or "text"
    with _reachable(rest):
        builder = load_dataset_builder(name, config or None, revision=revision or None)
    # On the hub, names of files hold their commit; offline, a data set from the cache names no files.
    files = (builder.config.data_files or {}).get(SPLIT, [builder.hash])
    hashes = [content_hash(Path(file)) if Path(file).is_file() else str(file) for file in files]
    fingerprint = _digest("hub", "\0".join([column, *hashes]))
    return Corpus(f"hub:{rest}", rest, fingerprint, partial(_rows, rest, builder, column))


def _rows(rest: str, builder: Any, column: str) -> Iterator[str]:
    with _reachable(rest):
        for number, row in enumerate(builder.as_streaming_dataset(split=SPLIT)):
            text = row.get(column)
            if not isinstance(text, str):
                raise DataError(
                    f"hub:{rest}: row {number} has no text in column '{column}'; name one with text as"
                    f" hub:NAME:COLUMN (columns: {', '.join(row)})"
                )
            if text.strip():
                yield text


@contextmanager
def _reachable(rest: str) -> Iterator[None]:
    try:
        yield
    except DataError:
        raise
    except Exception as error:  # the clients of the hub raise errors of many libraries
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UnavailableError(
            f"hub:{rest}: cannot be read ({type(error).__name__}: {reason}); check the name and the network,"
            " or give text files by path instead"
        ) from error


# The corpora of a run -------------------------------------------------------------------------------


def require_present(source: Source, setting: str) -> None:
    """Raise DataError, naming the config key ``setting``, where a file of the corpus does not exist.

    Nothing is read, and the hub is not asked.
    """
    for item in map(_as_corpus, as_list(source)):
        scheme, _, rest = item.partition(":")
        if scheme == "squad":
            sources.require_present(rest, setting)
        elif scheme != "hub":
            try:
                expand(item, "*.txt")
            except DataError as error:
                raise DataError(f"{setting}: {error}") from None


def identity(source: Source) -> str:
    """What identifies the corpus that a setting names, before any of it is read."""
    return open_corpus(source).fingerprint


def load_splits(data: Data, protocol: str) -> dict[str, Corpus]:
    """Train, calibration and dev of a run, in this order; splits without data are left out.

    Where the config names no calibration corpus, ``data.hold_out_share`` of the training documents is held
    out; ``data.train_questions`` then cuts train. Raises ConfigError for settings that ask for questions.
    """
    if data.hold_out_articles and data.calibration is None:
        raise ConfigError(
            "data.hold_out_articles: a corpus has no articles; set data.hold_out_share, a share of its"
            " documents, or name data.calibration"
        )
    splits = {"train": open_corpus(data.train, protocol)}
    if data.calibration is not None:
        splits["calibration"] = open_corpus(data.calibration, protocol)
    elif data.hold_out_share:
        parts = split(splits["train"], data.hold_out_share, data.split_seed)
        splits = dict(zip(("train", "calibration"), parts, strict=True))
    if count := data.train_questions:
        whole, title = splits["train"], f"(first {count:,} documents)"
        splits["train"] = replace(
            whole,
            source=f"{whole.source} {title}",
            name=f"{whole.name} {title}",
            fingerprint=_digest(whole.fingerprint, str(count)),
            stream=lambda: islice(whole.documents(), count),
        )
    if data.dev is not None and data.open_dev:
        splits["dev"] = open_corpus(data.dev, protocol)
    return splits


def split(corpus: Corpus, share: float, seed: int) -> tuple[Corpus, Corpus]:
    """(rest, held out): each document is held out with probability ``share``, by a hash of seed and text.

    So equal documents stay in the same part, and the order of the corpus does not matter. Reading a part that
    got no document raises DataError.
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
