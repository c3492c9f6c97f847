"""The contract of each task: what its models must keep to, beside what holds for all, on a few small
questions and texts with windows and answers of every kind."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qa_arch.config.files import write_atomic, write_json
from qa_arch.config.schema import Config, task_entry
from qa_arch.contract.contenders import (
    FOR_ALL,
    Collate,
    Contender,
    Contract,
    by_heart,
    check_gradients,
    logits_of,
    require,
    require_answers,
    saved_weights_load,
)
from qa_arch.features.batches import Collator
from qa_arch.features.vectors import vector_rows
from qa_arch.manifest import extras
from qa_arch.nn.distillation import soft_target_loss
from qa_arch.records import CALIBRATION
from qa_arch.types.tensors import SpanLogits, StepLogits


def contract_of(model: Mapping[str, Any]) -> Contract:
    """The contract for the task of a config's ``model`` section."""
    task = model.get("task", "span")
    offers = (import_module(extra.contracts).CONTRACTS for extra in extras() if extra.contracts)
    return next(contracts[task] for contracts in (CONTRACTS, *offers) if task in contracts)


# Spans and sequences --------------------------------------------------------------------------------


def scores_lie_on_the_context(contender: Contender) -> None:
    """Scores are numbers on the context and -inf everywhere else."""
    batch = contender.batch()
    logits = logits_of(contender.model, batch)
    for name, scores in _token_scores(logits).items():
        require(not scores.isnan().any(), f"{name} holds NaN")
        require(not (scores == math.inf).any(), f"{name} holds +inf")
        open_ = scores.isfinite()
        outside = int((open_ & ~batch.context).sum())
        require(
            not outside,
            f"{name} is finite at {outside} tokens outside the context, on question or padding;"
            " qa_arch.nn.masking.fill(scores, batch.context) closes them",
        )
        require(open_.any(1).all(), f"{name} is -inf at every token of a window")
        by_words = contender.config.model.get("matching") == "words"  # a unit starts or ends at few tokens
        require(by_words or torch.equal(open_, batch.context), f"{name} is -inf at tokens of the context")
    require(logits.null.isfinite().all(), "the score of no answer is not finite")


def _token_scores(logits: SpanLogits | StepLogits) -> dict[str, Tensor]:
    """All scores on the token axis, (B, T) each: of start and end, or of each step."""
    if isinstance(logits, StepLogits):
        return {f"token at step {step}": scores for step, scores in enumerate(logits.token.unbind(1))}
    return {"start": logits.start, "end": logits.end}


def learns_four_questions(contender: Contender) -> None:
    """It learns four questions by heart, two of them without an answer."""
    steps = 150
    answers = by_heart(contender, CALIBRATION, steps=steps, lr=5e-3).predictions()
    expected, actual = {}, {}
    for example, answer in zip(contender.parts.sets[CALIBRATION].examples, answers, strict=True):
        span = answer.at(0.0)
        expected[example.question] = example.answers[0].text if example.answers else None
        actual[example.question] = span.text if span else None
        require(
            span is None or span.text == example.context[span.start : span.end],
            f"the answer {span} is no excerpt of its passage",
        )
    require_answers(expected, actual, steps)


def learns_from_a_teacher(contender: Contender) -> None:
    """A teacher's probabilities give a gradient to every parameter; its own give none."""
    if not task_entry(contender.task.name).distils:
        return
    batch, model = contender.batch(), contender.model
    own = logits_of(model, batch)
    random = torch.Generator().manual_seed(0)
    drawn = torch.randn(2, *batch.ids.shape, generator=random).masked_fill(~batch.context, -math.inf)
    nulls = torch.randn(3, len(batch), generator=random)
    verifier = None if own.verifier is None else nulls[2]
    teacher = SpanLogits(drawn[0], drawn[1], nulls[0], nulls[1], verifier=verifier)
    loss = soft_target_loss(model.train()(batch), teacher, temperature=2.0)
    require((loss > 0).all(), "at zero distance from a teacher of random scores")
    model.zero_grad()
    loss.mean().backward()
    check_gradients(model, contender.without_effect)
    model.zero_grad()
    soft_target_loss(model.eval()(batch), own, temperature=2.0).sum().backward()
    largest = max(float(p.grad.abs().max()) for p in model.parameters() if p.grad is not None)
    require(largest < 1e-4, f"a gradient of {largest:.2g} from its own probabilities")


def _windows(config: Config, parts: Any, split: str, multiple: int) -> Collate:
    table = parts.tables[split]
    return Collator(table, vector_rows(parts.vectors, table), multiple=multiple)


# What they read: each function writes it into a folder and gives the overrides by which a run reads it ----

Row = tuple[str, str, str | None]
"""Passage, question, and the answer's text; None: the passage does not answer it."""
TRIAL = ("debug=fast", "trainer.progress=false", "features.cache_dir=null")
QUIET_ENCODER = ("encoder.hidden_dropout=0.0", "encoder.attention_dropout=0.0")

FOUR: list[Row] = [
    ("Mira paints red boats.", "What does Mira paint?", "red boats"),
    ("Mira paints red boats.", "Who drives the tram?", None),
    ("Old Tarn keeps nine bees.", "How many bees does Tarn keep?", "nine"),
    ("Old Tarn keeps nine bees.", "Where does Mira sleep?", None),
]
LONG = " ".join(f"On day {n} the ferry of Lomm carried {n + 20} goats to the isle." for n in range(12))
WIDE: list[Row] = [(LONG, "How many goats crossed on day 9?", "29"), (LONG, "Who built the isle?", None)]


def passages(folder: Path) -> list[str]:
    """Four short questions, half of them unanswerable, and passages of many windows."""
    dev = [*FOUR[:2], (LONG, "What was carried on day 3?", "23 goats")]
    splits = {"train": [*FOUR, *WIDE], "calibration": FOUR, "dev": dev}
    for split, rows in splits.items():
        write_squad(folder / f"{split}.json", rows)
    write_vectors(folder / "vectors.txt", (LONG, *(row[0] for row in FOUR)))
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
    """The questions as a file of SQuAD 2.0, an article of one paragraph a passage."""
    paragraphs: dict[str, list[dict]] = {context: [] for context, _, _ in rows}
    for number, (context, question, text) in enumerate(rows):
        golds = [] if text is None else [{"text": text, "answer_start": context.index(text)}]
        id_ = f"{path.stem}-{number}"
        paragraphs[context].append(
            {"id": id_, "question": question, "answers": golds, "is_impossible": not golds}
        )
    article = [{"context": context, "qas": qas} for context, qas in paragraphs.items()]
    return write_json(path, {"version": "v2.0", "data": [{"title": path.stem, "paragraphs": article}]})


def write_vectors(path: Path, texts: Iterable[str]) -> None:
    """Word vectors of width 5 for every word of ``texts``, in GloVe's form."""
    words = sorted({word for text in texts for word in text.split()})
    rows = np.random.default_rng(0).normal(size=(len(words), 5)).round(3)
    lines = (f"{word} {' '.join(map(str, row))}\n" for word, row in zip(words, rows, strict=True))
    write_atomic(path, "".join(lines))


SPANS = Contract(
    passages,
    _windows,
    (*FOR_ALL, scores_lie_on_the_context, learns_four_questions, learns_from_a_teacher, saved_weights_load),
)
CONTRACTS: Mapping[str, Contract] = {
    "span": SPANS,
    "sequence": SPANS,
}
