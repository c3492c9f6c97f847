"""Manifest of answer selection and question classification."""

from __future__ import annotations

from pathlib import Path

from qa_arch.manifest import Command, Extra, TaskEntry

_HERE = "qa_arch.extras.selection"

EXTRA = Extra(
    "selection",
    commands={
        "paraphrase": Command(f"{_HERE}.command:paraphrase", "compare pairs of questions with a QA-LSTM"),
        "types": Command(
            f"{_HERE}.command:types", "classify the questions of a file with a trained classifier"
        ),
    },
    tasks={
        "selection": TaskEntry(
            f"{_HERE}.task", "candidates", ("vectors",), {"_target_": f"{_HERE}.models.HingeLoss"}
        ),
        "classification": TaskEntry(
            f"{_HERE}.task:CLASSIFICATION",
            "classes",
            ("vectors",),
            {"_target_": f"{_HERE}.models.ChoiceLoss"},
        ),
    },
    formats={"insuranceqa": f"{_HERE}.insuranceqa", "types": f"{_HERE}.question_classes"},
    conf=Path(__file__).parent / "conf",
)
