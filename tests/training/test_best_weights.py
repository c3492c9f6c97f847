"""Selection of the best epoch, and early stopping."""

from types import SimpleNamespace

import pytest
import torch

from qa_arch.training.checkpoint import BestWeights

MEASURES = ("f1", "exact", "loss", "forced_auc")
EPOCHS = [
    {f"calibration_{name}": value for name, value in zip(MEASURES, row, strict=True)}
    for row in (
        (40.0, 38.0, 2.0, 110.0),
        (52.0, 44.0, 1.4, 109.0),
        (float("nan"), 47.0, 1.6, 121.0),
        (55.0, 46.0, 1.9, 120.0),
    )
]


def run_epochs(select: str, patience: int = 0) -> tuple[list[int], int | None, int]:
    """Saved epochs, best epoch and number of epochs trained on the scores of ``EPOCHS``."""
    saved: list[int] = []
    trainer = SimpleNamespace(current_epoch=0, should_stop=False)
    module = SimpleNamespace(parts=SimpleNamespace(monitor=None))
    best = BestWeights(lambda trainer: saved.append(trainer.current_epoch), select, patience)
    for epoch, metrics in enumerate(EPOCHS):
        trainer.current_epoch = epoch
        trainer.callback_metrics = {name: torch.tensor(value) for name, value in metrics.items()}
        best.on_validation_end(trainer, module)
        if trainer.should_stop:
            return saved, best.epoch, epoch + 1
    return saved, best.epoch, len(EPOCHS)


@pytest.mark.parametrize(
    ("select", "saved"),
    [
        ("f1", [0, 1, 3]),
        ("exact", [0, 1, 2]),
        ("loss", [0, 1]),
        ("forced_auc", [0, 2]),
        ("last", [0, 1, 2, 3]),
    ],
    ids=str,
)
def test_best_epoch_by_each_criterion(select, saved):
    assert run_epochs(select) == (saved, saved[-1], 4)


@pytest.mark.parametrize(("select", "patience", "trained"), [("f1", 1, 3), ("loss", 2, 4), ("loss", 1, 3)])
def test_patience_counts_epochs_without_improvement(select, patience, trained):
    assert run_epochs(select, patience)[2] == trained
