"""The classes of questions by a trained classifier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from qa_arch.data.question_types import CLASSES, class_set
from qa_arch.predict.selection import SelectionPredictor
from qa_arch.types.text import SelectionSet


@dataclass(frozen=True, slots=True)
class Typed:
    """The class that a question most probably has."""

    label: str
    """``MAIN:sub``."""
    probability: float


def classify(
    predictor: SelectionPredictor,
    questions: Sequence[str],
    *,
    watch: Callable[[int, int], None] | None = None,
) -> list[Typed]:
    """The class of each question, in order; equal questions are read once.

    Raises RunError for a run that selects answers.
    """
    predictor.require("classification")
    distinct = list(dict.fromkeys(questions))
    if not distinct:
        return []
    scored = predictor.read(class_set("asked", [(None, text) for text in distinct]), watch=watch)
    found = {text: _best(scored[row]) for row, text in enumerate(distinct)}
    return [found[text] for text in questions]


def with_types(task: SelectionSet, classifier: SelectionPredictor) -> SelectionSet:
    """``task`` with the class of each question as ``classifier`` sees it; the fingerprint stays."""
    texts = [one.text or " ".join(one.question) for one in task.questions]
    typed = zip(task.questions, classify(classifier, texts), strict=True)
    return replace(task, questions=tuple(replace(one, label=found.label) for one, found in typed))


def _best(scores: Sequence[float]) -> Typed:
    powers = np.exp(np.array(scores) - max(scores))
    place = int(powers.argmax())
    return Typed(CLASSES[place], float(powers[place] / powers.sum()))
