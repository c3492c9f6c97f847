"""Corpora: streams of documents from text files, passages of question sets, and hub data sets.

A source is spelled like one of ``data.sources``:

- a text file, a folder of ``*.txt`` or a glob: UTF-8, a blank line ends a document;
- ``squad:SOURCE``: each distinct passage of a question set is a document; SOURCE is whatever
  ``data.train`` takes (SQuAD JSON, ``mrqa:FILE``, ``synthetic:train``, ``hub:NAME:SPLIT``);
- ``hub:NAME[@REVISION][:COLUMN[:CONFIG]]``: each row of the ``train`` split of a hub data set, streamed.

Only a question set is read as a whole; the other kinds take constant memory, however large they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from qa_arch.data.input_files import Paths, as_list, content_hash, expand
from qa_arch.data.sources import identity, open_passages
from qa_arch.errors import ConfigError, DataError
from qa_arch.pretraining import hub_texts, text_files

_RECORDS = (".json", ".jsonl", ".ndjson", ".csv", ".tsv")
"""Endings of files whose text is a column or a field."""


@dataclass(frozen=True)
class Corpus:
    """Documents in a fixed order, read again from their source by every pass."""

    name: str
    fingerprint: str
    """Hash of the content; of a hub data set, of its files at a commit."""
    size: int | None
    """Bytes of the text where known without reading it, for progress."""
    _stream: Callable[[], Iterator[str]]

    def documents(self) -> Iterator[str]:
        """Documents one after another, none of them blank.

        Raises DataError, naming the file and what to do, for a source that cannot be read; at the end, for
        a corpus without text.
        """
        count = 0
        for document in self._stream():
            count += 1
            if not document.isascii():
                self._require_unicode(document, count)
            yield document
        if not count:
            raise DataError(f"{self.name}: holds no text; name a corpus with documents")

    def _require_unicode(self, document: str, number: int) -> None:
        try:
            document.encode()
        except UnicodeEncodeError as error:
            near = document[max(0, error.start - 30) : error.start]
            raise DataError(
                f"{self.name}: document {number} holds half a surrogate pair after {near!r}; write the source"
                " again as UTF-8"
            ) from None


def open_corpus(sources: Paths) -> Corpus:
    """The corpus of a source, or of several, one after another.

    Raises DataError for a missing file, an empty folder or an unknown scheme, UnavailableError where a hub
    data set cannot be reached. Documents are read later, by ``documents``.
    """
    items = as_list(sources)
    if not items:
        raise DataError("no corpus was named; give a text file, squad:FILE or hub:NAME")
    parts = [part for item in items for part in _open(item)]
    if len(parts) == 1:
        return parts[0]
    sizes = [part.size for part in parts]
    return Corpus(
        " + ".join(items),
        _digest(*(part.fingerprint for part in parts)),
        None if None in sizes else sum(size or 0 for size in sizes),
        lambda: (document for part in parts for document in part._stream()),
    )


def split(corpus: Corpus, share: float, seed: int) -> tuple[Corpus, Corpus]:
    """(rest, held out): each document is held out with probability ``share``, by a hash of seed and text.

    So equal documents stay in the same part, and the order of the corpus does not matter. Raises ConfigError
    for a share outside (0, 1); reading a part that got no document raises DataError.
    """
    if not 0 < share < 1:
        raise ConfigError(
            f"a share of {share:g} of {corpus.name} cannot be held out; give one between 0 and 1"
        )

    def part(held: bool, title: str) -> Corpus:
        return Corpus(
            f"{corpus.name} ({title} of seed {seed}, share {share:g})",
            _digest(corpus.fingerprint, repr(share), str(seed), title),
            None,
            lambda: (text for text in corpus.documents() if _is_held(text, share, seed) == held),
        )

    return part(False, "rest"), part(True, "held out")


def _is_held(document: str, share: float, seed: int) -> bool:
    digest = hashlib.blake2b(f"{seed}\0{document}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) < share * 2**64


def _open(source: str) -> list[Corpus]:
    """The corpora of a source: a single one, or one per text file."""
    scheme, _, rest = source.partition(":")
    if scheme == "squad":
        return [Corpus(source, _digest("passages", identity(rest)), None, lambda: _passages(rest))]
    if scheme == "hub":
        dataset = hub_texts.open_dataset(rest)
        return [Corpus(source, _digest("hub", dataset.identity), None, dataset.documents)]
    return [_text_file(path) for path in expand(source, "*.txt")]


def _text_file(path: Path) -> Corpus:
    if path.suffix in _RECORDS:
        raise DataError(
            f"{path}: is no plain text; for the passages of a question set write squad:{path}, for a column"
            " of a folder of such files hub:FOLDER:COLUMN"
        )
    return Corpus(
        str(path),
        _digest("text", content_hash(path)),
        path.stat().st_size,
        lambda: text_files.documents(path),
    )


def _passages(source: str) -> Iterator[str]:
    questions = open_passages(source)
    passages = dict.fromkeys(example.context for example in questions.examples)
    return (passage for passage in passages if passage.strip())


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
