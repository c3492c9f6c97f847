"""Questions with their class: the taxonomy of Li & Roth 2002 and the files that it was published with.

``train_5500.label`` and ``TREC_10.label`` hold a question a line, ``MAIN:sub`` first and then its words
with blanks between them. Classifying is selecting: every class is a candidate of every question.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path

from qa_arch.data.selection import selection_set, words
from qa_arch.data.synthetic import typed
from qa_arch.errors import ConfigError, DataError
from qa_arch.types.text import SelectionQuestion, SelectionSet

PREFIX = "types:"
SYNTHETIC = "synthetic:"
MAIN = {
    "ABBR": "abb exp",
    "DESC": "def desc manner reason",
    "ENTY": "animal body color cremat currency dismed event food instru lang letter other plant product"
    " religion sport substance symbol techmeth termeq veh word",
    "HUM": "desc gr ind title",
    "LOC": "city country mount other state",
    "NUM": "code count date dist money ord other perc period speed temp volsize weight",
}
"""The 6 main classes and the sub classes of each."""
CLASSES = tuple(f"{main}:{sub}" for main, subs in MAIN.items() for sub in subs.split())
"""The 50 classes, in the order in which models score them."""
_PLACE = {label: place for place, label in enumerate(CLASSES)}
_MAIN_OF = tuple(list(MAIN).index(main_class) for main_class in (c.partition(":")[0] for c in CLASSES))


def open_types(source: str, *, name: str = "") -> SelectionSet:
    """``types:FILE``, or ``types:synthetic:SPLIT`` for the embedded questions (train, calibration, dev).

    Raises DataError naming file and line.
    """
    wanted = source.removeprefix(PREFIX)
    if wanted.startswith(SYNTHETIC):
        split = wanted.removeprefix(SYNTHETIC)
        return class_set(name or split, typed.named(split))
    path = Path(wanted).expanduser()
    return class_set(name or path.stem, _lines(path))


def class_set(name: str, labelled: Iterable[tuple[str | None, str]]) -> SelectionSet:
    """A SelectionSet of (class, question), whose candidates are the classes; None is an unknown class."""
    every = range(len(CLASSES))
    questions = [
        SelectionQuestion(
            f"{name}-{number}", words(text), every, () if label is None else (_PLACE[label],), text=text
        )
        for number, (label, text) in enumerate(labelled, start=1)
    ]
    return selection_set(name, [(label,) for label in CLASSES], questions, main=_MAIN_OF)


def hold_out_questions(task: SelectionSet, share: float, seed: int) -> dict[str, SelectionSet]:
    """Train and calibration, a seeded ``share`` of the questions; equal questions stay together.

    Raises ConfigError where one of the two would be empty.
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


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        label, _, question = line.strip().partition(" ")
        if label not in _PLACE:
            raise DataError(
                f"{path}: line {number}: {label!r} is no class; a line is MAIN:sub, a blank and the question"
                " (DESC:def What is ...), as in train_5500.label"
            )
        if not question.strip():
            raise DataError(f"{path}: line {number}: no question stands behind {label}; fetch the file again")
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
