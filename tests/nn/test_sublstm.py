"""Suffixes and prefixes against single runs of the same LSTMs."""

from __future__ import annotations

import pytest
import torch

from qa_arch.nn.sublstm import SuBiLSTM


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
