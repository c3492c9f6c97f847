"""Manifest of answer selection and question classification: commands, recipe, settings and formats."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from qa_arch.config.check import Range
from qa_arch.manifest import Command, Extra, Recipe

_HERE = "qa_arch.extras.selection"


@dataclass(frozen=True)
class Selection:
    """Answer selection, for models of the tasks ``selection`` and ``classification``."""

    margin: Annotated[float, Range(0, above=True)] = 0.2
    """Margin by which the cosine of a right answer must exceed that of a wrong one (``HingeLoss``)."""
    negatives: Annotated[int, Range(1)] = 50
    """Wrong answers sampled for each pair in each epoch; only the hardest of them counts."""
    max_question: Annotated[int, Range(1)] = 200
    """Maximum words of a question; the rest is cut."""
    max_answer: Annotated[int, Range(1)] = 200
    """Maximum words of an answer; the rest is cut."""
    unknown_buckets: Annotated[int, Range(0)] = 100
    """Vectors shared by out-of-vocabulary words, chosen by a hash of the word; 0 = zero vectors."""


def _recipe(loss: str, *unread: str) -> Recipe:
    return Recipe(
        f"{_HERE}.recipe",
        loss={"_target_": f"{_HERE}.models.{loss}"},
        purpose="this run selects answers from candidates, not spans of a text; rank candidates with"
        " qa_arch.load_predictor(RUN)(question, candidates); score it: qa-arch selection evaluate {run}"
        " --data SOURCE",
        objective="accuracy",
        data=f"{_HERE}.sets",
        unread=(
            *("calibration.*", "data.language", "decode.*", "encoder.*"),
            *("features.max_length", "features.stride", "features.max_question", "trainer.select"),
            *unread,
        ),
    )


EXTRA = Extra(
    "selection",
    commands={
        "selection": Command(f"{_HERE}.commands", "score a run that ranks candidates on another set"),
        "paraphrase": Command(f"{_HERE}.commands:paraphrase", "compare pairs of questions with a QA-LSTM"),
        "types": Command(
            f"{_HERE}.commands:types", "classify the questions of a file with a trained classifier"
        ),
    },
    recipes={
        "selection": _recipe("HingeLoss"),
        "classification": _recipe("ChoiceLoss", "selection.negatives"),
    },
    sections={"selection": Selection},
    formats={"insuranceqa": f"{_HERE}.sets:INSURANCEQA", "types": f"{_HERE}.sets:TYPES"},
    columns=f"{_HERE}.columns",
    conf=Path(__file__).parent / "conf",
)
