"""Manifest of the sample extra; it must not import heavy packages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qa_arch.manifest import Command, Extra, Recipe


@dataclass(frozen=True)
class Lengths:
    """The section ``lengths`` of the config."""

    unit: str = "characters"


EXTRA = Extra(
    "sample",
    commands={"greet": Command("sample_extra.command", "greet somebody")},
    recipes={
        "answer_length": Recipe(
            "sample_extra.recipe",
            loss={"_target_": "sample_extra.recipe.SquaredError"},
            purpose="predicts the length of an answer",
            objective="error",
            data="sample_extra.recipe",
        )
    },
    sections={"lengths": Lengths},
    columns="sample_extra.columns",
    conf=Path(__file__).parent / "conf",
)
