"""Manifest of the text_metrics extra: an option of ``qa-arch evaluate``."""

from __future__ import annotations

from qa_arch.manifest import Extra, Metrics

EXTRA = Extra(
    "text_metrics",
    metrics={
        "text-metrics": Metrics(
            f"{__package__}.metrics",
            "add BLEU, ROUGE, METEOR and CIDEr of the answerable questions (needs qa-arch[text])",
        )
    },
)
