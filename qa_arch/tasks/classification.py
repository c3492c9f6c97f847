"""The class of a question: every class is a candidate of every question (Di Gennaro et al. 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from qa_arch.config.schema import Config
from qa_arch.config.target import TRUSTED
from qa_arch.data.question_types import CLASSES, class_set
from qa_arch.errors import ConfigError
from qa_arch.tasks.base import Watch
from qa_arch.tasks.selection import SelectionParts, SelectionTask
from qa_arch.tasks.selection_predictor import SelectionPredictor
from qa_arch.types.text import SelectionSet


class ClassificationTask(SelectionTask):
    """A softmax over the classes, all of which each question sees in training as well."""

    name = "classification"
    wanted: Literal["candidates", "classes"] = "classes"

    def assemble(self, config: Config, trusted: Sequence[str] = TRUSTED) -> SelectionParts:
        classes = config.model.get("classes", len(CLASSES))
        if classes != len(CLASSES):
            raise ConfigError(
                f"model.classes: {classes}; questions are of {len(CLASSES)} classes, leave it so"
            )
        return super().assemble(config, trusted)

    def negatives(self, config: Config, parts: SelectionParts) -> int:
        return len(parts.sets["train"].answers) - 1


@dataclass(frozen=True, slots=True)
class QuestionClass:
    """The class that a question most probably has."""

    label: str
    """``MAIN:sub``."""
    probability: float


def classify(
    predictor: SelectionPredictor, questions: Sequence[str], *, watch: Watch | None = None
) -> list[QuestionClass]:
    """The class of each question, in order; equal questions are read once.

    Raises RunError for a run that selects answers.
    """
    predictor.require("classification")
    distinct = list(dict.fromkeys(questions))
    if not distinct:
        return []
    scored = predictor.read(class_set("asked", [(None, text) for text in distinct]), watch=watch)
    classes = {text: _most_probable(scored[row]) for row, text in enumerate(distinct)}
    return [classes[text] for text in questions]


def with_classes(questions: SelectionSet, classifier: SelectionPredictor) -> SelectionSet:
    """``questions`` with the class of each as ``classifier`` sees it; the fingerprint stays."""
    texts = [question.text or " ".join(question.question) for question in questions.questions]
    pairs = zip(questions.questions, classify(classifier, texts), strict=True)
    labelled = tuple(replace(question, label=predicted.label) for question, predicted in pairs)
    return replace(questions, questions=labelled)


def _most_probable(scores: Sequence[float]) -> QuestionClass:
    powers = np.exp(np.array(scores) - max(scores))
    place = int(powers.argmax())
    return QuestionClass(CLASSES[place], float(powers[place] / powers.sum()))


TASK = ClassificationTask()
