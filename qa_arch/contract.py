"""The contract that every span model must satisfy: ``qa-arch check-model`` and ``tests/test_contract.py``.

It consists of checks, and of a few questions for which the model is built. A check is a function of that
model that raises ``ContractError``; the first line of its docstring states the requirement. Those that fit
any model also run in the tests of the extras, on subjects of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from qa_arch.config.schema import Config
from qa_arch.config.target import TRUSTED
from qa_arch.data.question_sets import question_set
from qa_arch.data.splits import load_splits
from qa_arch.data.squad import write
from qa_arch.errors import QaArchError
from qa_arch.features.batches import Collator
from qa_arch.features.vectors import vector_rows
from qa_arch.files import write_atomic, write_json
from qa_arch.models import store
from qa_arch.nn.distillation import soft_target_loss
from qa_arch.qa import task
from qa_arch.qa.files import question_rows
from qa_arch.qa.loading import load_predictor
from qa_arch.records import CALIBRATION, MODEL, TRAIN, questions_folder, read_questions
from qa_arch.tensors import SpanLogits, StepLogits, difference, output_fields, output_tensors
from qa_arch.training.module import check_losses, check_output
from qa_arch.training.run import train
from qa_arch.types import Example, Gold

TOLERANCE = 1e-5
"""Tolerance for scores that should be equal, relative to the largest of them if that is above 1."""
WITHOUT_EFFECT = ("score.bias", "span.bias", "key.bias", "k_lin.bias", "cell.weight_hh")
"""Name endings of parameters whose gradients are exactly zero: those that shift all scores of a softmax, or
multiply h_0 = 0."""


class ContractError(QaArchError):
    """A failed check, with the numbers that show it."""


Check = Callable[["Subject"], None]


@dataclass(frozen=True)
class Subject:
    """The model to check, with data, loss and config as in a run."""

    config: Config
    parts: Any
    trusted: Sequence[str] = TRUSTED
    without_effect: tuple[str, ...] = WITHOUT_EFFECT

    @property
    def output_type(self) -> Any:
        """What the model's output is: a dataclass of tensors, or a tensor with named axes."""
        return task.output_of(self.config.model)

    @property
    def model(self) -> nn.Module:
        return self.parts.model

    def batch(self, split: str = TRAIN, rows: list[int] | None = None, multiple: int = 1) -> Any:
        """Batch of the ``rows`` of a split, by default all, with widths padded to a ``multiple``."""
        table = self.parts.tables[split]
        collate = Collator(table, vector_rows(self.parts.vectors, table), multiple=multiple)
        return collate(rows or list(range(len(table))))

    def loss(self, batch: Any) -> Tensor:
        """Mean loss of a batch, with gradients."""
        return self.parts.loss(self.model(batch), batch.labels).mean()

    def outputs(self, split: str) -> Any:
        """The predictor's outputs on a split."""
        predictor = task.predictor(self.config, self.parts)
        return predictor.rank(self.parts.sets[split], table=self.parts.tables[split], batch_size=3)

    def save(self, folder: Path) -> None:
        """Write everything of the model."""
        task.save(folder, self.parts)
        store.save_weights(folder, self.model)

    def load(self, folder: Path) -> nn.Module:
        """The model that was saved, with random weights."""
        return task.load(folder, self.config, self.trusted).model


def require(condition: Any, reason: str) -> None:
    """Raise ContractError with ``reason`` unless ``condition`` holds."""
    if not condition:
        raise ContractError(reason)


def logits_of(model: nn.Module, batch: Any) -> Any:
    """Logits without dropout or gradients."""
    with torch.inference_mode():
        return model.eval()(batch)


def tolerance(scores: Tensor) -> float:
    """Largest difference allowed between two computations of these scores."""
    finite = scores[scores.isfinite()].abs()
    return TOLERANCE * max(1.0, float(finite.max()) if finite.numel() else 1.0)


# Checks ---------------------------------------------------------------------------------------------


def output_has_its_shape(subject: Subject) -> None:
    """forward returns the output type of the task, and the loss one value per row."""
    batch, model = subject.batch(), subject.model
    output = logits_of(model, batch)
    check_output(model, batch, output, subject.output_type)
    check_losses(subject.parts.loss, batch, subject.parts.loss(output, batch.labels))


def same_alone_and_padded(subject: Subject) -> None:
    """A row has the same scores in a batch, alone, and alone with more padding."""
    together, model = output_tensors(logits_of(subject.model, subject.batch())), subject.model
    for row in range(len(subject.batch())):
        alone = output_tensors(logits_of(model, subject.batch(rows=[row])))
        padded = output_tensors(logits_of(model, subject.batch(rows=[row], multiple=64)))
        for name, scores in alone.items():
            shared = tuple(map(slice, scores[0].shape))  # the others may have more padding
            for case, actual in (("in a batch", together[name][row]), ("padded further", padded[name][0])):
                error = difference(actual[shared], scores[0])
                require(
                    error <= tolerance(scores[0]),
                    f"{name} of row {row} {case} differs by {error:.2g} from the row alone: it depends on"
                    " padding or on other rows; apply the batch's masks wherever rows or tokens are mixed",
                )


def gradients_reach_all_parameters(subject: Subject) -> None:
    """Every trainable parameter gets a finite, nonzero gradient of its own."""
    model = subject.model.train()
    model.zero_grad()
    subject.loss(subject.batch()).backward()
    check_gradients(model, subject.without_effect)


def check_gradients(model: nn.Module, without_effect: tuple[str, ...] = WITHOUT_EFFECT) -> None:
    """Raise ContractError for the first parameter with a missing or non-finite gradient, with a zero one
    unless its name has an ending in ``without_effect``, or with one in the memory of another's."""
    owners: dict[int, str] = {}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        if not parameter.requires_grad:
            continue
        if gradient is None:
            raise ContractError(f"{name} has no gradient: the scores do not depend on it")
        require(gradient.isfinite().all(), f"the gradient of {name} is not finite")
        zero = not gradient.any() and not name.endswith(without_effect)
        require(
            not zero,
            f"the gradient of {name} is zero: the loss does not depend on it; if it only adds a constant to"
            f" all scores, which a softmax ignores, remove it or allow it with --without-effect {name}",
        )
        owner = owners.setdefault(gradient.data_ptr(), name)
        require(
            owner == name,
            f"the gradients of {owner} and {name} are one memory, so a second backward pass and clipping"
            " change it for both: torch.stack(...).sum(0) has this effect; add the parameters one by one",
        )


def saved_weights_load(subject: Subject) -> None:
    """Saved and loaded, the model computes bitwise equal logits."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        subject.save(folder)
        torch.manual_seed(99)  # other random weights than those that were saved
        copy = subject.load(folder)
        before = output_tensors(logits_of(copy, subject.batch()))
        store.load_weights(folder, copy)
    actual, expected = (output_fields(logits_of(model, subject.batch())) for model in (copy, subject.model))
    require(
        any(not torch.equal(scores, expected[name]) for name, scores in before.items()),
        "another seed gives the same logits: the weights have no effect",
    )
    for name, value in expected.items():
        same = torch.equal(actual[name], value) if isinstance(value, Tensor) else actual[name] == value
        require(
            same, f"{name} differs: the logits depend on something that is neither a parameter nor a buffer"
        )


def trained_run_answers_as_scored(subject: Subject) -> None:
    """A trained and recorded run loads, and gives the answers that were scored."""
    config, trusted = subject.config, subject.trusted
    with TemporaryDirectory() as name:
        run = Path(name)
        record = train(config, folder=run, trusted=trusted)
        require(record.status == "ok", f"the status of the run is {record.status}: {record.error}")
        predictor = load_predictor(run, device="cpu", trust=trusted)
        torch.manual_seed(5)  # answers depend on no generator
        split = record.shown_split
        questions = load_splits(config.data)[split]
        answers = predictor.rank(questions).best_predictions
        rows = question_rows(questions, answers, predictor.null_threshold)
        recorded = read_questions(questions_folder(run, split))
        require((run / MODEL).is_dir(), "the run has no saved model")
    for column, values in rows.items():
        for id_, actual, expected in zip(rows["id"], values, recorded[column], strict=True):
            if isinstance(actual, float) and isinstance(expected, float):
                same = math.isclose(actual, expected, rel_tol=1e-5, abs_tol=TOLERANCE)
            else:
                same = actual == expected
            require(same, f"{column} of {id_} was scored as {expected} and is now {actual}")


# Building blocks for further checks -----------------------------------------------------------------


OVERFITTED = 0.02
"""Loss below which a model has learned its few questions."""


def overfit(subject: Subject, split: str, *, steps: int, lr: float) -> Any:
    """Outputs on a split after at most ``steps`` of AdamW on it without dropout, enough to overfit it;
    restores the model's weights."""
    model, batch = subject.model, subject.batch(split)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    layers = [layer for layer in model.modules() if isinstance(layer, nn.modules.dropout._DropoutNd)]
    shares = [layer.p for layer in layers]
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    try:
        for layer in layers:
            layer.p = 0.0
        for _ in range(steps):
            model.train()
            optimizer.zero_grad()
            loss = subject.loss(batch)
            if loss < OVERFITTED:
                break
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return subject.outputs(split)
    finally:
        model.load_state_dict(before)
        for layer, share in zip(layers, shares, strict=True):
            layer.p = share


def require_answers(expected: Mapping[str, Any], actual: Mapping[str, Any], steps: int) -> None:
    """Raise ContractError for the first question that the model did not learn."""
    for question, answer in expected.items():
        require(
            actual[question] == answer,
            f"after {steps} steps on {len(expected)} questions alone it answers {actual[question]!r} to"
            f" {question!r}, not {answer!r}",
        )


# Spans and sequences --------------------------------------------------------------------------------


def scores_lie_on_the_context(subject: Subject) -> None:
    """Scores are finite on the context and -inf everywhere else."""
    batch = subject.batch()
    logits = logits_of(subject.model, batch)
    if isinstance(logits, StepLogits):
        all_scores = {f"token at step {step}": scores for step, scores in enumerate(logits.token.unbind(1))}
    else:
        all_scores = {"start": logits.start, "end": logits.end}
    for name, scores in all_scores.items():
        require(not scores.isnan().any(), f"{name} holds NaN")
        require(not (scores == math.inf).any(), f"{name} holds +inf")
        finite = scores.isfinite()
        outside = int((finite & ~batch.context).sum())
        require(
            not outside,
            f"{name} is finite at {outside} tokens outside the context, on question or padding;"
            " mask them with qa_arch.nn.masking.fill(scores, batch.context)",
        )
        require(finite.any(1).all(), f"{name} is -inf at every token of a window")
        by_words = subject.config.model.get("matching") == "words"  # words start and end at some tokens only
        require(by_words or torch.equal(finite, batch.context), f"{name} is -inf at tokens of the context")
    require(logits.null.isfinite().all(), "the score of no answer is not finite")


def learns_four_questions(subject: Subject) -> None:
    """The model overfits four questions, two of them unanswerable."""
    steps = 150
    answers = overfit(subject, CALIBRATION, steps=steps, lr=5e-3).predictions()
    expected, actual = {}, {}
    for example, answer in zip(subject.parts.sets[CALIBRATION].examples, answers, strict=True):
        span = answer.at(0.0)
        expected[example.question] = example.answers[0].text if example.answers else None
        actual[example.question] = span.text if span else None
        require(
            span is None or span.text == example.context[span.start : span.end],
            f"the answer {span} is not an excerpt of its passage",
        )
    require_answers(expected, actual, steps)


def learns_from_a_teacher(subject: Subject) -> None:
    """Soft targets of a teacher give every parameter a gradient; the model's own outputs give none."""
    if subject.output_type is StepLogits:
        return
    batch, model = subject.batch(), subject.model
    logits = logits_of(model, batch)
    random = torch.Generator().manual_seed(0)
    boundaries = torch.randn(2, *batch.ids.shape, generator=random).masked_fill(~batch.context, -math.inf)
    nulls = torch.randn(3, len(batch), generator=random)
    verifier = None if logits.verifier is None else nulls[2]
    teacher = SpanLogits(boundaries[0], boundaries[1], nulls[0], nulls[1], verifier=verifier)
    loss = soft_target_loss(model.train()(batch), teacher, temperature=2.0)
    require((loss > 0).all(), "the loss is zero for a teacher with random scores")
    model.zero_grad()
    loss.mean().backward()
    check_gradients(model, subject.without_effect)
    model.zero_grad()
    soft_target_loss(model.eval()(batch), logits, temperature=2.0).sum().backward()
    largest = max(float(p.grad.abs().max()) for p in model.parameters() if p.grad is not None)
    require(largest < 1e-4, f"its own probabilities as targets give a gradient of {largest:.2g}")


CHECKS: tuple[Check, ...] = (
    output_has_its_shape,
    same_alone_and_padded,
    gradients_reach_all_parameters,
    scores_lie_on_the_context,
    learns_four_questions,
    learns_from_a_teacher,
    saved_weights_load,
)
"""Most helpful first; ``check-model`` also runs ``trained_run_answers_as_scored``."""


# Data -----------------------------------------------------------------------------------------------

Row = tuple[str, str, str | None]
"""Passage, question, and text of the answer, or None for an unanswerable question."""
TRIAL = ("debug=fast", "trainer.progress=false", "features.cache_dir=null")

SHORT_QUESTIONS: list[Row] = [
    ("Mira paints red boats.", "What does Mira paint?", "red boats"),
    ("Mira paints red boats.", "Who drives the tram?", None),
    ("Old Tarn keeps nine bees.", "How many bees does Tarn keep?", "nine"),
    ("Old Tarn keeps nine bees.", "Where does Mira sleep?", None),
]
LONG_PASSAGE = " ".join(
    f"On day {n} the ferry of Lomm carried {n + 20} goats to the isle." for n in range(12)
)
LONG_QUESTIONS: list[Row] = [
    (LONG_PASSAGE, "How many goats crossed on day 9?", "29"),
    (LONG_PASSAGE, "Who built the isle?", None),
]


def trial_settings(folder: Path) -> list[str]:
    """Write four short questions, half of them unanswerable, and passages of many windows; returns the
    overrides with which a run reads them."""
    dev = [*SHORT_QUESTIONS[:2], (LONG_PASSAGE, "What was carried on day 3?", "23 goats")]
    splits = {"train": [*SHORT_QUESTIONS, *LONG_QUESTIONS], "calibration": SHORT_QUESTIONS, "dev": dev}
    for split, rows in splits.items():
        write_squad(folder / f"{split}.json", rows)
    write_vectors(folder / "vectors.txt", (LONG_PASSAGE, *(row[0] for row in SHORT_QUESTIONS)))
    return [
        *TRIAL,
        "encoder.initializer_range=0.15",
        "features.max_length=64",
        "features.max_question=16",
        "features.stride=8",
        *(f"data.{split}={folder}/{split}.json" for split in splits),
        f"glove.path={folder}/vectors.txt",
    ]


def write_squad(path: Path, rows: Sequence[Row]) -> Path:
    """Write the questions as a SQuAD 2.0 file of one article."""
    examples = [
        Example(
            f"{path.stem}-{number}",
            question,
            context,
            path.stem,
            () if text is None else (Gold(text, context.index(text)),),
        )
        for number, (context, question, text) in enumerate(rows)
    ]
    return write_json(path, write(question_set(path.stem, examples, "2.0")))


def write_vectors(path: Path, texts: Iterable[str]) -> None:
    """Write word vectors of width 5 for every word of ``texts``, in GloVe's format."""
    words = sorted({word for text in texts for word in text.split()})
    rows = np.random.default_rng(0).normal(size=(len(words), 5)).round(3)
    lines = (f"{word} {' '.join(map(str, row))}\n" for word, row in zip(words, rows, strict=True))
    write_atomic(path, "".join(lines))
