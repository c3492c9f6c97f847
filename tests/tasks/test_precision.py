"""Lower precision: what is cast or quantised, what is not, and how much the scores change."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from qa_arch.data.synthetic import generate
from qa_arch.features.batches import Collator
from qa_arch.nn.precision import Int8Linear, cast_weights, to_int8
from qa_arch.spans.loading import load_predictor


@pytest.fixture(scope="module")
def questions():
    return generate(1, 5, 1, "dev")


@pytest.fixture(scope="module")
def batch(predictor, questions):
    return Collator(predictor.table(questions, cache=False), labels=False)([0, 3, 7, 8])


def finite_scores(logits) -> torch.Tensor:
    return logits.start[logits.start > -torch.inf]


@pytest.mark.parametrize(("precision", "tolerance"), [("bf16", 0.1), ("int8", 0.15)])
def test_lower_precision_changes_scores_little_and_fp32_not_at_all(predictor, batch, precision, tolerance):
    with torch.inference_mode():
        exact = predictor.model(batch)
        fp32 = cast_weights(deepcopy(predictor.model), "fp32")(batch)
        low = cast_weights(deepcopy(predictor.model), precision)(batch)
    assert torch.equal(fp32.start, exact.start)
    error = (finite_scores(low) - finite_scores(exact)).abs().max() / finite_scores(exact).std()
    assert 0 < error < tolerance
    assert low.start.dtype == torch.float32
    assert torch.equal(low.start == -torch.inf, exact.start == -torch.inf)


def test_only_the_encoder_is_in_lower_precision(predictor):
    model = cast_weights(deepcopy(predictor.model), "bf16")
    assert {p.dtype for p in model.encoder.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in model.span.parameters()} == {torch.float32}
    model = cast_weights(deepcopy(predictor.model), "int8")
    assert not any(type(module) is nn.Linear for module in model.encoder.modules())
    assert type(model.span) is nn.Linear


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_run_is_loaded_in_the_requested_precision(tiny_run, predictor, questions, precision):
    low = load_predictor(tiny_run, device="cpu", precision=precision)
    pairs = zip(low.read(questions).predictions(), predictor.read(questions).predictions(), strict=True)
    odds = [(item.null_odds, other.null_odds) for item, other in pairs]
    assert any(item != other for item, other in odds)
    for item, other in odds:
        assert item == pytest.approx(other, abs=0.3)


@pytest.mark.parametrize("bias", [True, False])
def test_int8_linear_is_the_product_of_rounded_values(bias):
    torch.manual_seed(3)
    linear = nn.Linear(24, 40, bias=bias)
    x = torch.randn(2, 5, 24) * torch.tensor([0.01, 1.0, 30.0, 0.0, 4.0])[:, None]
    with torch.inference_mode():
        actual = Int8Linear(*to_int8(linear.weight), linear.bias)(x)
        scale = linear.weight.abs().amax(1, keepdim=True) / 127
        weight = (linear.weight / scale).round() * scale
        step = x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127
        expected = nn.functional.linear((x / step).round() * step, weight, linear.bias)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    assert (actual[:, 2] - linear(x)[:, 2]).abs().max() < 1  # token 2 is scaled by 30


def test_int8_linear_scales_each_token_separately():
    torch.manual_seed(3)
    linear = Int8Linear(*to_int8(torch.randn(40, 24)), nn.Parameter(torch.randn(40)))
    x = torch.randn(6, 24)
    with torch.inference_mode():
        alone = linear(x[:1])
        in_batch = linear(torch.cat([x, 1000 * x]))[:1]
    assert torch.equal(alone, in_batch)
