"""The LightningDataModule of every task: collators and samplers as data loaders."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, Dataset

from qa_arch.config.schema import Config
from qa_arch.features.sampler import BucketBatchSampler
from qa_arch.system.lifeline import die_with
from qa_arch.tasks.base import Batches, Collator


class Ready(Dataset):
    """A data set whose items are whole batches: the sampler yields lists of rows."""

    def __init__(self, collator: Collator) -> None:
        self.collator = collator

    def __getitem__(self, rows: Any) -> Any:
        return self.collator(rows)


class TrainingData(pl.LightningDataModule):
    """Length-bucketed training batches and sorted calibration batches, each row once an epoch.

    With ``batch_size=None`` the loader takes its batches ready made, and Lightning sets the epoch
    on our own sampler, which is also what makes a resumed epoch continue where it stopped.
    """

    def __init__(
        self,
        batches: Batches,
        *,
        batch_size: int,
        token_budget: int | None,
        eval_batch_size: int,
        accumulate: int,
        seed: int,
        workers: int,
        pin: bool,
    ) -> None:
        super().__init__()
        self.train, self.calibration, self.new_sampler = batches.train, batches.calibration, batches.sampler
        self.batch_size, self.token_budget = batch_size, token_budget
        self.eval_batch_size, self.accumulate = eval_batch_size, accumulate
        self.seed, self.workers, self.pin = seed, workers, pin
        self.resume_at = 0

    @classmethod
    def of(cls, config: Config, batches: Batches, *, pin: bool = False) -> TrainingData:
        """The data of a run, batched as its trainer section says."""
        settings = config.trainer
        return cls(
            batches,
            batch_size=settings.batch_size,
            token_budget=settings.token_budget,
            eval_batch_size=settings.eval_batch_size,
            accumulate=settings.accumulate,
            seed=config.seed,
            workers=settings.workers,
            pin=pin,
        )

    def sampler(self, *, rank: int = 0, world: int = 1) -> BucketBatchSampler:
        """The training sampler of one rank."""
        return self.new_sampler(
            self.train.lengths,
            batch_size=None if self.token_budget else self.batch_size,
            token_budget=self.token_budget,
            seed=self.seed,
            shuffle=True,
            rank=rank,
            world=world,
            accumulate=self.accumulate,
        )

    def train_dataloader(self) -> DataLoader:
        assert self.trainer is not None
        sampler = self.sampler(rank=self.trainer.global_rank, world=self.trainer.world_size)
        sampler.set_epoch(self.trainer.current_epoch)
        sampler.start_at(self.resume_at)
        self.resume_at = 0
        return self._loader(self.train, sampler)

    def val_dataloader(self) -> DataLoader | list:
        if self.calibration is None:
            return []
        assert self.trainer is not None
        sampler = BucketBatchSampler(
            self.calibration.lengths,
            batch_size=self.eval_batch_size,
            seed=0,
            shuffle=False,
            rank=self.trainer.global_rank,
            world=self.trainer.world_size,
        )
        return self._loader(self.calibration, sampler)

    def _loader(self, collator: Collator, sampler: BucketBatchSampler) -> DataLoader:
        return DataLoader(
            Ready(collator),
            batch_size=None,
            sampler=sampler,
            num_workers=self.workers,
            worker_init_fn=partial(_tie, os.getpid()),
            generator=torch.Generator(),  # each pass draws a number: not from the one that dropout uses
            pin_memory=self.pin,
            persistent_workers=False,
        )


def _tie(parent: int, worker: int) -> None:
    die_with(parent)
