"""Manifest of the compression extra: ``qa-arch compress``."""

from __future__ import annotations

from qa_arch.manifest import Command, Extra

EXTRA = Extra(
    "compression",
    commands={
        "compress": Command(f"{__package__}.command", "make a trained span model smaller by pruning it")
    },
)
