"""The recipe of the sample extra: one number, fitted to the lengths of the answers to questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from qa_arch.config.schema import Config
from qa_arch.data import sources, splits
from qa_arch.nn.reading import Batches
from qa_arch.records import CALIBRATION, TRAIN, Point, SplitFacts, questions_folder, write_questions
from qa_arch.tensors import Movable
from qa_arch.training.module import Fitting
from qa_arch.training.run import OpenRun

identity = sources.identity


@dataclass(frozen=True, slots=True, eq=False)
class Lengths(Movable):
    labels: Float[Tensor, "B"]
    weight: Float[Tensor, "B"]

    def __len__(self) -> int:
        return len(self.labels)


class Mean(nn.Module):
    """Predicts one length for all questions."""

    def __init__(self, vectors: Any = None, start: float = 1.0) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor([start]))

    def forward(self, batch: Lengths) -> Float[Tensor, "B"]:
        return self.value.expand(len(batch))


class SquaredError:
    tasks = ("answer_length",)

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        return (logits - labels) ** 2


class Collate:
    def __init__(self, questions: Any) -> None:
        self.lengths = [len(e.answers[0].text) if e.answers else 0 for e in questions.examples]

    def __call__(self, rows: Any) -> Lengths:
        numbers = [row if row >= 0 else -1 - row for row in rows]
        labels = torch.tensor([float(self.lengths[number]) for number in numbers])
        return Lengths(labels, torch.tensor([float(row >= 0) for row in rows]))


class Errors:
    def __init__(self) -> None:
        self.parts: list[float] = []

    def add(self, batch: Lengths, output: Tensor) -> None:
        self.parts += (output - batch.labels).abs().tolist()

    def result(self) -> list[float]:
        return self.parts


def train(run: OpenRun) -> None:
    sets = assemble(run.config, run.trusted)
    facts = {split: replace(SplitFacts.of(questions), protocol="length") for split, questions in sets.items()}
    made = fitting(run.config, sets)
    run.describe(sets, facts, made.model)
    run.model_folder.mkdir(parents=True, exist_ok=True)
    run.fit(made)
    errors = [abs(length - float(made.model.value)) for length in Collate(sets[CALIBRATION]).lengths]
    metrics = {"error": sum(errors) / len(errors)}
    point = Point(protocol="length", metric_version="length-1", metrics=metrics)
    ids = [example.id for example in sets[CALIBRATION].examples]
    rows = write_questions(questions_folder(run.folder, CALIBRATION), {"id": ids, "error": errors})
    run.score(CALIBRATION, {"all": point}, rows, seconds=0.0)
    run.finish()


def assemble(config: Config, trusted: Sequence[str]) -> dict[str, Any]:
    return load_splits(config)


def fitting(config: Config, sets: dict[str, Any]) -> Fitting:
    batches = Batches(Collate(sets[TRAIN]), Collate(sets[CALIBRATION]))
    return Fitting(
        Mean(),
        SquaredError(),
        batches,
        Float[Tensor, "B"],
        Errors,
        lambda errors: {"calibration_f1": -sum(errors)},
    )


def check(config: Config, trusted: Sequence[str]) -> None:
    assert config.lengths.unit == "characters"


def require_files(config: Config) -> None:
    for setting, source in config.data.opened.items():
        sources.require_present(source, setting)


def load_splits(config: Config) -> dict[str, Any]:
    return splits.load_splits(config.data)
