"""Question sets for answer selection, with candidates from passages or classes, and their two formats.

For a question on a passage, the candidates are the sentences of the passage; those in which a gold answer
begins are right. Classification is selection with the same candidates for all questions: the 50 classes of
Li & Roth 2002.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

from qa_arch.config.schema import Config, Source
from qa_arch.data import sources, splits
from qa_arch.data.files import PASSAGES, Format, OnError, Use, read_text
from qa_arch.data.question_sets import clip
from qa_arch.data.sentences import sentence_spans
from qa_arch.errors import ConfigError, DataError
from qa_arch.files import user_path
from qa_arch.types import Example, QuestionSet

if TYPE_CHECKING:  # keeps the generator out of help texts, which list the formats
    from qa_arch.data.synthetic import Names, Split

T = TypeVar("T")
identity = sources.identity
CANDIDATES = "candidates"
HOLDS = {"selection": CANDIDATES, "classification": "classes"}
"""Task -> kind of the sets that it needs; sentences of passages can be candidates."""
EXAMPLES = {CANDIDATES: "data=insuranceqa", "classes": "data=question_types"}
"""Data of each kind, for messages."""
MAIN = {
    "ABBR": "abb exp",
    "DESC": "def desc manner reason",
    "ENTY": "animal body color cremat currency dismed event food instru lang letter other plant product"
    " religion sport substance symbol techmeth termeq veh word",
    "HUM": "desc gr ind title",
    "LOC": "city country mount other state",
    "NUM": "code count date dist money ord other perc period speed temp volsize weight",
}
"""6 main classes -> 50 sub classes."""
CLASSES = tuple(f"{main}:{sub}" for main, subs in MAIN.items() for sub in subs.split())
"""The 50 classes, in the order of the models' scores."""
_INDEX = {label: index for index, label in enumerate(CLASSES)}
_MAIN_OF = tuple(list(MAIN).index(label.partition(":")[0]) for label in CLASSES)


@dataclass(frozen=True, slots=True)
class SelectionQuestion:
    """A question whose answer is selected from candidates; all texts are tuples of words."""

    id: str
    question: tuple[str, ...]
    candidates: Sequence[int]
    """Indices of the candidates in the set's ``answers``; a ``range`` if it is all of them."""
    right: tuple[int, ...]
    """Indices of the right answers. A retrieved pool may hold none of them."""
    title: str = ""


@dataclass(frozen=True, slots=True)
class SelectionSet:
    """Questions of one split of an answer-selection task, in file order."""

    name: str
    answers: tuple[tuple[str, ...], ...]
    """Every candidate once, as words: questions that share a candidate share its index."""
    questions: tuple[SelectionQuestion, ...]
    fingerprint: str
    """SHA-256 over the content of questions, candidates and answers, not over file bytes."""
    left_out: int = 0
    """Number of questions dropped because they have no located answer, or a single candidate."""
    protocol: Literal["selection"] = "selection"
    main: tuple[int, ...] = ()
    """Main class of each of ``answers`` if these are question classes; else empty."""

    def __len__(self) -> int:
        return len(self.questions)

    @property
    def titles(self) -> frozenset[str]:
        return frozenset(question.title for question in self.questions if question.title)


def require_files(config: Config) -> None:
    """Raise DataError if the training data is of another kind, or for the first file that is missing."""
    _require(config.data.train, HOLDS[config.model["task"]], "data.train")
    for setting, source in config.data.opened.items():
        sources.require_present(source, setting)


def _require(source: Source, want: str, setting: str = "") -> None:
    if want != CANDIDATES or sources.format_of(source).holds != PASSAGES:  # sentences can be candidates
        sources.require(source, want, EXAMPLES[want], setting)


def open_set(config: Config, source: Source, name: str = "") -> SelectionSet:
    """Open a set for a run; DataError, before reading, if the source does not suit its task."""
    _require(source, HOLDS[config.model["task"]])
    questions = sources.open_source(source, name=name, on_error=config.data.on_error)
    return sentence_selection(questions) if isinstance(questions, QuestionSet) else questions


def load_splits(config: Config) -> dict[str, SelectionSet]:
    """Open train, calibration and dev of a run, in this order; splits without data are omitted.

    Passages are split by article, then converted to candidate sentences. Without a calibration set, questions
    with classes are held out of train. Raises DataError if a source does not suit the task or is given twice,
    ConfigError if nothing can be held out.
    """
    data = config.data
    _require(data.train, HOLDS[config.model["task"]], "data.train")
    held = sources.format_of(data.train).holds
    dev = data.dev if data.open_dev else None
    named = {"train": data.train, "calibration": data.calibration, "dev": dev}
    for split, source in named.items():
        if source is not None and (kind := sources.format_of(source).holds) != held:
            raise DataError(f"data.{split}: {source} holds {kind}, and data.train {held}")
    if held == PASSAGES:
        return {split: sentence_selection(questions) for split, questions in splits.load_splits(data).items()}
    given: dict[str, str] = {}
    for split, source in {**named, "dev": data.dev}.items():  # also a closed dev set
        if source is None or not sources.available(source):
            continue
        if (first := given.setdefault(identity(source), split)) != split:
            raise DataError(f"data.{split}: {source} is the set of data.{first}; name other questions")
    articles, share = data.hold_out_articles, data.hold_out_share
    if data.calibration is None and (articles or (share and held == CANDIDATES)):
        raise ConfigError(
            "data.hold_out_articles: these questions have no articles to hold out; name a calibration set"
            " (insuranceqa:FOLDER:dev), or for questions with classes set data.hold_out_share"
        )
    sets = {split: open_set(config, source, split) for split, source in named.items() if source is not None}
    if data.calibration is None and share:
        train = sets.pop("train")
        sets = {**hold_out_questions(train, share, data.split_seed), **sets}
    if 0 < data.train_questions < len(sets["train"]):
        train = sets["train"]
        import numpy as np  # imported late to keep help texts, which load this module, fast

        drawn = np.random.default_rng(data.split_seed).choice(len(train), data.train_questions, replace=False)
        questions = [train.questions[row] for row in sorted(drawn.tolist())]
        sets["train"] = selection_set(train.name, train.answers, questions, train.left_out, main=train.main)
    return sets


def hold_out_questions(task: SelectionSet, share: float, seed: int) -> dict[str, SelectionSet]:
    """Hold out a seeded ``share`` of the questions as calibration; equal questions stay in the same part.

    Raises ConfigError if train or calibration would be empty.
    """
    texts = sorted({question.question for question in task.questions})
    count = round(share * len(texts))
    if not 0 < count < len(texts):
        raise ConfigError(
            f"data.hold_out_share: {share:g} of the {len(texts)} questions of {task.name} leaves none to"
            f" {'calibrate' if not count else 'train'} on; change it, or name a calibration set"
        )
    held = set(random.Random(seed).sample(texts, count))
    parts = {
        "train": [question for question in task.questions if question.question not in held],
        "calibration": [question for question in task.questions if question.question in held],
    }
    return {
        split: selection_set(f"{task.name}.{split}", task.answers, questions, main=task.main)
        for split, questions in parts.items()
    }


def words(text: str) -> tuple[str, ...]:
    """Words of a text, as in ``features.words``."""
    from qa_arch.features.words import word_pattern  # late: help texts load this module

    return tuple(word_pattern(symbols=True).findall(text))


def selection_set(
    name: str,
    answers: Iterable[tuple[str, ...]],
    questions: Iterable[SelectionQuestion],
    left_out: int = 0,
    main: tuple[int, ...] = (),
) -> SelectionSet:
    """Create a SelectionSet with its fingerprint; DataError if there are no questions."""
    answers, questions = tuple(answers), tuple(questions)
    if not questions:
        raise DataError(
            f"{name}: no question is left to select an answer for ({left_out} have a single candidate or"
            " no answer); give other data"
        )
    digest = hashlib.sha256()
    for answer in answers:
        digest.update(json.dumps(answer).encode("ascii"))
    for question in questions:
        rows = question.candidates
        # A range is hashed as such: the numbers of all answers would be written for every question.
        candidates = str(rows) if isinstance(rows, range) else list(rows)
        record = [question.id, question.title, question.question, candidates, question.right]
        digest.update(json.dumps(record).encode("ascii"))
    return SelectionSet(name, answers, questions, digest.hexdigest(), left_out, main=main)


def sentence_selection(questions: QuestionSet) -> SelectionSet:
    """Selection set of the answerable ``questions``, with the sentences of their passages as candidates.

    Skipped and counted in ``left_out``: questions without an answer whose place is known, and those on a
    single-sentence passage.
    """
    answers: list[tuple[str, ...]] = []
    rows: dict[str, tuple[range, list[tuple[int, int]]]] = {}
    selectable = []
    for example in questions.examples:
        if example.context not in rows:
            spans = sentence_spans(example.context)
            first = len(answers)
            answers += (words(example.context[start:end]) for start, end in spans)
            rows[example.context] = range(first, len(answers)), spans
        candidates, spans = rows[example.context]
        if example.located and len(candidates) > 1:
            selectable.append(_question(example, candidates, spans))
    return selection_set(questions.name, answers, selectable, len(questions) - len(selectable))


def _question(example: Example, candidates: range, spans: list[tuple[int, int]]) -> SelectionQuestion:
    # White space before a sentence belongs to it; after the last one, to that.
    located = (gold for gold in example.answers if gold.start >= 0)
    indices = {sum(end <= gold.start for _, end in spans[:-1]) for gold in located}
    right = tuple(candidates[index] for index in sorted(indices))
    question = words(example.question)
    return SelectionQuestion(example.id, question, candidates, right, example.title)


def class_set(name: str, labelled: Iterable[tuple[str | None, str]], ids: str = "question") -> SelectionSet:
    """SelectionSet of (class, question) pairs with all classes as candidates; None is an unknown class.

    The fingerprint covers the ids, which therefore begin with ``ids``, whatever the set is called.
    """
    every = range(len(CLASSES))
    questions = [
        SelectionQuestion(f"{ids}-{number}", words(text), every, () if label is None else (_INDEX[label],))
        for number, (label, text) in enumerate(labelled, start=1)
    ]
    return selection_set(name, [(label,) for label in CLASSES], questions, main=_MAIN_OF)


class Pair(NamedTuple):
    """Two questions and whether they are paraphrases; None if unlabelled."""

    first: str
    second: str
    paraphrase: bool | None


def read_pairs(path: str | Path) -> list[Pair]:
    """Read ``first<TAB>second`` per line, or ``first<TAB>second<TAB>0|1`` on every line; 1 is a paraphrase.

    Blank lines are skipped. Raises DataError naming the file and the line.
    """
    pairs: list[Pair] = []
    for place, values in _lines(user_path(path)):
        values = [value.strip() for value in values]
        labels = values[2:]
        if len(values) < 2 or not all(values[:2]) or labels not in ([], ["0"], ["1"]):
            raise DataError(f"{place}: write two questions, and optionally 0 or 1, separated by tabs")
        label = labels == ["1"] if labels else None
        if pairs and (label is None) != (pairs[0].paraphrase is None):
            raise DataError(f"{place}: only some lines have a label; label all or none")
        pairs.append(Pair(values[0], values[1], label))
    if not pairs:
        raise DataError(f"{path}: has no pair of questions; write two per line, separated by a tab")
    return pairs


def _lines(path: Path) -> Iterator[tuple[str, list[str]]]:
    """(file and line, tab-separated values) of each non-blank line of a UTF-8 file."""
    # Only a line feed ends a line: str.splitlines would also split at U+2028 or U+0085 inside a question.
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if line.strip():
            yield f"{path}: line {number}", line.rstrip("\r").split("\t")


# InsuranceQA ------------------------------------------------------------------------------------------

# ``insuranceqa:FOLDER:SPLIT``: InsuranceQA (Feng et al. 2015), version 1, as published. A folder of
# tab-separated word indices: ``vocabulary``, ``answers.label.token_idx``,
# ``question.train.token_idx.label`` and ``question.{dev,test1,test2}.label.token_idx.pool``.

PARTS = ("train", "dev", "test1", "test2")


def _part(source: str) -> tuple[Path, str]:
    """Parse ``FOLDER:SPLIT``; DataError for an unknown split."""
    folder, _, split = source.rpartition(":")
    if not folder or split not in PARTS:
        raise DataError(
            f"insuranceqa:{source}: write insuranceqa:FOLDER:SPLIT, such as insuranceqa:InsuranceQA:dev"
            f" (splits: {', '.join(PARTS)})"
        )
    return user_path(folder), split


def _insuranceqa_files(source: str) -> tuple[Path, Path, Path]:
    """Files of the questions, the answers and the vocabulary."""
    folder, split = _part(source)
    stem = "question.train.token_idx.label" if split == "train" else f"question.{split}.label.token_idx.pool"
    return folder / stem, folder / "answers.label.token_idx", folder / "vocabulary"


def _open_insuranceqa(names: Sequence[str], *, name: str, on_error: OnError, use: Use) -> SelectionSet:
    """Read a split; candidates are the question's pool, or in train, which has no pools, all answers.

    An answer is a candidate once, however often a pool names it. Questions with a single candidate, or
    without a right one, are skipped and counted in ``left_out``. Raises DataError naming file, line and
    field.
    """
    _, split = _part(names[0])
    _, answers_file, vocabulary_file = _insuranceqa_files(names[0])
    vocabulary = {index: word for _, (index, word) in _fields(vocabulary_file, 2)}
    answers = {
        label: _look_up(text.split(), vocabulary, f"{place}: answer")
        for place, (label, text) in _fields(answers_file, 2)
    }
    row = {label: number for number, label in enumerate(answers)}
    questions, left_out = [], 0
    for number, (place, text, right, pool) in enumerate(_questions(names[0]), start=1):
        words = _look_up(text, vocabulary, f"{place}: question")
        rows = _look_up(right, row, f"{place}: answer labels")
        candidates = range(len(row)) if pool is None else _look_up(pool, row, f"{place}: pool")
        if len(candidates) > 1 and any(answer in candidates for answer in rows):
            questions.append(SelectionQuestion(f"{split}-{number}", words, candidates, rows))
        else:
            left_out += 1
    return selection_set(name or split, answers.values(), questions, left_out)


def _questions(source: str) -> Iterator[tuple[str, list[str], list[str], list[str] | None]]:
    """(file and line, word indices, right labels, distinct labels of the pool) of each question."""
    (path, *_), (_, split) = _insuranceqa_files(source), _part(source)
    for place, fields in _fields(path, 2 if split == "train" else 3):
        question, right, *pool = fields if split == "train" else (fields[1], fields[0], fields[2])
        yield place, question.split(), right.split(), list(dict.fromkeys(pool[0].split())) if pool else None


def _counts(source: str) -> Mapping[str, int]:
    """Counts of thesis Table 2.1; an answer counts once per question it answers."""
    questions = list(_questions(source))
    return {
        "questions": len(questions),
        "answers": sum(len(right) for _, _, right, _ in questions),
        "question_words": sum(len(words) for _, words, _, _ in questions),
    }


def _fields(path: Path, fields: int) -> Iterator[tuple[str, list[str]]]:
    """(file and line, values) of each non-blank line; DataError for a wrong number of values."""
    for place, values in _lines(path):
        if len(values) != fields:
            raise DataError(
                f"{place}: {len(values)} tab-separated fields, not {fields}; fetch the file again"
            )
        yield place, values


def _look_up(names: Sequence[str], table: Mapping[str, T], place: str) -> tuple[T, ...]:
    """Entries of ``names`` in ``table``; DataError if a name is unknown or ``names`` is empty."""
    unknown = next((name for name in names if name not in table), None)
    if unknown is not None or not names:
        problem = "is empty" if unknown is None else f"{clip(unknown)} is unknown"
        raise DataError(f"{place}: {problem}; fetch all files of version 1 again")
    return tuple(table[name] for name in names)


INSURANCEQA = Format(
    "insuranceqa:FOLDER:SPLIT",
    "a split of InsuranceQA",
    open=_open_insuranceqa,
    holds=CANDIDATES,
    model="model=qa_lstm/c",
    files=_insuranceqa_files,
    counts=_counts,
)


# Questions with classes -------------------------------------------------------------------------------

# ``types:FILE`` and ``types:synthetic:SPLIT``: questions with classes, in the format of the TREC files.
# ``train_5500.label`` and ``TREC_10.label`` (Li & Roth 2002) have one question per line: ``MAIN:sub``, then
# the words of the question, separated by spaces. Generated questions use four wordings per class
# (``wordings.tsv``). The fourth is not used for training and no name occurs in two splits, so calibration and
# dev measure generalisation.

SIZES = {"train": 2000, "calibration": 300, "dev": 300}
"""Number of generated questions per split."""
SEED = 20
_SYNTHETIC = "synthetic:"
_THINGS = """
bridge lamp clock wheel tower lantern kettle mirror basket violin ladder anchor compass saddle needle bell
"""
_PURSUITS = "weaving rowing archery pottery baking fencing sailing carving dyeing brewing chess skating"
_BEASTS = "otter heron badger falcon salmon lynx beetle tortoise weasel raven mole viper"


def _open_types(names: Sequence[str], *, name: str, on_error: OnError, use: Use) -> SelectionSet:
    """Open a file or ``synthetic:SPLIT`` (train, calibration, dev). Raises DataError naming file and line."""
    (source,) = names
    if source.startswith(_SYNTHETIC):
        from qa_arch.data.synthetic import SPLITS

        split = source.removeprefix(_SYNTHETIC)
        if split not in SPLITS:
            raise ConfigError(f"types:{source} is unknown: write train, calibration or dev")
        return class_set(name or split, generated_questions(SIZES[split], SEED, split), split)
    path = user_path(source)
    return class_set(name or path.stem, _labelled(path))


def _types_files(source: str) -> tuple[Path, ...]:
    return () if source.startswith(_SYNTHETIC) else (user_path(source),)


def _labelled(path: Path) -> Iterator[tuple[str, str]]:
    """(class, question) of each non-blank line."""
    try:
        data = path.read_bytes()
    except OSError as error:
        hint = "name train_5500.label or TREC_10.label, or types:synthetic:train"
        raise DataError(f"{path}: cannot be read ({error.strerror}); {hint}") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")  # the encoding of the published files
    for number, line in enumerate(text.split("\n"), start=1):
        label, _, question = line.strip().partition(" ")
        if label and (label not in CLASSES or not question):
            raise DataError(
                f"{path}: line {number}: {clip(label)} is not a class with a question; write MAIN:sub, a"
                " space and the question (DESC:def What is ...), as in train_5500.label"
            )
        if label:
            yield label, question.strip()


def wordings() -> dict[str, list[str]]:
    """Class -> its wordings."""
    text = Path(__file__).with_name("wordings.tsv").read_text(encoding="utf-8")
    rows = (line.split("\t") for line in text.splitlines())
    return {label: templates for label, *templates in rows}


def generated_questions(count: int, seed: int, split: Split) -> list[tuple[str, str]]:
    """``count`` pairs (class, question), cycling through the classes; deterministic."""
    from qa_arch.data.synthetic import Names

    rng = random.Random(f"{seed}/types/{split}")
    names, by_class = Names(rng, split), wordings()
    labels = list(by_class)
    generated = []
    for number in range(count):
        label = labels[number % len(labels)]
        templates = by_class[label][:-1] if split == "train" else by_class[label]
        generated.append((label, _filled(rng.choice(templates), rng, names)))
    rng.shuffle(generated)
    return generated


def _filled(wording: str, rng: random.Random, names: Names) -> str:
    names.reset()
    kinds = ("place", "province", "river", "clan", "guild", "book")
    values = {kind: names.word(kind) for kind in kinds if f"{{{kind}}}" in wording}
    return wording.format(
        **values,
        person=names.person(),
        thing=rng.choice(_THINGS.split()),
        pursuit=rng.choice(_PURSUITS.split()),
        beast=rng.choice(_BEASTS.split()),
        code="".join(word[0] for word in (names.word("guild"), names.word("place"), names.word("clan"))),
    )


def _types_counts(source: str) -> Mapping[str, int]:
    questions = _open_types([source], name="", on_error="raise", use="answering").questions
    return {
        "questions": len(questions),
        "answers": sum(len(question.right) for question in questions),
        "question_words": sum(len(question.question) for question in questions),
    }


TYPES = Format(
    "types:FILE",
    "a file of questions with classes",
    open=_open_types,
    holds="classes",
    model="model=question_types",
    files=_types_files,
    counts=_types_counts,
)
