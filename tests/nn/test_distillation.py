"""Soft-target loss against its formulas in float64, and students initialised with layers of their teacher."""

import math
from dataclasses import replace

import pytest
import torch
from families import EXTRA_FAMILIES, new_encoder

from qa_arch.errors import ConfigError
from qa_arch.nn.distillation import copy_layers, divergence, soft_target_loss
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


def probabilities(scores: list[float], temperature: float) -> list[float]:
    powers = [math.exp(score / temperature) for score in scores]
    return [power / sum(powers) for power in powers]


def kl(teacher: list[float], student: list[float], temperature: float) -> float:
    p, q = probabilities(teacher, temperature), probabilities(student, temperature)
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


def boundary(scores: SpanLogits, name: str, row: int) -> list[float]:
    """Scores of the open positions of a boundary and of its null."""
    positions = [v for v in getattr(scores, name)[row].tolist() if v != NEG_INF]
    return [*positions, getattr(scores, f"null_{name}")[row].item()]


@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0])
def test_soft_targets_cover_context_positions_and_null(temperature):
    student, teacher = logits(1), logits(2)
    actual = soft_target_loss(student, teacher, temperature=temperature)
    expected = [
        temperature**2
        * sum(kl(boundary(teacher, b, row), boundary(student, b, row), temperature) for b in ("start", "end"))
        / 2
        for row in range(2)
    ]
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0)


def test_verifier_term_is_a_binary_kl_divergence():
    student = replace(logits(1), verifier=torch.tensor([0.5, -1.0], dtype=torch.float64))
    teacher = replace(logits(2), verifier=torch.tensor([2.0, 0.3], dtype=torch.float64))
    added = soft_target_loss(student, teacher, temperature=2.0) - soft_target_loss(
        logits(1), logits(2), temperature=2.0
    )
    expected = [4 * kl([t, 0.0], [s, 0.0], 2.0) for s, t in ((0.5, 2.0), (-1.0, 0.3))]
    torch.testing.assert_close(added, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=0)


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


def test_gradient_size_is_independent_of_temperature():
    """For large τ it is (z_s - z_t) / K of centred scores (Hinton et al. 2015, eq. 4), not 1 / τ² of that."""
    target = torch.tensor([[1.0, -1.0, 0.0]], dtype=torch.float64)
    scores = torch.tensor([[0.0, 2.0, -2.0]], dtype=torch.float64, requires_grad=True)
    for temperature in (100.0, 1000.0):
        loss = temperature**2 * divergence(scores, target, temperature)
        (gradient,) = torch.autograd.grad(loss.sum(), scores)
        torch.testing.assert_close(gradient, (scores - target).detach() / 3, rtol=0.03, atol=1e-3)


def test_outcomes_only_the_teacher_has_are_ignored():
    """A student that scores words cannot start inside one: the teacher is renormalised over the rest."""
    word_starts = CONTEXT & torch.tensor([0, 1, 0, 1, 0], dtype=torch.bool)
    student, teacher = logits(1, word_starts), logits(2)
    masked = replace(
        teacher,
        start=teacher.start.masked_fill(~word_starts, NEG_INF),
        end=teacher.end.masked_fill(~word_starts, NEG_INF),
    )
    scores = student.start.clone().requires_grad_()
    actual = soft_target_loss(replace(student, start=scores), teacher)
    torch.testing.assert_close(actual, soft_target_loss(student, masked))
    (gradient,) = torch.autograd.grad(actual.sum(), scores)
    assert gradient.isfinite().all()
    assert actual.isfinite().all()


def test_outcomes_only_the_student_has_are_penalised():
    word_starts = CONTEXT & torch.tensor([0, 1, 0, 1, 0], dtype=torch.bool)
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


def layer_of(encoder, number):
    return dict(encoder.layers()[number].named_parameters())


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
    copy_layers(teacher, student, which)
    for own, theirs in enumerate(chosen):
        assert same(layer_of(student, own).values(), layer_of(teacher, theirs).values())
    assert same(rest_of(student).values(), rest_of(teacher).values())


def test_copying_only_embeddings_or_nothing():
    teacher, student, before = tiny(seed=1), tiny(seed=2, layers=2), tiny(seed=2, layers=2)
    copy_layers(teacher, student, "none")
    copy_layers(None, student, "none")
    assert same(student.parameters(), before.parameters())
    copy_layers(teacher, student, "embeddings")
    assert same(rest_of(student).values(), rest_of(teacher).values())
    assert same(student.layers().parameters(), before.layers().parameters())


def test_copying_all_layers_reproduces_the_teacher():
    teacher, student = tiny("albert", 1), tiny("albert", 2)
    copy_layers(teacher, student, "every_other")
    ids = torch.tensor([[2, 5, 6, 3]])
    args = (ids, torch.ones_like(ids, dtype=torch.bool), torch.zeros_like(ids))
    torch.testing.assert_close(student(*args), teacher(*args))


def test_copied_layers_are_trainable_and_independent_of_the_teacher():
    teacher, student = tiny(seed=1).requires_grad_(False), tiny(seed=2, layers=2)
    copy_layers(teacher, student, "every_other")
    assert all(parameter.requires_grad for parameter in student.parameters())
    with torch.no_grad():
        before = next(teacher.parameters()).clone()
        next(student.parameters()).zero_()
    assert torch.equal(next(teacher.parameters()), before)


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
