"""The match-LSTM against Wang & Jiang's equations written out, one token of one example at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from qa_arch.errors import UnavailableError
from qa_arch.nn.match_lstm import MatchLSTM

LENGTHS = [(7, 3), (4, 5), (1, 1)]  # (context, question) units of each example


def example(dtype=torch.float64, in_dim=6, hidden=5):
    torch.manual_seed(0)
    model = MatchLSTM(in_dim, hidden).to(dtype)
    for parameter in model.parameters():  # biases included
        parameter.data.normal_(0.0, 0.5)
    C, Q = (max(lengths) for lengths in zip(*LENGTHS, strict=True))
    context, question = torch.randn(3, C, in_dim, dtype=dtype), torch.randn(3, Q, in_dim, dtype=dtype)
    context_mask = torch.arange(C) < torch.tensor([c for c, _ in LENGTHS])[:, None]
    question_mask = torch.arange(Q) < torch.tensor([q for _, q in LENGTHS])[:, None]
    return model, context, question, context_mask, question_mask


def reference(model: MatchLSTM, passage: list[Tensor], question: list[Tensor]) -> list[Tensor]:
    """One direction of one example, by the equations."""
    question = [*question, torch.zeros_like(question[0])]  # the word "nothing"
    h = c = torch.zeros(model.state.in_features, dtype=torch.float64)
    states = []
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
    return states


def test_both_directions_follow_the_equations_at_every_length():
    model, context, question, context_mask, question_mask = example()
    # What stands on padding must not matter at all.
    context = context.masked_fill(~context_mask[..., None], 1e3)
    question = question.masked_fill(~question_mask[..., None], 1e3)
    states = model(context, question, context_mask, question_mask)
    for row, (c, q) in enumerate(LENGTHS):
        passage, words = list(context[row, :c]), list(question[row, :q])
        ahead = torch.stack(reference(model, passage, words))
        back = torch.stack(reference(model, passage[::-1], words)[::-1])
        torch.testing.assert_close(states[row, :c], torch.cat([ahead, back], dim=-1), rtol=0, atol=1e-10)
        assert not states[row, c:].any()


def test_attention_is_that_of_the_equations():
    model, context, question, context_mask, question_mask = example()
    weights = model.attention(context, question, context_mask, question_mask)
    assert weights.shape == (3, 2, 7, 6)
    assert not weights.requires_grad
    for row, (c, q) in enumerate(LENGTHS):
        passage, words = list(context[row, :c]), list(question[row, :q])
        ahead = attended(model, passage, words)
        back = attended(model, passage[::-1], words).flip(0)
        real = [*range(q), 5]  # "nothing" stands last, behind the padding
        torch.testing.assert_close(weights[row, 0, :c, real], ahead, rtol=0, atol=1e-10)
        torch.testing.assert_close(weights[row, 1, :c, real], back, rtol=0, atol=1e-10)
        assert not weights[row, :, c:].any()
        assert not weights[row, :, :c, q:5].any()


def attended(model: MatchLSTM, passage: list[Tensor], question: list[Tensor]) -> Tensor:
    """a_i of one direction (eq. 2), from the states of ``reference``."""
    states = [torch.zeros(model.state.in_features, dtype=torch.float64), *reference(model, passage, question)]
    words = torch.stack([*question, torch.zeros_like(question[0])])
    weights = []
    for p, h in zip(passage, states, strict=False):
        energy = torch.tanh(model.question(words) + model.passage(p) + model.state(h)) @ model.score.weight[0]
        weights.append(energy.softmax(0))
    return torch.stack(weights).detach()


@pytest.mark.parametrize("width", [150, 300])
def test_parameters_are_those_of_the_paper(width):
    model = MatchLSTM(width, width)
    count = {name: sum(p.numel() for p in part.parameters()) for name, part in model.named_children()}
    attention = sum(count[name] for name in ("question", "passage", "state", "score"))
    assert attention == 3 * (width**2 + width) + (width + 1)
    assert sum(count.values()) - attention == 4 * (3 * width**2 + 3 * width)
    if width == 150:
        assert (attention, sum(count.values()) - attention) == (68_101, 271_800)


def test_a_question_without_units_reads_nothing_and_stays_finite():
    model, context, question, context_mask, question_mask = example()
    states = model(context, question, context_mask, torch.zeros_like(question_mask))
    nothing = model(context, torch.zeros_like(question), context_mask, question_mask)
    torch.testing.assert_close(states, nothing)
    empty = model(context, question, torch.zeros_like(context_mask), question_mask)
    assert not empty.any()


def test_bf16_autocast_runs_the_recurrence_in_fp32():
    model, context, question, context_mask, question_mask = example(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        states = model(context, question, context_mask, question_mask)
        states.sum().backward()
    assert states.dtype == torch.float32
    exact = model(context, question, context_mask, question_mask)
    torch.testing.assert_close(states, exact, rtol=0, atol=0.1)


def test_without_the_extra_of_kernels_the_plain_loop_runs(monkeypatch):
    torch.manual_seed(0)
    model, mask = MatchLSTM(6, 5), torch.ones(2, 4, dtype=torch.bool)
    context, question = torch.randn(2, 4, 6), torch.randn(2, 4, 6)
    expected = model(context, question, mask, mask)
    monkeypatch.setattr("qa_arch.nn.match_lstm.KERNELS", None)
    assert torch.equal(model(context, question, mask, mask), expected)
    model.kernel = "fused"
    assert torch.equal(model.eval()(context, question, mask, mask), expected)
    with pytest.raises(UnavailableError, match="no extra with kernels; use auto or plain"):
        model.train()(context, question, mask, mask)
