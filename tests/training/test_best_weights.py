"""Which epoch has the best weights, and when training stops for want of a better one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from pytorch_lightning.trainer.states import TrainerFn
from torch import nn

from qa_arch.tasks import task_named
from qa_arch.training.checkpoint import BestWeights, Patience
from qa_arch.training.module import TrainingModule

MEASURES = ("f1", "exact", "loss", "spans_auc")
EPOCHS = [
    {f"calibration_{name}": value for name, value in zip(MEASURES, row, strict=True)}
    for row in (
        (40.0, 38.0, 2.0, 110.0),
        (52.0, 44.0, 1.4, 109.0),
        (50.0, 47.0, 1.6, 121.0),
        (55.0, 46.0, 1.9, 120.0),
    )
]


def fitted(select: str, patience: int = 9) -> tuple[BestWeights, list[int], int]:
    """The callback after the epochs above, the epochs it saved, and how many were trained."""
    saved: list[int] = []
    strategy = SimpleNamespace(reduce_boolean_decision=lambda decision, all: decision)
    trainer = SimpleNamespace(
        current_epoch=0, is_global_zero=True, should_stop=False, fast_dev_run=False, sanity_checking=False,
        strategy=strategy, state=SimpleNamespace(fn=TrainerFn.FITTING),
    )  # fmt: skip
    module = TrainingModule.__new__(TrainingModule)
    nn.Module.__init__(module)
    module.task, module.model = task_named("span"), nn.Linear(1, 1)
    best = BestWeights(lambda model: saved.append(trainer.current_epoch), select)
    callbacks = [best] if select == "last" else [best, Patience(module.task, select, patience)]
    for epoch, metrics in enumerate(EPOCHS):
        trainer.current_epoch = epoch
        trainer.callback_metrics = {name: torch.tensor(value) for name, value in metrics.items()}
        for callback in callbacks:
            callback.on_validation_end(trainer, module)
        if trainer.should_stop:
            return best, saved, epoch + 1
    return best, saved, len(EPOCHS)


@pytest.mark.parametrize(
    ("select", "saved"),
    [
        ("f1", [0, 1, 3]),
        ("exact", [0, 1, 2]),
        ("loss", [0, 1]),
        ("spans_auc", [0, 2]),
        ("last", [0, 1, 2, 3]),
    ],
    ids=str,
)
def test_each_rule_keeps_its_own_epoch(select, saved):
    best, selected, _ = fitted(select)
    assert selected == saved
    assert best.epoch == saved[-1]


@pytest.mark.parametrize(("select", "patience", "trained"), [("f1", 1, 3), ("loss", 2, 4), ("loss", 1, 3)])
def test_patience_counts_epochs_without_a_better_one(select, patience, trained):
    assert fitted(select, patience)[2] == trained
