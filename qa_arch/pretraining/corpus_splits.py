"""Opening of a pre-training run's train, calibration and dev corpora, as its config names them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from qa_arch.config.schema import Data, Source
from qa_arch.data import sources
from qa_arch.data.input_files import as_list, expand
from qa_arch.data.sources import schemes, split_scheme
from qa_arch.errors import ConfigError, DataError
from qa_arch.pretraining.corpus import Corpus, open_corpus, split

_QUESTION_FILES = (".json", ".jsonl", ".json.gz", ".jsonl.gz")


@dataclass(frozen=True)
class CorpusSplit:
    """The corpus of a split, with what a set of questions has as well."""

    name: str
    """Without folders, as it stands in records."""
    corpus: Corpus
    protocol: str
    """The objective."""
    titles: frozenset[str] = frozenset()
    """None: documents have no articles by which a set could be told to be trained on."""

    @property
    def fingerprint(self) -> str:
        return self.corpus.fingerprint


def open_split(source: Source, protocol: str) -> CorpusSplit:
    """The corpus that ``source`` names; a set of questions is read as its passages."""
    items = [_as_corpus(item) for item in as_list(source)]
    return CorpusSplit(", ".join(map(_title, items)), open_corpus(items), protocol)


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


def corpus_identity(source: Source) -> str:
    """What identifies the corpus that ``source`` names, before any of it is read."""
    return open_split(source, "").fingerprint


def load_splits(data: Data, protocol: str) -> dict[str, CorpusSplit]:
    """Train, calibration and dev of a run, in this order; splits without data are left out.

    Where the config names no calibration corpus, ``data.hold_out_share`` of the training documents is held
    out; ``data.train_questions`` then cuts train. Raises ConfigError for settings that ask for questions.
    """
    if data.made_up_share:
        raise ConfigError("data.made_up_share: a corpus has no questions to make more of; set it to 0")
    if data.hold_out_articles and data.calibration is None:
        raise ConfigError(
            "data.hold_out_articles: a corpus has no articles; set data.hold_out_share, a share of its"
            " documents, or name data.calibration"
        )
    splits = {"train": open_split(data.train, protocol)}
    if data.calibration is not None:
        splits["calibration"] = open_split(data.calibration, protocol)
    elif data.hold_out_share:
        parts = split(splits["train"].corpus, data.hold_out_share, data.split_seed)
        named = zip(("train", "calibration"), ("rest", "held out"), parts, strict=True)
        title = splits["train"].name
        splits = {name: CorpusSplit(f"{title} ({which})", part, protocol) for name, which, part in named}
    if data.train_questions:
        splits["train"] = _beginning(splits["train"], data.train_questions)
    if data.dev is not None and data.open_dev:
        splits["dev"] = open_split(data.dev, protocol)
    return splits


def _as_corpus(source: str) -> str:
    """``source`` as ``open_corpus`` takes it: a question set by the scheme of its passages."""
    scheme = split_scheme(source)[0]
    questions = scheme in set(schemes()) - {"hub"} or (not scheme and source.endswith(_QUESTION_FILES))
    return f"squad:{source}" if questions and not source.startswith("squad:") else source


def _beginning(whole: CorpusSplit, count: int) -> CorpusSplit:
    """The first ``count`` documents."""
    digest = hashlib.sha256(f"{whole.fingerprint}\0{count}".encode()).hexdigest()
    corpus = Corpus(
        f"{whole.corpus.name} (first {count:,} documents)",
        digest,
        None,
        lambda: islice(whole.corpus.documents(), count),
    )
    return replace(whole, name=f"{whole.name} (first {count:,} documents)", corpus=corpus)


def _title(source: str) -> str:
    """The source without the folders that it lies in, which differ from machine to machine."""
    scheme, colon, rest = source.rpartition(":")
    return source if scheme.startswith("hub") else f"{scheme}{colon}{Path(rest).name}"
