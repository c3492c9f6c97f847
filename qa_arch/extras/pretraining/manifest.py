"""Manifest of pre-training: its commands, tasks, and our own Transformer."""

from __future__ import annotations

from pathlib import Path

from qa_arch.manifest import Command, Extra, TaskEntry

_LOSS = {
    "_target_": "qa_arch.extras.pretraining.models.TokenLoss",
    "label_smoothing": 0.0,
    "sentence_weight": 1.0,
}


def _task(name: str) -> TaskEntry:
    module, corpora = f"{__package__}.task:{name.upper()}", f"{__package__}.corpus"
    return TaskEntry(module, "corpus", ("encoder",), _LOSS, sources=corpora)


EXTRA = Extra(
    "pretraining",
    commands={
        "pretrain": Command(
            f"{__package__}.commands", "train and compare tokenizers, query a pre-trained run"
        )
    },
    tasks={name: _task(name) for name in ("masked_lm", "causal_lm", "masked_spans")},
    families={"qa_transformer": f"{__package__}.transformer"},
    conf=Path(__file__).parent / "conf",
)
