"""Match-LSTM and alignment against their equations, the fast loop against the plain one, text LSTMs."""

from functools import partial

import pytest
import torch
from torch import Tensor

from qa_arch.errors import UnavailableError
from qa_arch.models.proposed import EPSILON, Alignment
from qa_arch.nn import match_lstm as recurrence
from qa_arch.nn.masking import reversal
from qa_arch.nn.match_lstm import MatchLSTM, recur, recur_reference
from qa_arch.nn.text_lstm import SuBiLSTM, TextLSTM

LENGTHS = [(7, 3), (4, 5), (1, 1)]  # (context, question) units of each example


def example(dtype=torch.float64, in_dim=6, hidden=5, kind=MatchLSTM):
    torch.manual_seed(0)
    model = kind(in_dim, hidden).to(dtype)
    for parameter in model.parameters():  # biases included
        parameter.data.normal_(0.0, 0.5)
    C, Q = (max(lengths) for lengths in zip(*LENGTHS, strict=True))
    context, question = torch.randn(3, C, in_dim, dtype=dtype), torch.randn(3, Q, in_dim, dtype=dtype)
    context_mask = torch.arange(C) < torch.tensor([c for c, _ in LENGTHS])[:, None]
    question_mask = torch.arange(Q) < torch.tensor([q for _, q in LENGTHS])[:, None]
    return model, context, question, context_mask, question_mask


def reference(model: MatchLSTM, passage: list[Tensor], question: list[Tensor]) -> list[Tensor]:
    """Hidden states of one direction of one example."""
    return list(equations(model, passage, question)[0])


def equations(model: MatchLSTM, passage: list[Tensor], question: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Hidden states and attention weights of one direction of one example, by the equations."""
    question = [*question, torch.zeros_like(question[0])]  # the word "nothing"
    h = c = torch.zeros(model.state.in_features, dtype=torch.float64)
    states, attention = [], []
    for p in passage:
        energies = [
            model.score(torch.tanh(model.question(q) + model.passage(p) + model.state(h))) for q in question
        ]
        weights = [energy.exp() / sum(e.exp() for e in energies) for energy in energies]
        attended = sum(weight * q for weight, q in zip(weights, question, strict=True))
        z = model.gates_passage(p) + model.gates_attended(attended) + model.gates_state(h)
        o, i, f, g = z.chunk(4)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        states.append(h)
        attention.append(torch.cat(weights))
    return torch.stack(states), torch.stack(attention).detach()


@pytest.mark.parametrize("all_biases", [True, False])
def test_a_second_backward_pass_adds_its_gradients_once(all_biases):
    """Biases that are added to each other have gradients of their own, not three names of one memory."""
    model = MatchLSTM(5, 4, all_biases=all_biases)
    inputs = torch.randn(2, 3, 5), torch.randn(2, 2, 5), torch.ones(2, 3).bool(), torch.ones(2, 2).bool()
    model(*inputs).square().sum().backward()
    once = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model(*inputs).square().sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, 2 * once[name], msg=name)


def test_both_directions_follow_the_equations_at_every_length():
    model, context, question, context_mask, question_mask = example()
    # Values at padding positions must not matter.
    context = context.masked_fill(~context_mask[..., None], 1e3)
    question = question.masked_fill(~question_mask[..., None], 1e3)
    states = model(context, question, context_mask, question_mask)
    weights = model.attention(context, question, context_mask, question_mask)
    assert weights.shape == (3, 2, 7, 6)
    assert not weights.requires_grad
    for row, (c, q) in enumerate(LENGTHS):
        passage, words = list(context[row, :c]), list(question[row, :q])
        ahead, ahead_weights = equations(model, passage, words)
        back, back_weights = (values.flip(0) for values in equations(model, passage[::-1], words))
        torch.testing.assert_close(states[row, :c], torch.cat([ahead, back], dim=-1), rtol=0, atol=1e-10)
        assert not states[row, c:].any()
        real = [*range(q), 5]  # "nothing" comes last, after the padding
        torch.testing.assert_close(weights[row, 0, :c, real], ahead_weights, rtol=0, atol=1e-10)
        torch.testing.assert_close(weights[row, 1, :c, real], back_weights, rtol=0, atol=1e-10)
        assert not weights[row, :, c:].any()
        assert not weights[row, :, :c, q:5].any()


def test_empty_question_equals_a_question_of_zeros():
    model, context, question, context_mask, question_mask = example()
    states = model(context, question, context_mask, torch.zeros_like(question_mask))
    nothing = model(context, torch.zeros_like(question), context_mask, question_mask)
    torch.testing.assert_close(states, nothing)
    empty = model(context, question, torch.zeros_like(context_mask), question_mask)
    assert not empty.any()


def test_bf16_autocast_runs_the_recurrence_in_fp32():
    model, *inputs = example(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        states = model(*inputs)
        states.sum().backward()
    assert states.dtype == torch.float32
    torch.testing.assert_close(states, model(*inputs), rtol=0, atol=0.1)


def test_plain_loop_runs_without_the_kernels_extra(monkeypatch):
    model, *inputs = example(torch.float32)
    expected = model(*inputs)
    monkeypatch.setattr("qa_arch.nn.match_lstm.KERNELS", None)
    assert torch.equal(model(*inputs), expected)
    model.kernel = "fused"
    assert torch.equal(model.eval()(*inputs), expected)
    with pytest.raises(UnavailableError, match="no extra with kernels is installed; use auto or plain"):
        model.train()(*inputs)


def recurrence_inputs(dtype=torch.float64, steps=5, width=4, scale=1.0):
    generator = torch.Generator().manual_seed(0)

    def draw(*shape, by=1.0):
        return (by * torch.randn(*shape, dtype=dtype, generator=generator)).requires_grad_()

    B, Q = 3, 6
    mask = torch.tensor([[True] * 6, [True, False, True, False, False, True], [False] * 5 + [True]])
    return (
        draw(steps, B, 5 * width, by=scale),
        reversal(torch.arange(steps) < torch.tensor([[steps], [2], [1]])).T,
        draw(B, Q, width, by=scale),
        draw(B, Q, 4 * width),
        mask,
        draw(width),
        draw(1),
        draw(5 * width, width, by=width**-0.5),
    )


@pytest.mark.parametrize(("chunk", "scale"), [(32, 1.0), (5, 1.0), (5, 30.0), (5, 1e4)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_fast_loop_matches_plain_loop_with_gradients(dtype, tolerance, scale, chunk, monkeypatch):
    monkeypatch.setattr(recurrence, "CHUNK", chunk)
    arguments = recurrence_inputs(dtype, steps=12, width=8, scale=scale)
    weights = torch.randn(12, 3, 2, 8, dtype=dtype, generator=torch.Generator().manual_seed(7))
    leaves = [argument for argument in arguments if argument.requires_grad]
    actual, expected = recur(*arguments), recur_reference(*arguments)
    gradients, expected_gradients = (
        torch.autograd.grad((out * weights).sum(), leaves) for out in (actual, expected)
    )
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        size = expected_gradient.abs().max().clamp(min=1)
        torch.testing.assert_close(gradient / size, expected_gradient / size, rtol=0, atol=tolerance)


def test_keys_and_queries_that_cancel_or_grow_stay_accurate():
    inputs, order, keys, *rest, state = (x.detach() for x in recurrence_inputs(torch.float32))
    large = torch.full_like(keys, 60.0)
    large[:, 0] += 0.5
    opposite = inputs.clone()
    opposite[..., :4] -= 60.0  # exp(120) is infinite, and the sum of the two is about zero
    grown = state.clone()
    grown[:4] *= 1e3  # queries are small at the first step only
    cancelling = (opposite, order, large, *rest, state), 1e-5
    growing = (inputs, order, keys, *rest, grown), 1e-3
    for arguments, tolerance in (cancelling, growing):
        actual = recur(*arguments)
        assert torch.isfinite(actual).all()
        torch.testing.assert_close(actual, recur_reference(*arguments), rtol=0, atol=tolerance)


@pytest.mark.parametrize("build", [TextLSTM, partial(SuBiLSTM, window=3)])
def test_bf16_autocast_runs_text_lstm_in_fp32(build):
    torch.manual_seed(2)
    model, x, mask = build(4, 5), torch.randn(3, 6, 4), torch.arange(6) < torch.tensor([[6], [3], [1]])
    with torch.autocast("cpu", torch.bfloat16):
        states = model(x.bfloat16(), mask)
    assert states.dtype == torch.float32
    torch.testing.assert_close(states, model(x, mask), rtol=0, atol=0.05)


@pytest.mark.parametrize("window", [1, 3, 20])
def test_subilstm_reads_prefix_and_suffix_in_both_directions(window):
    torch.manual_seed(0)
    model = SuBiLSTM(4, 3, window=window).double()
    lengths = [6, 2, 1]
    mask = torch.arange(6) < torch.tensor(lengths)[:, None]
    x = torch.randn(3, 6, 4, dtype=torch.float64)
    states = model(x.masked_fill(~mask[..., None], 1e3), mask)

    def read(number, units):
        return model.readers[number](torch.stack(units)[None])[0][0, -1]

    for row, length in enumerate(lengths):
        units = list(x[row, :length])
        for i in range(length):
            prefix, suffix = units[max(0, i - window + 1) : i + 1], units[i : i + window]
            before = torch.maximum(read(0, prefix), read(1, prefix[::-1]))
            after = torch.maximum(read(2, suffix), read(3, suffix[::-1]))
            torch.testing.assert_close(states[row, i], torch.cat([before, after]))
        assert not states[row, length:].any()


def by_hand(model, p, question):
    """Weights of the question units and of "nothing", and the updated unit."""

    def projected(x):
        values = model.project.weight @ x
        return values / (sum(v * v for v in values) + EPSILON).sqrt()

    scores = [model.log_gain.exp()[0] * sum(projected(p) * projected(q)) for q in question]
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
