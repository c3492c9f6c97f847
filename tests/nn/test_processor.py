"""Processor checks before a fast path is used."""

import pytest
import torch

from qa_arch.nn import precision as processor
from qa_arch.nn.text_lstm import SuBiLSTM

PROOFS = (processor.lstm_in_bf16, processor.bf16_is_faster)


@pytest.fixture
def cleared_proofs():
    """Clear cached proofs before and after the test."""
    for proof in PROOFS:
        proof.cache_clear()
    yield
    for proof in PROOFS:
        proof.cache_clear()


@pytest.mark.parametrize("kernel", [True, False])
def test_lstm_without_a_bf16_kernel_runs_in_fp32(monkeypatch, cleared_proofs, kernel):
    torch.manual_seed(0)
    reader, x = SuBiLSTM(6, 4, window=3), torch.randn(2, 5, 6)
    monkeypatch.setattr("qa_arch.nn.text_lstm.lstm_in_bf16", lambda: kernel)
    if kernel and not processor.lstm_in_bf16():
        pytest.skip("this processor has no bf16 kernel")
    exact = reader(x, torch.ones(2, 5, dtype=torch.bool))
    with torch.autocast("cpu", torch.bfloat16):
        actual = reader(x, torch.ones(2, 5, dtype=torch.bool))
    assert torch.equal(actual, exact) == (not kernel)
    torch.testing.assert_close(actual.float(), exact, rtol=0, atol=0.02)


def test_proofs_draw_no_random_numbers_and_are_cached(monkeypatch, cleared_proofs):
    state = torch.get_rng_state()
    for proof in PROOFS:
        assert proof() == proof()
        assert proof.cache_info().misses == 1
    assert torch.equal(torch.get_rng_state(), state)
