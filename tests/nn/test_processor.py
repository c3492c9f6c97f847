"""Processor checks before a fast path is used: saturating products are detected and avoided."""

import pytest
import torch
from torch import nn

from qa_arch.errors import UnavailableError
from qa_arch.nn import processor
from qa_arch.nn.precision import quantise
from qa_arch.nn.text_lstm import SuBiLSTM

PROOFS = (processor.int8_product, processor.onnx_int8, processor.lstm_in_bf16, processor.bf16_is_faster)


@pytest.fixture
def cleared_proofs():
    """Clear cached proofs before and after the test."""
    for proof in PROOFS:
        proof.cache_clear()
    yield
    for proof in PROOFS:
        proof.cache_clear()


def saturating_product(rows, zero, packed, scale):
    """Product of a processor without VNNI: pairs of terms are added in 16 bits and saturate."""
    terms = nn.functional.pad(rows.int()[:, None] * packed.int(), (0, rows.shape[1] % 2))
    sums = terms.unflatten(-1, (-1, 2)).sum(-1).clamp(-(2**15), 2**15 - 1).sum(-1)
    return (sums - zero * packed.int().sum(1)).float() * scale


@pytest.fixture
def saturating(monkeypatch, cleared_proofs):
    monkeypatch.setattr(processor, "pack", lambda weight: weight)
    monkeypatch.setattr("qa_arch.nn.precision.pack", lambda weight: weight)
    monkeypatch.setattr(processor, "_sums", saturating_product)


def test_saturating_product_is_computed_in_two_exact_halves(saturating, caplog):
    caplog.set_level("INFO", "qa_arch")
    torch.manual_seed(0)
    rows, weight = torch.randn(5, 31).mul(40).round(), torch.randn(7, 31).mul(40).round()
    rows, weight = rows.clamp(-127, 127), weight.clamp(-127, 127).to(torch.int8)
    rows[0], weight[0] = 127, -127
    product = processor.int8_product()
    assert torch.equal(product(rows.clone(), weight, torch.ones(7)), rows @ weight.float().T)
    assert not torch.equal(
        processor.shifted_product(rows.clone(), weight, torch.ones(7)), rows @ weight.float().T
    )
    processor.int8_product()
    assert processor.engine("torch", "int8") == "torch int8 in halves"
    assert [record.message for record in caplog.records] == [
        "int8: products saturate on this processor; computing them in two exact halves"
    ]


def test_int8_is_refused_without_an_exact_product(monkeypatch, saturating):
    monkeypatch.setattr(processor, "_sums", lambda *arguments: saturating_product(*arguments) / 2)
    with pytest.raises(UnavailableError, match="no int8 product is exact"):
        quantise(nn.Sequential(nn.Linear(4, 4)))


@pytest.mark.parametrize(
    ("exact", "engine"), [((True, True), "onnx int8"), ((False, True), "onnx int8 as u8u8")]
)
def test_saturating_signed_onnx_weights_become_unsigned(monkeypatch, cleared_proofs, exact, engine):
    monkeypatch.setattr(processor, "_exact_in_onnx", lambda settings: exact[bool(settings)])
    assert processor.engine("onnx", "int8") == engine
    processor.onnx_int8.cache_clear()
    monkeypatch.setattr(processor, "_exact_in_onnx", lambda settings: False)
    with pytest.raises(UnavailableError, match="use an fp32 graph"):
        processor.onnx_int8()


def test_onnx_product_is_exact_on_this_processor(cleared_proofs):
    pytest.importorskip("onnxruntime")
    assert processor._exact_in_onnx(processor.onnx_int8())


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
