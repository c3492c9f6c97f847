"""A model that was built to be checked, and the checks that hold for the models of every task.

A check is a function of a contender that raises ``ContractError``; the first line of its docstring says
what holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from qa_arch.config.schema import Config, task_entry
from qa_arch.config.target import TRUSTED
from qa_arch.errors import QaArchError
from qa_arch.models import store
from qa_arch.models.build import build_model
from qa_arch.records import CALIBRATION, DEV, MODEL, TRAIN, questions_folder, read_questions
from qa_arch.spans.loading import load_predictor
from qa_arch.tasks import Task, task_of
from qa_arch.training.output_shapes import check_losses, check_output
from qa_arch.training.run import train

TOLERANCE = 1e-5
"""Of scores that are the same by rights, relative to the largest of them if that is above 1."""
WITHOUT_EFFECT = ("score.bias", "span.bias", "key.bias", "k_lin.bias", "cell.weight_hh")
"""Endings of parameters whose gradients are zero in exact arithmetic: a shift of all scores of one softmax,
what multiplies h_0 = 0."""


class ContractError(QaArchError):
    """What a model does not keep to, with the numbers that show it."""


Check = Callable[["Contender"], None]
Collate = Callable[[list[int]], Any]


@dataclass(frozen=True)
class Contract:
    """What the models of a task must keep to."""

    settings: Callable[[Path], list[str]]
    """Writes a few questions, or texts, into a folder: the overrides by which a run reads them."""
    collate: Callable[[Config, Any, str, int], Collate]
    """(config, parts, split, multiple) -> rows to a batch, padded to a multiple where the task does so."""
    checks: Sequence[Check]
    """In the order in which they help; ``trained_run_answers_as_scored`` holds for all as well."""


@dataclass(frozen=True)
class Contender:
    """A model with data, loss and config, as a run has them."""

    config: Config
    parts: Any
    contract: Contract
    trusted: Sequence[str] = TRUSTED
    without_effect: tuple[str, ...] = WITHOUT_EFFECT

    @property
    def task(self) -> Task:
        return task_of(self.config.model)

    @property
    def model(self) -> nn.Module:
        return self.parts.model

    def batch(self, split: str = TRAIN, rows: list[int] | None = None, multiple: int = 1) -> Any:
        """The rows of a split, by default all."""
        table = self.parts.tables[split]
        return self.contract.collate(self.config, self.parts, split, multiple)(
            rows or list(range(len(table)))
        )

    def loss(self, batch: Any) -> Tensor:
        """The mean loss of a batch, with gradients."""
        return self.parts.loss(self.model(batch), self.task.labels(batch)).mean()

    def outputs(self, split: str) -> Any:
        """What the predictor makes of the logits of a split."""
        predictor = self.task.predictor(self.config, self.parts)
        return predictor.read(self.parts.sets[split], table=self.parts.tables[split], batch_size=3)


def require(condition: Any, reason: str) -> None:
    """Raise ContractError for ``reason`` where a condition does not hold."""
    if not condition:
        raise ContractError(reason)


def logits_of(model: nn.Module, batch: Any) -> Any:
    """The logits without dropout and gradients."""
    with torch.inference_mode():
        return model.eval()(batch)


def tensors(output: Any) -> dict[str, Tensor]:
    """The tensors of a model's output by their fields."""
    if not is_dataclass(output):
        return {"scores": output}
    values = {f.name: getattr(output, f.name) for f in fields(output)}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def difference(actual: Tensor, expected: Tensor) -> float:
    """The largest difference of two tensors of a shape; infinite where only one is finite, or one is NaN."""
    apart = (actual - expected).abs().masked_fill(actual == expected, 0.0).nan_to_num(math.inf)
    return float(apart.max()) if apart.numel() else 0.0


def tolerance(scores: Tensor) -> float:
    """What two computations of these scores may differ by."""
    finite = scores[scores.isfinite()].abs()
    return TOLERANCE * max(1.0, float(finite.max()) if finite.numel() else 1.0)


# The checks ----------------------------------------------------------


def output_has_its_shape(contender: Contender) -> None:
    """forward gives what the task wants, and the loss a number for each row."""
    task, batch, model = contender.task, contender.batch(), contender.model
    output = logits_of(model, batch)
    check_output(model, batch, output, task.output)
    check_losses(contender.parts.loss, batch, contender.parts.loss(output, task.labels(batch)))


def same_alone_and_padded(contender: Contender) -> None:
    """A row scores the same in a batch, alone, and alone with more padding."""
    together, model = tensors(logits_of(contender.model, contender.batch())), contender.model
    for row in range(len(contender.batch())):
        alone = tensors(logits_of(model, contender.batch(rows=[row])))
        other = tensors(logits_of(model, contender.batch(rows=[row], multiple=64)))
        for name, scores in alone.items():
            shared = tuple(map(slice, scores[0].shape))
            for what, given in (("in a batch", together[name][row]), ("padded further", other[name][0])):
                apart = difference(given[shared], scores[0])
                require(
                    apart <= tolerance(scores[0]),
                    f"{name} of row {row} {what} differs by {apart:.2g} from that alone: it depends on"
                    " padding or on other rows; use the batch's masks wherever rows or tokens are mixed",
                )


def gradients_reach_all_parameters(contender: Contender) -> None:
    """A gradient that is a number and not zero reaches every trainable parameter."""
    model = contender.model.train()
    model.zero_grad()
    contender.loss(contender.batch()).backward()
    check_gradients(model, contender.without_effect)


def check_gradients(model: nn.Module, without_effect: tuple[str, ...] = WITHOUT_EFFECT) -> None:
    """Raise ContractError for the first parameter without a gradient, or with a gradient of zeros though its
    name does not end as in ``without_effect``."""
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        require(parameter.grad is not None, f"{name} has none: the scores do not depend on it")
        assert parameter.grad is not None
        require(parameter.grad.isfinite().all(), f"that of {name} is not finite")
        require(
            parameter.grad.any() or name.endswith(without_effect),
            f"that of {name} is zero: the loss does not depend on it",
        )


def saved_weights_load(contender: Contender) -> None:
    """Saved and loaded, the model gives the same logits to the last bit."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        contender.task.save(folder, contender.parts)
        store.save_weights(folder, contender.model)
        torch.manual_seed(99)
        reads_text = "encoder" in task_entry(contender.task.name).inputs
        encoder = store.load_encoder(folder) if reads_text else None
        section, vectors = contender.config.model, store.load_vectors(folder)
        copy = build_model(section, encoder, vectors, contender.trusted)
        before = tensors(logits_of(copy, contender.batch()))
        store.load_weights(folder, copy)
    actual, expected = (logits_of(model, contender.batch()) for model in (copy, contender.model))
    named = tensors(expected)
    require(
        any(not torch.equal(before[name], scores) for name, scores in named.items()),
        "another seed gives the same logits: no weight has an effect",
    )
    for name, scores in named.items():
        require(
            torch.equal(tensors(actual)[name], scores),
            f"{name} differs by {difference(tensors(actual)[name], scores):.2g}: something that the logits"
            " depend on is neither a parameter nor a buffer",
        )
    require(_plain(actual) == _plain(expected), f"{_plain(actual)} became {_plain(expected)}")


def _plain(output: Any) -> dict[str, Any]:
    """The fields of an output that are no tensors."""
    values = {f.name: getattr(output, f.name) for f in fields(output)} if is_dataclass(output) else {}
    return {name: value for name, value in values.items() if not isinstance(value, Tensor)}


def trained_run_answers_as_scored(contender: Contender) -> None:
    """A run is trained and recorded, loads, and answers as it was scored."""
    config, trusted = contender.config, contender.trusted
    with TemporaryDirectory() as name:
        run = Path(name)
        record = train(config, folder=run, trusted=trusted)
        require(record.status == "ok", f"its record says {record.status}: {record.error}")
        predictor = load_predictor(run, device="cpu", trust=trusted)
        torch.manual_seed(5)
        split = DEV if DEV in record.scores else CALIBRATION
        questions = contender.task.load_splits(config.data)[split]
        outputs = predictor.read(questions)
        rows = contender.task.rows(questions, outputs, predictor.null_threshold)
        recorded = read_questions(questions_folder(run, split))
        require((run / MODEL).is_dir(), "it has no saved model")
    for column, values in rows.items():
        for id_, now, then in zip(rows["id"], values, recorded[column], strict=True):
            require(_same(now, then), f"{column} of {id_} was {then} when it was scored and is {now}")


def _same(now: Any, then: Any) -> bool:
    if isinstance(now, float) and isinstance(then, float):
        return math.isclose(now, then, rel_tol=1e-5, abs_tol=TOLERANCE)
    return now == then


# What checks of a task are made of ------------------------------------------------------------------


@contextmanager
def learned_by_heart(
    model: nn.Module, loss: Callable[[], Tensor], *, steps: int, lr: float
) -> Iterator[None]:
    """``model`` after ``steps`` of AdamW on ``loss`` without dropout; its weights are put back at the end."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    try:
        with without_dropout(model):
            for _ in range(steps):
                model.train()
                optimizer.zero_grad()
                loss().backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
        yield
    finally:
        model.load_state_dict(before)


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """The model's layers of dropout let everything through."""
    layers = [layer for layer in model.modules() if isinstance(layer, nn.modules.dropout._DropoutNd)]
    shares = [layer.p for layer in layers]
    try:
        for layer in layers:
            layer.p = 0.0
        yield
    finally:
        for layer, share in zip(layers, shares, strict=True):
            layer.p = share


def by_heart(contender: Contender, split: str, *, steps: int, lr: float) -> Any:
    """The outputs for a split after the model was trained on it until it should know it by heart."""
    batch = contender.batch(split)
    with learned_by_heart(contender.model, lambda: contender.loss(batch), steps=steps, lr=lr):
        return contender.outputs(split)


def require_answers(expected: Mapping[str, Any], actual: Mapping[str, Any], steps: int) -> None:
    """Raise ContractError for the first question that a model did not learn."""
    for question, answer in expected.items():
        require(
            actual[question] == answer,
            f"after {steps} steps on {len(expected)} questions alone it answers {actual[question]!r} to"
            f" {question!r}, not {answer!r}",
        )


FOR_ALL: tuple[Check, ...] = (output_has_its_shape, same_alone_and_padded, gradients_reach_all_parameters)
"""The first checks of every contract."""
