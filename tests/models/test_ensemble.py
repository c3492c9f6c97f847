"""Ensembles: mean probabilities against plain Python, and each member's own word vectors."""

import math

import pytest
import torch
from torch import nn

from qa_arch.errors import ConfigError
from qa_arch.qa.loading import Ensemble, average
from qa_arch.tensors import SpanLogits, StepLogits

NEG_INF = -math.inf


def softmax(scores: list[float]) -> list[float]:
    weights = [math.exp(score) for score in scores]
    return [weight / sum(weights) for weight in weights]


def random_logits(seed: int, verifier: bool = False) -> SpanLogits:
    torch.manual_seed(seed)
    start, end = torch.randn(2, 3, 4) * 2
    start[:, 0], end[:, 3] = NEG_INF, NEG_INF
    null = torch.randn(2, 3)
    return SpanLogits(start, end, *null, torch.randn(3) if verifier else None, verifier_weight=0.5)


def test_probabilities_of_start_end_and_null_are_averaged():
    members = [random_logits(seed) for seed in range(3)]
    actual = average(members)
    for b in range(3):
        for scores, null, names in (
            (actual.start, actual.null_start, ("start", "null_start")),
            (actual.end, actual.null_end, ("end", "null_end")),
        ):
            rows = [
                softmax([*getattr(m, names[0])[b].tolist(), getattr(m, names[1])[b].item()]) for m in members
            ]
            expected = [sum(column) / 3 for column in zip(*rows, strict=True)]
            assert softmax([*scores[b].tolist(), null[b].item()]) == pytest.approx(expected, abs=1e-6)
    assert actual.verifier is None


def test_verifier_probabilities_are_averaged():
    members = [random_logits(seed, verifier=True) for seed in range(2)]
    actual = average(members)
    for b in range(3):
        odds = [m.verifier_weight * m.verifier[b].item() for m in members]
        expected = sum(1 / (1 + math.exp(-x)) for x in odds) / 2
        assert torch.sigmoid(actual.verifier_weight * actual.verifier[b]).item() == pytest.approx(
            expected, abs=1e-6
        )


def test_verifier_of_some_members_is_part_of_their_null():
    plain, verified = random_logits(0), random_logits(1, verifier=True)
    folded = verified.folded()
    torch.testing.assert_close(folded.null, verified.null)
    assert folded.verifier is None
    actual, expected = average([plain, verified]), average([plain, folded])
    for name in ("start", "end", "null_start", "null_end"):
        torch.testing.assert_close(getattr(actual, name), getattr(expected, name))
    assert actual.verifier is None


def test_probabilities_of_each_step_are_averaged():
    torch.manual_seed(0)
    members = [StepLogits(torch.randn(2, 3, 4), torch.randn(2, 3)) for _ in range(2)]
    actual = average(members)
    for b in range(2):
        for s in range(3):
            rows = [softmax([*m.token[b, s].tolist(), m.stop[b, s].item()]) for m in members]
            expected = [sum(column) / 2 for column in zip(*rows, strict=True)]
            assert [*actual.token[b, s].exp().tolist(), actual.stop[b, s].exp().item()] == pytest.approx(
                expected
            )


@pytest.mark.parametrize("count", [1, 3])
def test_ensemble_of_equal_members_equals_each_member(count):
    """On the same scale in every window, so windows of a question stay comparable."""
    single = random_logits(4)
    actual = average([single] * count)
    for name in ("start", "end", "null_start", "null_end", "null"):
        torch.testing.assert_close(getattr(actual, name), getattr(single, name))


@pytest.mark.parametrize(
    "members",
    [
        [random_logits(0), StepLogits(torch.zeros(3, 2, 4), torch.zeros(3, 2))],
        [StepLogits(torch.zeros(3, n, 4), torch.zeros(3, n)) for n in (2, 3)],
    ],
    ids=["kinds", "lengths"],
)
def test_members_with_different_outputs_are_refused(members):
    with pytest.raises(ConfigError, match="must all"):
        average(members)


def test_each_member_reads_its_own_word_vectors(make_batch):
    """Members with the same vectors in another order give the same scores."""

    class VectorScores(nn.Module):
        def __init__(self, table):
            super().__init__()
            self.register_buffer("table", table)

        def forward(self, batch):
            scores = self.table[batch.vector].masked_fill(~batch.context, NEG_INF)
            return SpanLogits(scores, scores, scores.new_zeros(len(batch)), scores.new_zeros(len(batch)))

    table = torch.randn(6)
    table[0] = 0.0
    order = torch.tensor([0, 3, 1, 5, 2, 4])  # row of each word in the other table
    other = torch.zeros(6).scatter(0, order, table)
    batch = make_batch()
    plain = VectorScores(table)(batch)
    actual = Ensemble([VectorScores(table), VectorScores(other)], [torch.arange(6), order])(batch)
    torch.testing.assert_close(actual.start, plain.start)
