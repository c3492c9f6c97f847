"""Manifest of the inspection extra: attention of every layer and head."""

from __future__ import annotations

from qa_arch.manifest import Command, Extra

EXTRA = Extra(
    "inspection",
    commands={
        "inspect": Command(
            f"{__package__}.command",
            "show the attention of every layer and head over a question and its text",
        )
    },
    attention=f"{__package__}.reading",
)
