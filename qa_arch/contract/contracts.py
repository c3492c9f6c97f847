"""The contract of each task: what its models must keep to, beside what holds for all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from qa_arch.config.schema import CORPUS_TASKS, DISTILLED, Config
from qa_arch.contract import contract_sets as sets
from qa_arch.contract.contenders import (
    FOR_ALL,
    Collate,
    Contender,
    Contract,
    by_heart,
    check_gradients,
    difference,
    logits_of,
    require,
    require_answers,
    saved_weights_load,
    tolerance,
)
from qa_arch.features.collate import Collator
from qa_arch.features.glove import vector_rows
from qa_arch.features.selection_features import CandidateCollator
from qa_arch.nn.distillation import soft_target_loss
from qa_arch.tasks import task_of
from qa_arch.tasks.candidate_scores import ranks
from qa_arch.tasks.causal_lm import CausalLanguageTask
from qa_arch.tasks.language import LanguageTask
from qa_arch.types.records import CALIBRATION, TOKENS
from qa_arch.types.tensors import SpanLogits, StepLogits


def contract_of(model: Mapping[str, Any]) -> Contract:
    """The contract for the task of a config's ``model`` section."""
    return CONTRACTS[model.get("task", "span")]


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
    if contender.task.name not in DISTILLED:
        return
    batch, model = contender.batch(), contender.model
    own = logits_of(model, batch)
    random = torch.Generator().manual_seed(0)
    drawn = torch.randn(2, *batch.ids.shape, generator=random).masked_fill(~batch.context, -math.inf)
    teacher = SpanLogits(*drawn, *torch.randn(2, len(batch), generator=random))
    loss = soft_target_loss(model.train()(batch), teacher, temperature=2.0, outcomes="spans")
    require((loss > 0).all(), "at zero distance from a teacher of random scores")
    model.zero_grad()
    loss.mean().backward()
    check_gradients(model, contender.without_effect)
    model.zero_grad()
    soft_target_loss(model.eval()(batch), own, temperature=2.0, outcomes="spans").sum().backward()
    largest = max(float(p.grad.abs().max()) for p in model.parameters() if p.grad is not None)
    require(largest < 1e-4, f"a gradient of {largest:.2g} from its own probabilities")


def _windows(config: Config, parts: Any, split: str, multiple: int) -> Collate:
    table = parts.tables[split]
    return Collator(table, vector_rows(parts.vectors, table), multiple=multiple)


# Candidates and classes -----------------------------------------------------------------------------


def candidates_have_scores(contender: Contender) -> None:
    """Every candidate has a score that is a number, padding has -inf."""
    batch = contender.batch(multiple=7)
    scores = logits_of(contender.model, batch)
    require(scores[batch.offered].isfinite().all(), "a candidate's score is not finite")
    require((scores[~batch.offered] == -math.inf).all(), "padding in place of a candidate has a score")
    require(len(scores[batch.offered].unique()) > 3, "all candidates score the same")


def order_of_candidates_is_free(contender: Contender) -> None:
    """A score belongs to its candidate, whatever the order."""
    batch = contender.batch()
    order = torch.arange(batch.candidate.shape[1]).flip(0)
    turned = replace(
        batch,
        candidate=batch.candidate[:, order],
        right=batch.right[:, order],
        offered=batch.offered[:, order],
    )
    first, second = (logits_of(contender.model, given) for given in (batch, turned))
    apart = difference(first[:, order], second)
    require(apart <= tolerance(first), f"it changes by {apart:.2g} with the order of the candidates")


def padding_has_no_effect(contender: Contender) -> None:
    """Nothing comes from what stands on padding."""
    batch = contender.batch(multiple=7)
    other = replace(
        batch,
        question=batch.question.masked_fill(~batch.question_mask, 2),
        answer=batch.answer.masked_fill(~batch.answer_mask, 3),
        candidate=batch.candidate.masked_fill(~batch.offered, 1),
    )
    first, second = (logits_of(contender.model, given) for given in (batch, other))
    apart = difference(first, second)
    require(apart <= tolerance(first), f"scores change by {apart:.2g} with the ids of padding")


def learns_its_candidates(contender: Contender) -> None:
    """It learns four questions by heart: the right candidate first."""
    steps = 80
    questions = contender.parts.sets[CALIBRATION]
    actual = ranks(questions, by_heart(contender, CALIBRATION, steps=steps, lr=2e-2))
    texts = [question.question for question in questions.questions]
    require_answers(dict.fromkeys(texts, 1), dict(zip(texts, actual, strict=True)), steps)


def _candidates(config: Config, parts: Any, split: str, multiple: int) -> Collate:
    return CandidateCollator(parts.tables[split], multiple)


# Texts ----------------------------------------------------------------------------------------------


def targets_have_scores(contender: Contender) -> None:
    """Every target has a score for each token of the vocabulary."""
    batch = contender.batch()
    logits = logits_of(contender.model, batch)
    vocabulary = contender.parts.encoder.vocab_size
    require(
        logits.tokens.shape[-1] == vocabulary,
        f"{logits.tokens.shape[-1]} scores for a vocabulary of {vocabulary}",
    )
    require(logits.tokens.isfinite().all(), "a score is not finite")
    require((logits.follows is None) == (batch.follows is None), "follows goes with the batch's own")


def text_padding_has_no_effect(contender: Contender) -> None:
    """Nothing comes from what stands on padding."""
    if contender.parts.encoder.config.model_type == "roberta":
        return  # RoBERTa takes its positions from the ids of padding
    batch = contender.batch()
    other = replace(batch, ids=batch.ids.where(batch.mask, 7))
    first, second = (logits_of(contender.model, given).tokens[batch.counted] for given in (batch, other))
    apart = difference(first, second)
    require(apart <= tolerance(first), f"scores change by {apart:.2g} with the ids of padding")


def learns_two_stories(contender: Contender) -> None:
    """It learns two stories by heart, token by token."""
    outputs = by_heart(contender, CALIBRATION, steps=120, lr=1e-2)
    scores = contender.task.points(None, outputs, 0.0)[TOKENS]
    accuracy, targets, perplexity = (
        float(scores.metric(name) or 0) for name in ("token_accuracy", "targets", "perplexity")
    )
    # From [CLS] alone a causal model cannot tell which of the two begins.
    highest = 100 - 100 * isinstance(contender.task, CausalLanguageTask) / targets
    require(
        math.isclose(accuracy, highest, rel_tol=1e-6), f"{accuracy:.2f} percent of tokens, not {highest:.2f}"
    )
    require(perplexity < 1.2, f"perplexity {perplexity:.2f}, not below 1.2")
    sentences = scores.metric("sentence_accuracy")
    require(sentences in (None, 100.0), f"{sentences} percent of the sentence task")


def _blocks(config: Config, parts: Any, split: str, multiple: int) -> Collate:
    """As validation reads them; blocks are padded to the longest alone."""
    task = task_of(config.model)
    assert isinstance(task, LanguageTask)
    return task.collator(config, parts.tables[split])


SPANS = Contract(
    sets.passages,
    _windows,
    (*FOR_ALL, scores_lie_on_the_context, learns_four_questions, learns_from_a_teacher, saved_weights_load),
)
SELECTION = Contract(
    sets.candidates,
    _candidates,
    (
        *FOR_ALL,
        candidates_have_scores,
        order_of_candidates_is_free,
        padding_has_no_effect,
        learns_its_candidates,
        saved_weights_load,
    ),
)
CLASSES = replace(SELECTION, settings=sets.classes)
TEXTS = Contract(
    sets.corpus,
    _blocks,
    (*FOR_ALL, targets_have_scores, text_padding_has_no_effect, learns_two_stories, saved_weights_load),
)
CONTRACTS: Mapping[str, Contract] = {
    "span": SPANS,
    "sequence": SPANS,
    "selection": SELECTION,
    "classification": CLASSES,
    **dict.fromkeys(CORPUS_TASKS, TEXTS),
}
