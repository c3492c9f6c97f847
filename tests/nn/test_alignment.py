"""The alignment layer against its equations, one context unit at a time, and its initialisation."""

import torch
from nn.test_match_lstm import LENGTHS, example

from qa_arch.models.proposed import EPSILON, Alignment


def normalized_projection(model, x):
    projected = model.project.weight @ x
    return projected / (sum(v * v for v in projected) + EPSILON).sqrt()


def by_hand(model, p, question):
    """Weights of the question units and of "nothing", and the updated unit."""
    gain = model.log_gain.exp()
    scores = [
        gain[0] * sum(normalized_projection(model, p) * normalized_projection(model, q)) for q in question
    ]
    total = sum(score.exp() for score in scores) + 1  # e^0 of "nothing"
    weights = [score.exp() / total for score in scores]
    a = sum(weight * q for weight, q in zip(weights, question, strict=True))
    features = torch.cat([a, p * a, (p - a).abs()])
    hidden = (model.compare.weight @ features + model.compare.bias).clamp(min=0)
    return torch.stack([*weights, 1 / total]), p + model.change.weight @ hidden


def test_alignment_follows_the_equations_at_every_length():
    model, context, question, context_mask, question_mask = example(kind=Alignment)
    question = question.masked_fill(~question_mask[..., None], 1e3)  # must not matter
    actual = model(context, question, context_mask, question_mask)
    attention = model.attention(context, question, question_mask)
    for row, (c, q) in enumerate(LENGTHS):
        for i in range(c):
            weights, updated = by_hand(model, context[row, i], list(question[row, :q]))
            torch.testing.assert_close(attention[row, i, [*range(q), 5]], weights, rtol=0, atol=1e-10)
            torch.testing.assert_close(actual[row, i], updated, rtol=0, atol=1e-10)
        assert not attention[row, :, q:5].any()
        assert torch.equal(actual[row, c:], context[row, c:])


def test_every_parameter_and_input_receives_a_finite_gradient():
    _, context, question, context_mask, question_mask = example(kind=Alignment)
    model = Alignment(6, 5).double()  # as initialised
    context[0, 0], question[0, 0] = 0.0, 0.0  # words without a vector
    context.requires_grad_()
    question.requires_grad_()
    model(context, question, context_mask, question_mask)[context_mask].square().sum().backward()
    for name, leaf in (*model.named_parameters(), ("context", context), ("question", question)):
        assert torch.isfinite(leaf.grad).all(), name
        assert leaf.grad.any(), name
    assert max(context.grad.abs().max(), question.grad.abs().max()) < 1e3


def test_initial_change_is_small():
    model = Alignment(64, 32)
    x, mask = torch.randn(2, 9, 64), torch.ones(2, 9, dtype=torch.bool)
    change = model(x, x, mask, mask) - x
    assert 0 < change.norm() < 0.05 * x.norm()
