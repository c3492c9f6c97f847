"""The LSTMs that read texts; ``tests/baselines/test_match_lstm.py`` has their equations written out."""

from __future__ import annotations

import pytest
import torch

from qa_arch.nn.text_lstm import SuBiLSTM, TextLSTM


@pytest.mark.parametrize(("output_gate", "gates"), [(False, 3), (True, 4)])
def test_parameters_are_those_of_the_paper(output_gate, gates):
    model = TextLSTM(300, 150, output_gate=output_gate)
    assert sum(p.numel() for p in model.parameters()) == gates * (300 * 150 + 150**2 + 2 * 150)


def test_bf16_autocast_runs_the_recurrence_in_fp32():
    torch.manual_seed(2)
    model, x, mask = TextLSTM(4, 5), torch.randn(3, 6, 4), torch.arange(6) < torch.tensor([[6], [3], [1]])
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
