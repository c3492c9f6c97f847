"""The records that cross stages before and after the tensors: frozen, standard library only.

Offsets are always character (code point) offsets into ``Example.context``, end exclusive.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Protocol = Literal["1.1", "2.0"]
"""The SQuAD evaluation that a set belongs to: 2.0 has unanswerable questions, 1.1 has none."""
ASKING = ("what", "which", "who", "whom", "whose", "when", "where", "why", "how")
_HOW = {"many": "how many", "much": "how much", "long": "how long"}


@dataclass(frozen=True, slots=True)
class Gold:
    """One annotated answer: ``context[start:start + len(text)] == text``."""

    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


@dataclass(frozen=True, slots=True)
class Example:
    """One question about one passage.

    Questions of one paragraph share the very same ``context`` string object, so that a passage
    is tokenised once however many questions it has.
    """

    id: str
    question: str
    context: str
    title: str = ""
    answers: tuple[Gold, ...] = ()
    plausible: tuple[Gold, ...] = ()
    """Answers that look right and are not (SQuAD 2.0 marks them on unanswerable questions)."""
    kind: str | None = None
    """Why the question is hard or unanswerable, where the data says so (``negation``, ...)."""
    original: str | None = None
    """The id of the question that this is a contrast of (a small change that changes the answer)."""

    @property
    def answerable(self) -> bool:
        return bool(self.answers)


@dataclass(frozen=True, slots=True)
class Problem:
    """A record that was left out, and why: where it is, what is wrong, what to do."""

    file: str
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.file}: {self.where}: {self.message}"


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """The questions of one split, in file order, with what identifies them."""

    name: str
    examples: tuple[Example, ...]
    protocol: Protocol
    fingerprint: str
    """SHA-256 over the content of the questions (order included), not over file bytes."""
    skipped: tuple[Problem, ...] = ()
    language: str = "en"
    """By whose rules answers are normalised (``metrics.languages``)."""

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def titles(self) -> frozenset[str]:
        return frozenset(example.title for example in self.examples)

    @property
    def other_language(self) -> dict[str, str]:
        """The entry of a record for a language that is not English; empty for English."""
        return {} if self.language == "en" else {"language": self.language}

    @property
    def article_numbers(self) -> list[int]:
        """The number of each question's article, from 0 in the order of the file."""
        return _numbered(example.title for example in self.examples)

    @property
    def passage_numbers(self) -> list[int]:
        """The number of each question's passage, from 0 in the order of the file."""
        return _numbered(example.context for example in self.examples)

    @property
    def contrast_numbers(self) -> list[int]:
        """The same of contrast sets: a question and its contrasts (Gardner et al. 2020)."""
        ids = {example.id for example in self.examples}
        return _numbered(e.original if e.original in ids else e.id for e in self.examples)


def _numbered(names: Iterable[str | None]) -> list[int]:
    numbers: dict[str | None, int] = {}
    return [numbers.setdefault(name, len(numbers)) for name in names]


@dataclass(frozen=True, slots=True)
class SelectionQuestion:
    """A question whose answer is to be selected from candidates, all of them in words."""

    id: str
    question: tuple[str, ...]
    candidates: Sequence[int]
    """Answers to choose from, as rows of the set's ``answers``; a ``range`` where it is all of them."""
    right: tuple[int, ...]
    """The right ones among the set's ``answers``. A pool that was retrieved may hold none of them."""
    title: str = ""


@dataclass(frozen=True, slots=True)
class SelectionSet:
    """The questions of one split of an answer-selection task, in file order."""

    name: str
    answers: tuple[tuple[str, ...], ...]
    """Every candidate once, in words: questions that share a candidate share its row."""
    questions: tuple[SelectionQuestion, ...]
    fingerprint: str
    """SHA-256 over the content of questions, candidates and answers, not over file bytes."""
    left_out: int = 0
    """Questions with which there was nothing to select: no answer, or a single candidate."""
    protocol: Literal["selection"] = "selection"
    main: tuple[int, ...] = ()
    """Main class of each of ``answers`` where these are the sub classes of a question; else empty."""

    def __len__(self) -> int:
        return len(self.questions)

    @property
    def titles(self) -> frozenset[str]:
        return frozenset(question.title for question in self.questions if question.title)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A possible answer: ``text == context[start:end]``; the empty candidate is "no answer".

    Sequence models may join words that do not stand side by side: ``start`` and ``end`` are -1 then.
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
    """n-best, most probable first; holds the empty candidate once."""

    def at(self, threshold: float) -> Candidate | None:
        """The answer given when "no answer" must win by more than ``threshold``; None = no answer."""
        return None if self.best is None or self.null_odds > threshold else self.best

    def text(self, threshold: float) -> str:
        """The official prediction at ``threshold``: the empty string is "no answer"."""
        chosen = self.at(threshold)
        return chosen.text if chosen else ""


def question_word(question: str) -> str:
    """The first word that asks ("how many" and the like as one); ``other`` where there is none."""
    words = re.findall(r"\w+", question.casefold())
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if word in ASKING:
            if word == "how":
                return _HOW.get(after, "how")
            return "who" if word in ("whom", "whose") else word
    return "other"


@dataclass(frozen=True, eq=False)
class AttentionMap:
    """Attention of a match-LSTM over the question, in the window that holds the best span."""

    weights: npt.NDArray[np.floating]
    """(2, C, Q + 1): direction, unit of the passage, unit of the question and, last, the word "nothing". Each
    unit's sum to 1."""
    context: npt.NDArray[np.int32]
    """(C, 2) characters of each unit in the passage, end exclusive."""
    question: npt.NDArray[np.int32]
    """(Q, 2) the same in the question."""
