"""Manifest of the prompting extra: prompted language models as systems."""

from __future__ import annotations

from qa_arch.manifest import Command, Extra

EXTRA = Extra(
    "prompting",
    commands={
        "prompt": Command(f"{__package__}.command", "answer a question set with a prompted language model")
    },
)
