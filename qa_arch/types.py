"""Records passed between stages before and after the tensors: frozen, standard library only.

Offsets are always character (code point) offsets into ``Example.context``, end exclusive.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Literal

Protocol = Literal["1.1", "2.0"]
"""SQuAD evaluation version: 2.0 has unanswerable questions, 1.1 has none."""
Language = Literal["en", "ar", "de", "es", "hi", "ja", "ko", "ru", "th", "tr", "vi", "zh"]
"""Languages that ``metrics.squad.normaliser`` has rules for."""
ASKING = ("what", "which", "who", "whom", "whose", "when", "where", "why", "how")
_HOW = {"many": "how many", "much": "how much", "long": "how long"}


@dataclass(frozen=True, slots=True)
class Gold:
    """One annotated answer: ``context[start:end] == text``, or -1 for both if it is known as a text only.

    Such an answer can be scored, but not learned.
    """

    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text) if self.start >= 0 else -1


@dataclass(frozen=True, slots=True)
class Example:
    """One question about one passage.

    Questions of one paragraph share the same ``context`` string object, so each passage is tokenised once.
    """

    id: str
    question: str
    context: str
    title: str = ""
    answers: tuple[Gold, ...] = ()
    plausible: tuple[Gold, ...] = ()
    """Answers that look right but are not (SQuAD 2.0 marks them on unanswerable questions)."""
    kind: str | None = None
    """Why the question is hard or unanswerable, if the data says so (``negation``, ...)."""
    original: str | None = None
    """Id of the question that this one is a contrast of (a small edit that changes the answer)."""

    @property
    def answerable(self) -> bool:
        return bool(self.answers)

    @property
    def located(self) -> Gold | None:
        """The first answer whose place in the passage is known."""
        return next((gold for gold in self.answers if gold.start >= 0), None)


def rules_of(language: str) -> str:
    """End of a note: how answers in another language than English were compared."""
    return "" if language == "en" else f", answers compared by the rules of language {language}"


@dataclass(frozen=True, slots=True)
class Problem:
    """A skipped record: where it is, what is wrong, what to do."""

    file: str
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.file}: {self.where}: {self.message}"


@dataclass(frozen=True)
class QuestionSet:
    """Questions of one split in file order, with their name and protocol."""

    name: str
    examples: tuple[Example, ...]
    protocol: Protocol
    skipped: tuple[Problem, ...] = ()
    language: str = "en"
    """Language whose rules normalise the answers (``metrics.squad.normaliser``)."""

    def __len__(self) -> int:
        return len(self.examples)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of all questions in order, and of the language if it is not English; not of a file.

        Plausible answers, which neither training nor scoring uses, count in generated sets only: of SQuAD 2.0
        the official files have them and the hub's set has not.
        """
        digest = hashlib.sha256(b"" if self.language == "en" else self.language.encode())
        previous = None
        for example in self.examples:
            # Consecutive questions on a passage hash its text once: null means "same as the previous".
            context = None if example.context == previous else example.context
            previous = example.context
            answers = [[gold.text, gold.start] for gold in example.answers]
            plausible = [[gold.text, gold.start] for gold in example.plausible if example.kind]
            record = [example.id, example.title, example.question, context, answers, plausible, example.kind]
            if example.original is not None:  # other sets keep their fingerprints
                record.append(example.original)
            digest.update(json.dumps(record).encode("ascii"))
        return digest.hexdigest()

    @property
    def titles(self) -> frozenset[str]:
        return frozenset(example.title for example in self.examples)

    @property
    def other_language(self) -> dict[str, str]:
        """Record entry for a language other than English; empty for English."""
        return {} if self.language == "en" else {"language": self.language}

    @property
    def article_numbers(self) -> list[int]:
        """Article number of each question, from 0 in file order."""
        return _numbered(example.title for example in self.examples)

    @property
    def passage_numbers(self) -> list[int]:
        """Passage number of each question, from 0 in file order."""
        return _numbered(example.context for example in self.examples)

    @property
    def contrast_numbers(self) -> list[int]:
        """Contrast set number of each question: a question and its contrasts (Gardner et al. 2020)."""
        ids = {example.id for example in self.examples}
        return _numbered(e.original if e.original in ids else e.id for e in self.examples)


def _numbered(names: Iterable[str | None]) -> list[int]:
    numbers: dict[str | None, int] = {}
    return [numbers.setdefault(name, len(numbers)) for name in names]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A possible answer: ``text == context[start:end]``; the empty candidate is "no answer".

    Sequence models may join words that are not adjacent; ``start`` and ``end`` are then -1.
    """

    text: str
    start: int
    end: int
    score: float
    """Sum of the start and the end logit (for the empty candidate: the null score)."""
    probability: float
    """Softmax of ``score`` over all candidates of the question, the empty one included."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """A model's answer to a question, before the null threshold is applied."""

    id: str
    best: Candidate | None
    """The best non-empty span over all windows; None where no span had a finite score."""
    null_odds: float
    """Null score minus the score of ``best``: above the null threshold, the answer is "no answer"."""
    windows: int
    """Number of windows of the passage."""
    candidates: tuple[Candidate, ...] = field(default=(), repr=False)
    """n-best, most probable first; includes the empty candidate once."""
    question_cut: int = 0
    """Tokens at the end of the question that were not read, if that was counted."""

    def at(self, threshold: float) -> Candidate | None:
        """Answer at a null threshold: None ("no answer") if ``null_odds`` exceeds it."""
        return None if self.best is None or self.null_odds > threshold else self.best

    def text(self, threshold: float) -> str:
        """The official prediction at ``threshold``: the empty string is "no answer"."""
        chosen = self.at(threshold)
        return chosen.text if chosen else ""


def question_word(question: str) -> str:
    """First question word ("how many" and the like count as one); ``other`` if there is none."""
    words = re.findall(r"\w+", question.casefold())
    for word, after in pairwise([*words, ""]):
        if word in ASKING:
            if word == "how":
                return _HOW.get(after, "how")
            return "who" if word in ("whom", "whose") else word
    return "other"
