"""The selection task: its loss in training, top-1 accuracy and MRR on calibration."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

from qa_arch.config.schema import Optim
from qa_arch.metrics.selection_scores import selection_scores
from qa_arch.predict.selection import Scored, add_scores, ranks
from qa_arch.training.module import Task
from qa_arch.types.tensors import SelectionBatch
from qa_arch.types.text import SelectionSet


class SelectionTask(Task):
    """Validates by ranking the candidates of every calibration question once."""

    monitor = "calibration_mrr"

    def __init__(
        self,
        model: nn.Module,
        optim: Optim,
        *,
        total_steps: int,
        accumulate: int,
        loss: Callable[..., torch.Tensor],
        calibration: SelectionSet | None,
    ) -> None:
        super().__init__(model, optim, total_steps=total_steps, accumulate=accumulate)
        self.loss = loss
        self.calibration = calibration

    def losses(self, batch: SelectionBatch) -> tuple[torch.Tensor, torch.Tensor]:
        return self.loss(self.model(batch), batch.right, batch.offered), batch.weight

    def on_validation_epoch_start(self) -> None:
        self.scored: Scored = {}

    def validation_step(self, batch: SelectionBatch, batch_idx: int) -> None:
        add_scores(self.scored, batch, self.model(batch))

    def on_validation_epoch_end(self) -> None:
        assert self.calibration is not None
        scores = selection_scores(ranks(self.calibration, gather(self.scored)))
        metrics = {"calibration_accuracy": scores.accuracy, "calibration_mrr": scores.mrr}
        # ``History`` hands them to the mirrors, once an epoch.
        self.log_dict(metrics, sync_dist=False, rank_zero_only=False, batch_size=1, logger=False)


def gather(scored: Scored) -> Scored:
    """Join what every rank read; each rank gets all of it, so that all decide alike."""
    if not (dist.is_available() and dist.is_initialized()):
        return scored
    everyone: list[Scored] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, scored)
    return {row: values for part in everyone for row, values in part.items()}
