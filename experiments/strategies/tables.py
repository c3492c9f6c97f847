"""One device, two devices, accumulation: the same optimizer steps.

Filled by: qa-arch train -m experiment=strategies model=proposed trainer.micro_batch=32,8
and qa-arch train -m experiment=strategies model=proposed trainer=ddp,ddp_spawn trainer.accelerator=cpu ...
(see README.md, also for the commands on SQuAD 2.0)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from qa_arch.records import CALIBRATION, STEP_LOSSES, Epoch, recorded
from qa_arch.results.experiments import Wanted, records_table
from qa_arch.results.tables import Table, number

SQUAD = "squad2"
STEPS = (
    "qa-arch train -m experiment=real_part name=strategies data=balanced data.train_questions=5000"
    " model=proposed model.dropout=0 encoder.hidden_dropout=0 trainer.max_steps=50 trainer.log_every=1"
    " trainer.precision=fp32 trainer.batch_size=32 trainer.micro_batch=32,8,6 seed=13"
)
DROPOUT = "dropout"
WITH_DROPOUT = (
    "qa-arch train -m experiment=real_part name=strategies data=balanced data.train_questions=5000"
    " model=proposed trainer.epochs=1 trainer.precision=fp32 trainer.batch_size=16 trainer.micro_batch=16,4"
    " seed=13,14"
)
SPLIT = ("model", "strategy", "devices", "micro", "accumulate", "batch")
FIRST_STEPS = 50


def tables(folder: Path) -> list[Table]:
    return [
        records_table(
            folder,
            "A global batch of 32, split in different ways: proposed model at demo size, generated data",
            records=("ddp*", "micro_batch*"),
            columns=(*SPLIT, "exact", "f1", "seconds", "examples_per_second", "peak_memory_mb"),
            sort=("devices", "accumulate", "strategy"),
        ),
        _step_table(folder),
        records_table(
            folder,
            "With dropout, a global batch of 16, 5,000 questions of SQuAD 2.0, MiniLM, in fp32, calibration",
            records=DROPOUT,
            split=CALIBRATION,
            columns=(*SPLIT, "seed", "steps", "exact", "f1", "forced_f1", "auroc"),
            sort=("devices", "accumulate", "strategy", "seed"),
            wanted=[Wanted("proposed", WITH_DROPOUT)],
        ),
    ]


def _step_table(folder: Path) -> Table:
    """Runs on SQuAD beside the loss of each step that one process with the whole batch has."""
    table = records_table(
        folder,
        "The same on 5,000 questions of SQuAD 2.0, MiniLM, in fp32 without dropout, calibration",
        records=SQUAD,
        split=CALIBRATION,
        columns=(*SPLIT, "steps", "f1", "forced_f1", "peak_memory_mb"),
        sort=("devices", "accumulate", "strategy"),
        wanted=[Wanted("proposed", STEPS)],
    )
    runs = {str(place): record for place, record in recorded(folder, SQUAD)}
    losses = {place: step_losses(record.epochs) for place, record in runs.items()}
    whole = [place for place, record in runs.items() if record.batch.devices == record.batch.accumulate == 1]
    rows = [
        {**row, "loss_difference": largest_difference(losses[row["run"]], losses[whole[0]])}
        if row.get("run") in losses and whole
        else row
        for row in table.rows
    ]
    column = number("loss_difference", "losses differ by", "{:.0e}".format)
    note = f"losses differ by: the largest relative difference of a loss in the first {FIRST_STEPS} steps"
    return replace(table, columns=[*table.columns, column], rows=rows, notes=[*table.notes, note])


def step_losses(epochs: Sequence[Epoch]) -> dict[int, float]:
    losses = (item for epoch in epochs for item in epoch.metrics.get(STEP_LOSSES, {}).items())
    return {int(step): loss for step, loss in losses}


def largest_difference(actual: Mapping[int, float], expected: Mapping[int, float]) -> float:
    """Largest relative difference of the losses of the first steps; both must have the same steps."""
    steps = [step for step in expected if step <= FIRST_STEPS]
    return max(abs(actual[step] - expected[step]) / expected[step] for step in steps)
