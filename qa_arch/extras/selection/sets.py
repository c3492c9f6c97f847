"""Question sets for answer selection, with candidates from passages or classes.

For a question on a passage, the candidates are the sentences of the passage; those in which a gold answer
begins are right. Classification is selection with the same candidates for all questions: the 50 classes of
Li & Roth 2002.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from qa_arch.config.files import user_path
from qa_arch.config.schema import Data, Source
from qa_arch.data import splits
from qa_arch.data.formats import Holds, OnError
from qa_arch.data.question_sets import clip
from qa_arch.data.sentences import sentence_spans
from qa_arch.data.sources import holds, open_source, require
from qa_arch.errors import ConfigError, DataError
from qa_arch.types.text import Example, QuestionSet, SelectionQuestion, SelectionSet

_WORD = re.compile(r"\w+|[^\w\s]")
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


def open_for(source: Source, *, want: Holds, name: str = "", on_error: OnError = "raise") -> SelectionSet:
    """Open a set for a task; DataError, before reading, if the source does not suit the task."""
    require(source, want)
    questions = open_source(source, name=name, on_error=on_error)
    return sentence_selection(questions) if isinstance(questions, QuestionSet) else questions


def load_splits(data: Data, want: Holds) -> dict[str, SelectionSet]:
    """Open train, calibration and dev of a run, in this order; splits without data are omitted.

    Passages are split by article, then converted to candidate sentences. Without a calibration set, questions
    with classes are held out of train. Raises DataError if a source does not suit the task, ConfigError if
    nothing can be held out.
    """
    require(data.train, want, "data.train")
    held = holds(data.train)
    dev = data.dev if data.open_dev else None
    named = {"train": data.train, "calibration": data.calibration, "dev": dev}
    for split, source in named.items():
        if source is not None and holds(source) != held:
            raise DataError(f"data.{split}: {source} holds {holds(source)}, and data.train {held}")
    if held == "passages":
        return {split: sentence_selection(questions) for split, questions in splits.load_splits(data).items()}
    articles, share = data.hold_out_articles, data.hold_out_share
    if data.calibration is None and ((articles and not share) or (share and held == "candidates")):
        raise ConfigError(
            "data.hold_out_articles: these questions have no articles to hold out; name a calibration set"
            " (insuranceqa:FOLDER:dev), or for questions with classes set data.hold_out_share"
        )
    sets = {
        split: open_for(source, want=want, name=split, on_error=data.on_error)
        for split, source in named.items()
        if source is not None
    }
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
    """Words of a text: runs of letters, digits and underscores, and every other visible character alone."""
    return tuple(_WORD.findall(text))


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
        candidates = str(rows) if isinstance(rows, range) else list(rows)
        record = [question.id, question.title, question.question, candidates, question.right]
        digest.update(json.dumps(record).encode("ascii"))
    return SelectionSet(name, answers, questions, digest.hexdigest(), left_out, main=main)


def sentence_selection(questions: QuestionSet) -> SelectionSet:
    """Selection set of the answerable ``questions``, with the sentences of their passages as candidates.

    Unanswerable questions and those on a single-sentence passage are skipped and counted in ``left_out``.
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
        if example.answerable and len(candidates) > 1:
            selectable.append(_question(example, candidates, spans))
    return selection_set(questions.name, answers, selectable, len(questions) - len(selectable))


def _question(example: Example, candidates: range, spans: list[tuple[int, int]]) -> SelectionQuestion:
    # White space before a sentence belongs to it; after the last one, to that.
    indices = {sum(end <= gold.start for _, end in spans[:-1]) for gold in example.answers}
    right = tuple(candidates[index] for index in sorted(indices))
    question = words(example.question)
    return SelectionQuestion(example.id, question, candidates, right, example.title)


def class_set(name: str, labelled: Iterable[tuple[str | None, str]]) -> SelectionSet:
    """SelectionSet of (class, question) pairs with all classes as candidates; None is an unknown class."""
    every = range(len(CLASSES))
    questions = [
        SelectionQuestion(f"{name}-{number}", words(text), every, () if label is None else (_INDEX[label],))
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
    try:
        text = user_path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8 (byte {error.start}); save it as UTF-8") from None
    pairs: list[Pair] = []
    # Only a line feed ends a pair: str.splitlines would also split at U+2028 or U+0085 inside a question.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        place, fields = f"{path}: line {number}", [field.strip() for field in line.split("\t")]
        if len(fields) not in (2, 3) or not all(fields[:2]):
            raise DataError(f"{place}: write two questions, and optionally 0 or 1, separated by tabs")
        label = {"1": True, "0": False}.get(fields[2]) if len(fields) == 3 else None
        if len(fields) == 3 and label is None:
            raise DataError(f"{place}: the label is {clip(fields[2])}; write 1 for a paraphrase, else 0")
        if pairs and (label is None) != (pairs[0].paraphrase is None):
            raise DataError(f"{place}: only some lines have a label; label all or none")
        pairs.append(Pair(fields[0], fields[1], label))
    if not pairs:
        raise DataError(f"{path}: has no pair of questions; write two per line, separated by a tab")
    return pairs
