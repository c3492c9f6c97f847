"""Soft-target loss against its formulas in float64, and students initialised with layers of their teacher."""

import math
from dataclasses import replace

import pytest
import torch
from families import EXTRA_FAMILIES, new_encoder

from qa_arch.errors import ConfigError
from qa_arch.nn.distillation import copy_layers, soft_target_loss
from qa_arch.tensors import SpanLogits

NEG_INF = -math.inf
CONTEXT = torch.tensor([[0, 1, 1, 1, 0], [0, 1, 1, 0, 0]], dtype=torch.bool)
"""Context positions of two windows."""


def logits(seed: int, context=CONTEXT, **parts) -> SpanLogits:
    generator = torch.Generator().manual_seed(seed)
    start, end = (
        torch.randn(context.shape, generator=generator, dtype=torch.float64).masked_fill(~context, NEG_INF)
        for _ in range(2)
    )
    nulls = torch.randn(2, len(context), generator=generator, dtype=torch.float64)
    return SpanLogits(start, end, *nulls, **parts)


def kl(teacher: list[float], student: list[float], temperature: float) -> float:
    powers = [[math.exp(score / temperature) for score in scores] for scores in (teacher, student)]
    p, q = ([power / sum(row) for power in row] for row in powers)
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


BOUNDARIES = ("start", "end")


def boundary(scores: SpanLogits, name: str, row: int) -> list[float]:
    """Scores of the open positions of a boundary and of its null."""
    positions = [v for v in getattr(scores, name)[row].tolist() if v != NEG_INF]
    return [*positions, getattr(scores, f"null_{name}")[row].item()]


@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0])
def test_soft_targets_cover_context_positions_and_null(temperature):
    student, teacher = logits(1), logits(2)
    actual = soft_target_loss(student, teacher, temperature=temperature)
    for row in range(2):
        terms = [kl(boundary(teacher, b, row), boundary(student, b, row), temperature) for b in BOUNDARIES]
        assert actual[row].item() == pytest.approx(temperature**2 * sum(terms) / 2, rel=1e-12)


def test_verifier_term_is_a_binary_kl_divergence():
    odds = ((0.5, 2.0), (-1.0, 0.3))  # of the student and the teacher
    verifiers = torch.tensor(odds, dtype=torch.float64).T
    plain = logits(1), logits(2)
    verified = [replace(model, verifier=odds) for model, odds in zip(plain, verifiers, strict=True)]
    added = soft_target_loss(*verified, temperature=2.0) - soft_target_loss(*plain, temperature=2.0)
    assert added.tolist() == pytest.approx([4 * kl([t, 0.0], [s, 0.0], 2.0) for s, t in odds], rel=1e-9)


def test_equal_student_has_no_loss_and_no_gradient():
    """Constants added to the scores do not count."""
    teacher = logits(3)
    scores = [value.clone().requires_grad_() for value in (teacher.start + 7, teacher.end - 2)]
    nulls = [value.clone().requires_grad_() for value in (teacher.null_start + 7, teacher.null_end - 2)]
    loss = soft_target_loss(SpanLogits(*scores, *nulls), teacher, temperature=2.0)
    gradients = torch.autograd.grad(loss.sum(), [*scores, *nulls])
    torch.testing.assert_close(loss, torch.zeros(2).double(), rtol=0, atol=1e-12)
    for gradient in gradients:
        torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-12)


def test_outcomes_only_the_teacher_has_are_ignored():
    """A student that scores words cannot start inside one: the teacher is renormalised over the rest."""
    word_starts = CONTEXT & torch.tensor([0, 1, 0, 1, 0], dtype=torch.bool)
    student, teacher = logits(1, word_starts), logits(2)
    closed = {name: getattr(teacher, name).masked_fill(~word_starts, NEG_INF) for name in BOUNDARIES}
    scores = student.start.clone().requires_grad_()
    actual = soft_target_loss(replace(student, start=scores), teacher)
    torch.testing.assert_close(actual, soft_target_loss(student, replace(teacher, **closed)))
    (gradient,) = torch.autograd.grad(actual.sum(), scores)
    assert gradient.isfinite().all()
    # Outcomes that only the student has are penalised.
    student, teacher = logits(1), logits(2, word_starts)
    scores = student.start.clone().requires_grad_()
    loss = soft_target_loss(replace(student, start=scores), teacher)
    (gradient,) = torch.autograd.grad(loss.sum(), scores)
    assert loss.isfinite().all()
    assert (gradient[CONTEXT & ~word_starts] > 0).all()


def test_half_precision_scores_are_compared_in_fp32():
    halves = [logits(seed).to(torch.bfloat16) for seed in (1, 2)]
    loss = soft_target_loss(*halves, temperature=2.0)
    assert loss.dtype == torch.float32
    wide = [half.to(torch.float32) for half in halves]
    assert torch.equal(loss, soft_target_loss(*wide, temperature=2.0))


@pytest.mark.parametrize("has_verifier", ["student", "teacher"])
def test_verifier_of_only_one_model_is_part_of_its_null(has_verifier):
    odds = torch.tensor([0.5, -1.0], dtype=torch.float64)
    models = {"student": logits(1), "teacher": logits(2)}
    models[has_verifier] = replace(models[has_verifier], verifier=odds, verifier_weight=3.0)
    actual = soft_target_loss(models["student"], models["teacher"])
    plain = replace(models[has_verifier], verifier=None)
    halves = {name: getattr(plain, name) + 1.5 * odds for name in ("null_start", "null_end")}
    models[has_verifier] = replace(plain, **halves)
    torch.testing.assert_close(actual, soft_target_loss(models["student"], models["teacher"]))


FAMILIES = ["bert", "roberta", "distilbert", "electra", *EXTRA_FAMILIES]


def tiny(family="bert", seed=0, **options):
    torch.manual_seed(seed)
    sizes = {"layers": 4, "width": 16, "heads": 2, "vocab_size": 50, "max_positions": 20, "pad_token_id": 1}
    return new_encoder(family=family, **sizes | options).eval()


def rest_of(encoder):
    inside = {id(parameter) for parameter in encoder.layers().parameters()}
    return {name: value for name, value in encoder.named_parameters() if id(value) not in inside}


def same(actual, expected):
    return all(torch.equal(value[: len(own)], own) for own, value in zip(actual, expected, strict=True))


@pytest.mark.parametrize(
    ("family", "which", "layers", "chosen"),
    [
        *((family, "every_other", 2, [0, 2]) for family in FAMILIES),
        ("bert", "first", 2, [0, 1]),
        ("bert", "every_other", 3, [0, 1, 2]),
    ],
)
def test_layers_and_embeddings_are_copied_from_the_teacher(family, which, layers, chosen):
    """The student has shorter windows and a smaller vocabulary: it takes the first rows of both tables."""
    teacher, student = tiny(family, 1), tiny(family, 2, layers=layers, max_positions=12, vocab_size=40)
    copy_layers(teacher.requires_grad_(False), student, which)
    for own, theirs in enumerate(chosen):
        assert same(student.layers()[own].parameters(), teacher.layers()[theirs].parameters())
    assert same(rest_of(student).values(), rest_of(teacher).values())
    assert all(parameter.requires_grad for parameter in student.parameters())
    with torch.no_grad():  # the student has its own weights
        next(student.parameters()).zero_()
    assert next(teacher.parameters()).any()


def test_copying_only_embeddings_or_nothing():
    teacher, student, before = tiny(seed=1), tiny(seed=2, layers=2), tiny(seed=2, layers=2)
    copy_layers(teacher, student, "none")
    copy_layers(None, student, "none")
    assert same(student.parameters(), before.parameters())
    copy_layers(teacher, student, "embeddings")
    assert same(rest_of(student).values(), rest_of(teacher).values())
    assert same(student.layers().parameters(), before.layers().parameters())


@pytest.mark.parametrize(
    ("student", "message"),
    [
        ({"width": 8}, "the teacher's hidden_size is 16, the student's 8; set distillation.layers=none"),
        ({"family": "electra"}, "the teacher's model_type is bert, the student's electra"),
        ({"layers": 5}, "the teacher has 4 layers and the student 5"),
        ({"max_positions": 30}, r"position_embeddings.weight has shape \(30, 16\), .* shape \(20, 16\)"),
        ({"family": "words", "layers": None, "heads": None}, "needs two transformer encoders"),
    ],
)
def test_mismatched_student_is_refused(student, message):
    with pytest.raises(ConfigError, match=message):
        copy_layers(tiny(), tiny(**student), "every_other")
