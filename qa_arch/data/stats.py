"""Statistics of a question set: the counts of thesis Table 3.1, and lengths in words."""

from __future__ import annotations

import math
import statistics as numbers
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Self

from qa_arch.types.text import Protocol, QuestionSet


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of texts in words (separated by white space); all 0 for no texts."""

    mean: float
    median: float
    p95: int
    """95th percentile: the smallest length that at least 95% of the texts do not exceed."""
    max: int

    @classmethod
    def of(cls, texts: Iterable[str]) -> Self:
        counts = sorted(len(text.split()) for text in texts)
        if not counts:
            return cls(0.0, 0.0, 0, 0)
        rank = math.ceil(0.95 * len(counts))
        return cls(numbers.fmean(counts), float(numbers.median(counts)), counts[rank - 1], counts[-1])


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts of a set; an article is a distinct title, a paragraph a distinct passage of an article."""

    examples: int
    negatives: int
    """Questions without an answer."""
    articles: int
    articles_with_negatives: int
    paragraphs: int
    answers_per_question: float
    """Mean over the answerable questions; 0 where there are none."""
    context_words: Lengths
    """Over paragraphs, not over questions."""
    question_words: Lengths
    answer_words: Lengths
    """Over all gold answers."""
    kinds: tuple[tuple[str, int], ...]
    """(kind, number of questions), sorted by kind, over the questions that state a kind."""
    protocol: Protocol
    skipped: int
    """Faulty records left out while reading."""
    fingerprint: str

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON, ``kinds`` as an object."""
        return {**asdict(self), "kinds": dict(self.kinds)}


def statistics(questions: QuestionSet) -> Statistics:
    """Statistics of ``questions``; the published figures on the official SQuAD files."""
    examples = questions.examples
    negatives = [example for example in examples if not example.answerable]
    answers = [gold.text for example in examples for gold in example.answers]
    passages = {(example.title, example.context) for example in examples}
    kinds = Counter(example.kind for example in examples if example.kind is not None)
    return Statistics(
        examples=len(examples),
        negatives=len(negatives),
        articles=len(questions.titles),
        articles_with_negatives=len({example.title for example in negatives}),
        paragraphs=len(passages),
        answers_per_question=len(answers) / max(len(examples) - len(negatives), 1),
        context_words=Lengths.of(context for _, context in passages),
        question_words=Lengths.of(example.question for example in examples),
        answer_words=Lengths.of(answers),
        kinds=tuple(sorted(kinds.items())),
        protocol=questions.protocol,
        skipped=len(questions.skipped),
        fingerprint=questions.fingerprint,
    )
