"""The class of a question: every class is a candidate of every question (Di Gennaro et al. 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from qa_arch.config.schema import Config
from qa_arch.config.target import TRUSTED
from qa_arch.errors import ConfigError
from qa_arch.extras.selection.sets import CLASSES
from qa_arch.extras.selection.task import SelectionParts, SelectionTask


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


TASK = ClassificationTask()
