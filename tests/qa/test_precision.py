"""Lower precision: what is cast, what is not, and how much the scores change."""

from copy import deepcopy

import pytest
import torch

from qa_arch.data.synthetic import generate
from qa_arch.features.batches import Collator
from qa_arch.nn.precision import cast_weights
from qa_arch.qa.loading import load_predictor


@pytest.fixture(scope="module")
def questions():
    return generate(1, 5, 1, "dev")


@pytest.fixture(scope="module")
def batch(reader, questions):
    return Collator(reader.table(questions, cache=False), labels=False)([0, 3, 7, 8])


def finite_scores(logits) -> torch.Tensor:
    return logits.start[logits.start > -torch.inf]


def test_lower_precision_changes_scores_little_and_fp32_not_at_all(reader, batch):
    with torch.inference_mode():
        exact = reader.model(batch)
        fp32 = cast_weights(deepcopy(reader.model), "fp32")(batch)
        low = cast_weights(deepcopy(reader.model), "bf16")(batch)
    assert torch.equal(fp32.start, exact.start)
    error = (finite_scores(low) - finite_scores(exact)).abs().max() / finite_scores(exact).std()
    assert 0 < error < 0.1
    assert low.start.dtype == torch.float32
    assert torch.equal(low.start == -torch.inf, exact.start == -torch.inf)


def test_only_the_encoder_is_in_lower_precision(reader):
    model = cast_weights(deepcopy(reader.model), "bf16")
    assert {p.dtype for p in model.encoder.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in model.span.parameters()} == {torch.float32}


def test_run_is_loaded_in_the_requested_precision(span_run, reader, questions):
    low = load_predictor(span_run, device="cpu", precision="bf16")
    pairs = zip(low.rank(questions).predictions(), reader.rank(questions).predictions(), strict=True)
    odds = [(item.null_odds, other.null_odds) for item, other in pairs]
    assert any(item != other for item, other in odds)
    for item, other in odds:
        assert item == pytest.approx(other, abs=0.3)
