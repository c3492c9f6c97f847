"""Question sets in and out: SQuAD 1.1 and 2.0 JSON, and flat records with the hub's columns.

Offsets are verified, contexts are shared between the questions of a passage, and text survives
byte for byte. Formats: Rajpurkar et al. 2016 (1.1) and 2018 (2.0).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

from qa_arch.data.examples import to_example
from qa_arch.data.formats import Format, OnError
from qa_arch.data.input_files import Paths, as_list, expand, load
from qa_arch.data.shapes import Raw, RecordError, raw_questions, says_version_two
from qa_arch.errors import ConfigError, DataError
from qa_arch.system.garbage import gc_disabled
from qa_arch.types.text import Example, Gold, Problem, Protocol, QuestionSet


@gc_disabled()
def read(paths: Paths, *, name: str = "", on_error: OnError = "raise") -> QuestionSet:
    """The questions of one or more JSON or JSON Lines files as one set.

    ``paths``: files, folders (every ``*.json``, sorted) or globs, one or a list. ``name`` defaults
    to the names given. Raises DataError for the first fault; with ``on_error="skip"`` faulty
    questions are left out and listed in ``skipped``, and only faults of a whole file raise.
    """
    reading = Reading(on_error)
    for path in expand(paths):
        value = load(path)
        reading.add(str(path), raw_questions(value, str(path)), two=says_version_two(value))
    stems = (Path(path).name.removesuffix(".json").removesuffix(".jsonl") for path in as_list(paths))
    return reading.finish(name or "+".join(stems))


class Reading:
    """A set in the making: its questions, their ids and passages, and what was left out.

    For every format whose questions can be had as ``Raw`` records.
    """

    def __init__(self, on_error: OnError) -> None:
        if on_error not in ("raise", "skip"):
            raise ConfigError(f"on_error is {on_error!r}; it must be raise or skip")
        self.on_error = on_error
        self.examples: list[Example] = []
        self.problems: list[Problem] = []
        self.places: dict[str, str] = {}
        self.contexts: dict[str, str] = {}
        self.protocol: Protocol = "1.1"

    def add(self, file: str, items: Iterable[Raw | RecordError], two: bool = False) -> None:
        """Take the questions of one file; ``two``: the file says of itself that it is SQuAD 2.0."""
        before = len(self.examples) + len(self.problems)
        if two:
            self.protocol = "2.0"
        for item in items:
            if isinstance(item, RecordError):
                self._reject(Problem(file, item.where, item.message))
                continue
            try:
                self._accept(file, item)
            except RecordError as flaw:
                self._reject(Problem(file, f"{item.label}, {flaw.where}", flaw.message))
        if before == len(self.examples) + len(self.problems):
            raise DataError(f"{file}: holds no questions; fetch or write the file again")

    def _accept(self, file: str, raw: Raw) -> None:
        example = to_example(raw, self.contexts)
        if example.id in self.places:
            raise RecordError(
                "id",
                f"is a duplicate: {self.places[example.id]} has it and so has {raw.position}; "
                "give each question its own id",
            )
        self.places[example.id] = f"{raw.position} of {file}"
        if "is_impossible" in raw.fields or not example.answerable:
            self.protocol = "2.0"
        self.examples.append(example)

    def _reject(self, problem: Problem) -> None:
        if self.on_error == "raise":
            raise DataError(f"{problem} (on_error=skip leaves such records out)")
        self.problems.append(problem)

    def finish(self, name: str) -> QuestionSet:
        if not self.examples:
            raise DataError(
                f"{name}: no question is left: all {len(self.problems)} records are faulty, "
                f"the first is {self.problems[0]}"
            )
        return question_set(name, self.examples, self.protocol, self.problems)


def question_set(
    name: str, examples: Iterable[Example], protocol: Protocol, skipped: Iterable[Problem] = ()
) -> QuestionSet:
    """A QuestionSet over ``examples`` with its fingerprint computed."""
    examples = tuple(examples)
    return QuestionSet(name, examples, protocol, fingerprint(examples), tuple(skipped))


def fingerprint(examples: Iterable[Example]) -> str:
    """SHA-256 (hex) over every field of every question in order; the same on every machine."""
    digest = hashlib.sha256()
    previous = None
    for example in examples:
        # A passage counts once however many questions follow each other on it: null means "as before".
        context = None if example.context == previous else example.context
        previous = example.context
        answers = [[gold.text, gold.start] for gold in example.answers]
        plausible = [[gold.text, gold.start] for gold in example.plausible]
        record = [example.id, example.title, example.question, context, answers, plausible, example.kind]
        digest.update(json.dumps(record).encode("ascii"))
    return digest.hexdigest()


def write(questions: QuestionSet) -> dict[str, Any]:
    """``questions`` as official SQuAD JSON of its protocol; ``read`` gives them back unchanged.

    Neighbouring questions of one title and context are put under one article and paragraph.
    """
    two = questions.protocol == "2.0"
    data = []
    for title, article in groupby(questions.examples, key=lambda example: example.title):
        passages = groupby(article, key=lambda example: example.context)
        paragraphs = [
            {"context": context, "qas": [_qa(example, two) for example in group]}
            for context, group in passages
        ]
        data.append({"title": title, "paragraphs": paragraphs})
    return {"version": "v2.0" if two else "1.1", "data": data}


def _qa(example: Example, two: bool) -> dict[str, Any]:
    qa: dict[str, Any] = {"id": example.id, "question": example.question, "answers": _plain(example.answers)}
    if two:
        qa["is_impossible"] = not example.answerable
    if example.plausible:
        qa["plausible_answers"] = _plain(example.plausible)
    if example.kind is not None:
        qa["kind"] = example.kind
    return qa


def _plain(golds: tuple[Gold, ...]) -> list[dict[str, Any]]:
    return [{"text": gold.text, "answer_start": gold.start} for gold in golds]


FORMAT = Format("SQuAD JSON (files, folders, globs)", "a file", open=read, joins=True)
"""Of sources without a scheme."""
