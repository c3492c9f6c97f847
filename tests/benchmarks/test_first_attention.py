"""Attention weights before training, on random states."""

import pytest
import torch

from benchmarks.first_attention import attentions, evenness, interaction


@pytest.mark.parametrize("width", [64, 384])
def test_initial_match_attention_is_nearly_uniform_without_cosine(width):
    """States of unit variance; half of the context states repeat a question state, with noise."""
    torch.manual_seed(0)
    question = torch.randn(4, 12, width)
    context = torch.cat([question[:, :10] + 0.5 * torch.randn(4, 10, width), torch.randn(4, 10, width)], 1)
    masks = torch.ones(4, 20, dtype=torch.bool), torch.ones(4, 12, dtype=torch.bool)
    weights_by_kind = attentions(context, question, *masks)
    matched, aligned = (evenness(weights) for weights in weights_by_kind.values())
    assert aligned < 0.6 < 0.9 < matched < 1
    matched, aligned = (interaction(weights[..., :-1]) for weights in weights_by_kind.values())
    assert matched < 0.3 < 0.9 < aligned


def test_interaction_is_what_rows_and_columns_do_not_explain():
    rows, columns = torch.randn(5, 1), torch.randn(1, 4)
    assert interaction((rows + columns).softmax(-1)) == pytest.approx(0, abs=1e-6)
    crossed = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    assert interaction((crossed + torch.tensor([1.0, -1.0])).softmax(-1)) == pytest.approx(0.5)
    assert evenness(torch.full((3, 5), 0.2)) == pytest.approx(1)
    assert evenness(torch.eye(5)) == 0
