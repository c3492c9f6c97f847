"""``insuranceqa:FOLDER:SPLIT``: InsuranceQA (Feng et al. 2015) as published: tab-separated word indices.

Version 1 is a folder of plain files: ``vocabulary``, ``answers.label.token_idx``,
``question.train.token_idx.label`` and ``question.{dev,test1,test2}.label.token_idx.pool``. Version 2
is a folder of gzip files: ``InsuranceQA.label2answer.token.encoded.gz`` and
``InsuranceQA.question.anslabel.token.POOL.pool.solr.{train,valid,test}.encoded.gz``.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from qa_arch.data.formats import Format, OnError
from qa_arch.errors import DataError
from qa_arch.extras.selection.sets import selection_set
from qa_arch.types.text import SelectionQuestion, SelectionSet

POOL = 500
"""Default number of candidates per question in version 2; version 1 always has this number."""
SPLITS = {1: ("train", "dev", "test1", "test2"), 2: ("train", "valid", "test")}
_VOCABULARY = "vocabulary"
_ANSWERS = {1: "answers.label.token_idx", 2: "InsuranceQA.label2answer.token.encoded.gz"}
_WORD = re.compile(r"idx_\d+")


@dataclass(frozen=True, slots=True)
class Split:
    """A split in a folder of the data set."""

    folder: Path
    name: str
    version: int
    pool: int = POOL

    @property
    def title(self) -> str:
        """Name of the split, with the size of the pool where that is not the default."""
        return self.name if self.pool == POOL else f"{self.name}@{self.pool}"

    @property
    def file(self) -> Path:
        """File of the questions."""
        if self.version == 2:
            stem = f"InsuranceQA.question.anslabel.token.{self.pool}.pool.solr.{self.name}.encoded.gz"
        elif self.name == "train":
            stem = "question.train.token_idx.label"
        else:
            stem = f"question.{self.name}.label.token_idx.pool"
        return self.folder / stem

    @property
    def files(self) -> tuple[Path, Path, Path]:
        """All files of the split: questions, answers, vocabulary."""
        return self.file, self.folder / _ANSWERS[self.version], self.folder / _VOCABULARY


@dataclass(frozen=True, slots=True)
class LabelledQuestion:
    """A question of a file, with the labels of its answers."""

    id: str
    words: tuple[str, ...]
    right: tuple[str, ...]
    pool: tuple[str, ...]
    """Labels of the candidates; empty for training questions of version 1."""
    place: str
    """File and line, for messages."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts of thesis Table 2.1; an answer counts once per question that it answers."""

    questions: int
    answers: int
    question_words: int

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


def parse(source: str) -> Split:
    """Parse ``FOLDER:SPLIT``, or ``FOLDER:SPLIT@POOL`` with the size of the pool (version 2).

    Raises DataError for a folder or split that does not exist.
    """
    folder_name, _, split = source.rpartition(":")
    name, _, pool = split.partition("@")
    if not folder_name or not name or (pool and not pool.isdigit()):
        raise DataError(
            f"insuranceqa:{source}: write insuranceqa:FOLDER:SPLIT, such as insuranceqa:InsuranceQA:dev"
        )
    folder = Path(folder_name).expanduser()
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; name the one that holds InsuranceQA's files")
    version = 2 if any(folder.glob("InsuranceQA.*.gz")) else 1
    if pool and version == 1:
        raise DataError(f"insuranceqa:{source}: version 1 has a single pool size; leave out @{pool}")
    if name not in SPLITS[version]:
        known = ", ".join(SPLITS[version])
        raise DataError(f"insuranceqa:{source}: version {version} has no split '{name}' (known: {known})")
    return Split(folder, name, version, int(pool) if pool else POOL)


def read(split: Split) -> tuple[LabelledQuestion, ...]:
    """Questions of a split in file order. Raises DataError naming file, line and field."""
    vocabulary = read_vocabulary(split.folder)
    order = _fields(split)
    questions: list[LabelledQuestion] = []
    for place, values in _lines(split.file, [name for name in order if name]):
        named = dict(zip(order, values, strict=True))
        right = _labels(named["answer labels"], place, "answer labels")
        pool = _labels(named["pool"], place, "pool") if "pool" in named else ()
        words = _words(named["question"], vocabulary, place, "question")
        questions.append(LabelledQuestion(f"{split.name}-{len(questions) + 1}", words, right, pool, place))
    return tuple(questions)


def open_insuranceqa(source: str, *, name: str = "") -> SelectionSet:
    """Open ``FOLDER:SPLIT``; the candidates of a question are its pool, or all answers without a pool.

    Raises DataError naming file, line and field.
    """
    split = parse(source)
    questions, answers = read(split), read_answers(split)
    row = {label: place for place, label in enumerate(answers)}
    selectable = []
    for question in questions:
        for label in (*question.right, *question.pool):
            if label not in row:
                raise DataError(
                    f"{question.place}: the answer {label} is not in the answer file;"
                    " fetch both files of the same version"
                )
        # Training questions have no pool of their own in version 1: their negatives come from all answers.
        candidates = tuple(row[label] for label in question.pool) if question.pool else range(len(row))
        right = tuple(row[label] for label in question.right)
        selectable.append(SelectionQuestion(question.id, question.words, candidates, right))
    return selection_set(name or split.title, answers.values(), selectable)


def read_answers(split: Split) -> dict[str, tuple[str, ...]]:
    """Label -> words of the answer, in file order."""
    vocabulary = read_vocabulary(split.folder)
    _, path, _ = split.files
    answers: dict[str, tuple[str, ...]] = {}
    for place, (label, text) in _lines(path, ["answer label", "answer"]):
        if label in answers:
            raise DataError(f"{place}: answer label: {label} occurs twice; fetch the file again")
        answers[label] = _words(text, vocabulary, place, "answer")
    return answers


def read_vocabulary(folder: Path) -> dict[str, str]:
    """Index (``idx_17``) -> word."""
    return {index: word for _, (index, word) in _lines(folder / _VOCABULARY, ["index", "word"])}


def statistics(questions: Sequence[LabelledQuestion]) -> Statistics:
    """Counts of the questions, of their right answers and of their words."""
    return Statistics(
        len(questions), sum(len(q.right) for q in questions), sum(len(q.words) for q in questions)
    )


def _fields(split: Split) -> list[str]:
    if split.version == 2:
        return ["domain", "question", "answer labels", "pool"]
    return ["question", "answer labels"] if split.name == "train" else ["answer labels", "question", "pool"]


def _lines(path: Path, fields: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """(file and line, values) of every line that is not blank; DataError for a wrong number of values."""
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        values = line.rstrip("\r").split("\t")
        place = f"{path}: line {number}"
        if len(values) != len(fields):
            raise DataError(
                f"{place}: {len(values)} fields between tabs, not {len(fields)} ({', '.join(fields)});"
                " fetch the file again"
            )
        yield place, values


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
        text = data.decode("utf-8")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; fetch it from InsuranceQA's repository") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start} is not UTF-8; fetch the file again") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error}); fetch the file again") from None
    if not text.strip():
        raise DataError(f"{path}: the file is empty; fetch it again")
    return text


def _words(text: str, vocabulary: dict[str, str], place: str, field: str) -> tuple[str, ...]:
    indices = text.split()
    for index in indices:
        if index not in vocabulary:
            reason = "is not in the vocabulary" if _WORD.fullmatch(index) else "is not a word index"
            raise DataError(f"{place}: {field}: {index!r} {reason}; fetch all files of one version")
    if not indices:
        raise DataError(f"{place}: {field}: has no words; fetch the file again")
    return tuple(vocabulary[index] for index in indices)


def _labels(text: str, place: str, field: str) -> tuple[str, ...]:
    labels = tuple(text.split())
    if not labels or not all(label.isdigit() for label in labels):
        shown = next((label for label in labels if not label.isdigit()), "")
        raise DataError(
            f"{place}: {field}: {shown!r} is not an answer label (a number); fetch the file again"
        )
    return labels


def _open(sources: Sequence[str], *, name: str, on_error: OnError) -> SelectionSet:
    return open_insuranceqa(sources[0], name=name)


FORMAT = Format(
    "insuranceqa:FOLDER:SPLIT",
    "a split of InsuranceQA",
    open=_open,
    holds="candidates",
    files=lambda source: parse(source).files,
    counts=lambda source: statistics(read(parse(source))).as_dict(),
)
