"""The LSTMs that read texts, against their equations written out, one word of one text at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from qa_arch.nn.text_lstm import SuBiLSTM, TextLSTM

LENGTHS = [6, 3, 1]


def example(**options):
    torch.manual_seed(2)
    model = TextLSTM(4, 5, **options).double()
    for parameter in model.parameters():
        parameter.data.normal_(0.0, 0.7)
    x = torch.randn(3, 6, 4, dtype=torch.float64)
    return model, x, torch.arange(6) < torch.tensor(LENGTHS)[:, None]


def reference(reader, text: list[Tensor], output_gate: bool) -> list[Tensor]:
    """Each gate from its own block of the weights."""
    W, b, U, d = (part.split(5) for part in (*_linear(reader.input), *_linear(reader.state)))
    h = c = torch.zeros(5, dtype=torch.float64)
    states = []
    for x in text:
        gates = [W[n] @ x + b[n] + U[n] @ h + d[n] for n in range(4 if output_gate else 3)]
        c = torch.sigmoid(gates[1]) * c + torch.sigmoid(gates[0]) * torch.tanh(gates[2])
        h = torch.tanh(c) * (torch.sigmoid(gates[3]) if output_gate else 1.0)
        states.append(h)
    return states


def _linear(part):
    return part.weight, part.bias


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("output_gate", [False, True])
def test_states_follow_the_equations_at_every_length(output_gate, bidirectional):
    model, x, mask = example(output_gate=output_gate, bidirectional=bidirectional)
    states = model(x.masked_fill(~mask[..., None], 1e3), mask)
    for row, length in enumerate(LENGTHS):
        text = list(x[row, :length])
        expected = torch.stack(reference(model.ahead, text, output_gate))
        if bidirectional:
            expected = expected + torch.stack(reference(model.back, text[::-1], output_gate)[::-1])
        torch.testing.assert_close(states[row, :length], expected, rtol=0, atol=1e-12)
        assert not states[row, length:].any()


@pytest.mark.parametrize(("output_gate", "gates"), [(False, 3), (True, 4)])
def test_parameters_are_those_of_the_paper(output_gate, gates):
    model = TextLSTM(300, 150, output_gate=output_gate)
    assert sum(p.numel() for p in model.parameters()) == gates * (300 * 150 + 150**2 + 2 * 150)


def test_bf16_autocast_runs_the_recurrence_in_fp32():
    model, x, mask = example()
    model, x = model.float(), x.float()
    with torch.autocast("cpu", torch.bfloat16):
        states = model(x.bfloat16(), mask)
    assert states.dtype == torch.float32
    torch.testing.assert_close(states, model(x, mask), rtol=0, atol=0.05)


@pytest.mark.parametrize("window", [1, 3, 20])
def test_each_unit_reads_its_prefix_and_suffix_both_ways(window):
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
