"""Sets of questions: collected from the raw questions of files, or made of examples, with a fingerprint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from qa_arch.data.examples import RawQuestion, RecordError, to_example
from qa_arch.data.formats import OnError
from qa_arch.errors import ConfigError, DataError
from qa_arch.types.text import Example, Problem, Protocol, QuestionSet


class QuestionSetBuilder:
    """Collects raw questions of one or more files into a set, and the faulty records that were left out.

    Shared by the formats that give their questions as ``RawQuestion``. Ids are unique over all files.
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

    def add(self, file: str, items: Iterable[RawQuestion | RecordError], version_two: bool = False) -> None:
        """Check and add the questions of ``file``; ``version_two`` where the file states version 2.0.

        Raises DataError for a file without questions, and for the first fault with ``on_error="raise"``.
        """
        before = len(self.examples) + len(self.problems)
        if version_two:
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

    def _accept(self, file: str, raw: RawQuestion) -> None:
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

    def build(self, name: str) -> QuestionSet:
        """The set of all added questions; DataError where all records are faulty."""
        if not self.examples:
            raise DataError(
                f"{name}: no question is left: all {len(self.problems)} records are faulty, "
                f"the first is {self.problems[0]}"
            )
        return question_set(name, self.examples, self.protocol, self.problems)


def question_set(
    name: str, examples: Iterable[Example], protocol: Protocol, skipped: Iterable[Problem] = ()
) -> QuestionSet:
    """A QuestionSet of ``examples`` with its fingerprint computed."""
    examples = tuple(examples)
    return QuestionSet(name, examples, protocol, fingerprint(examples), tuple(skipped))


def fingerprint(examples: Iterable[Example]) -> str:
    """SHA-256 (hex) of all fields of all questions in order; the same on every machine."""
    digest = hashlib.sha256()
    previous = None
    for example in examples:
        # Consecutive questions on a passage hash its text once: null means "the same as before".
        context = None if example.context == previous else example.context
        previous = example.context
        answers = [[gold.text, gold.start] for gold in example.answers]
        plausible = [[gold.text, gold.start] for gold in example.plausible]
        record = [example.id, example.title, example.question, context, answers, plausible, example.kind]
        digest.update(json.dumps(record).encode("ascii"))
    return digest.hexdigest()
