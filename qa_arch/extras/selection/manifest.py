"""What answer selection, question classification and paraphrase scoring add."""

from __future__ import annotations

from pathlib import Path

from qa_arch.manifest import Command, Extra, TaskEntry

_HERE = "qa_arch.extras.selection"

EXTRA = Extra(
    "selection",
    commands={
        "types": Command(
            f"{_HERE}.types_command",
            "classify the questions of a file with a trained classifier",
        ),
        "paraphrase": Command(
            f"{_HERE}.paraphrase_command",
            "score the similarity of question pairs with a trained QA-LSTM",
        ),
    },
    tasks={
        "selection": TaskEntry(
            f"{_HERE}.task",
            "candidates",
            ("vectors",),
            {"_target_": "qa_arch.extras.selection.models.HingeLoss"},
        ),
        "classification": TaskEntry(
            f"{_HERE}.classification",
            "classes",
            ("vectors",),
            {"_target_": "qa_arch.extras.selection.models.ChoiceLoss"},
        ),
    },
    formats={
        "insuranceqa": f"{_HERE}.insuranceqa",
        "types": f"{_HERE}.question_classes",
    },
    contracts=f"{_HERE}.contract",
    conf=Path(__file__).parent / "conf",
)
