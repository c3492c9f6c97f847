"""Magnitude pruning: which weights, how many, and that zeros stay zeros."""

from itertools import pairwise

import pytest
import torch
from safetensors.torch import load_file

from baselines.transformer import TransformerSpan
from qa_arch.extras.compression import pruning as magnitude
from qa_arch.extras.compression.pruning import (
    HoldZeros,
    prunable,
    scheduled_sparsity,
    smallest,
)
from qa_arch.models.proposed import BertMatch
from qa_arch.nn.encoder import Encoder
from qa_arch.qa.loading import load_predictor

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}


@pytest.fixture
def model():
    torch.manual_seed(0)
    return TransformerSpan(Encoder.from_description({"model_type": "bert", "vocab_size": 50, **SIZES}))


def unmasked(weights):
    return {name: torch.zeros_like(weight, dtype=torch.bool) for name, weight in weights.items()}


def test_only_layer_matrices_are_prunable(model):
    names = set(prunable(model))
    assert len(names) == 2 * 6  # query, key, value, output and the two feed-forward maps of each layer
    assert all(".layer." in name and name.endswith(".weight") for name in names)
    assert not any("embeddings" in name or name.startswith("span") for name in names)


def test_trained_word_vectors_are_not_prunable():
    encoder = Encoder.from_description({"model_type": "bert", "vocab_size": 50, **SIZES})
    match = BertMatch(encoder, vectors=torch.eye(9)[:, 1:] * 1.0, train_vectors=True, hidden=6)
    names = set(prunable(match))
    assert "features.vectors" not in names
    assert any(name.startswith("match.") for name in names)
    assert any(name.startswith("pointer.") for name in names)


def test_smallest_weights_globally_or_per_layer_in_exact_number():
    weights = {"a": torch.tensor([[0.1, -0.2], [0.3, -4.0]]), "b": torch.tensor([[5.0, 6.0], [-7.0, 8.0]])}
    overall = smallest(weights, 0.5, "global", unmasked(weights))
    assert overall["a"].all()
    assert not overall["b"].any()
    per_layer = smallest(weights, 0.5, "layer", unmasked(weights))
    assert per_layer["a"].tolist() == [[True, True], [False, False]]
    assert per_layer["b"].tolist() == [[True, True], [False, False]]


def test_ties_are_counted_exactly_and_masks_only_grow():
    weights = {"a": torch.ones(4, 5)}
    masks = smallest(weights, 0.35, "global", unmasked(weights))
    assert masks["a"].sum() == 7
    previous = {"a": torch.zeros(4, 5, dtype=torch.bool)}
    previous["a"][3, 2:] = True
    weights["a"][previous["a"]] = 0.0
    weights["a"][0, 0] = 0.0  # zero by chance, and first among the ties
    grown = smallest(weights, 3 / 20, "global", previous)
    assert torch.equal(grown["a"], previous["a"])
    assert (smallest(weights, 0.5, "global", previous)["a"] | ~previous["a"]).all()
    assert torch.equal(smallest(weights, 1 / 20, "layer", previous)["a"], previous["a"]), "pruned globally"


def test_schedule_follows_zhu_and_gupta():
    assert [scheduled_sparsity(t, 4, 0.0, 0.8) for t in (0, 2, 4, 9)] == pytest.approx(
        [0.0, 0.8 * 7 / 8, 0.8, 0.8]
    )
    assert scheduled_sparsity(1, 4, 0.2, 0.8) == pytest.approx(0.8 - 0.6 * 0.75**3)
    assert scheduled_sparsity(0, 0, 0.0, 0.8) == 0.8


@pytest.mark.parametrize("scope", ["global", pytest.param("layer", marks=pytest.mark.slow)])
def test_zeros_persist_through_training_saving_and_loading(parent, smaller, scope, monkeypatch):
    seen: list[dict[str, torch.Tensor]] = []
    hold = HoldZeros._hold

    def recorded(self, step):
        hold(self, step)
        seen.append({name: mask.clone() for name, mask in self.masks.items()})

    monkeypatch.setattr(HoldZeros, "_hold", recorded)
    folder = smaller(parent, "magnitude", sparsity=0.7, scope=scope, epochs=2, lr=1e-2, ramp=0.5)
    model = load_predictor(folder, device="cpu").model
    weights = prunable(model)
    for name, mask in seen[-1].items():
        assert torch.equal(weights[name] == 0, mask), name  # exactly the masked weights
    counts = [sum(int(mask.sum()) for mask in masks.values()) for masks in seen]
    total = sum(w.numel() for w in weights.values())
    assert counts[0] == 0
    assert counts == sorted(counts)
    assert counts[-1] == pytest.approx(0.7 * total, abs=len(weights))
    assert len(set(counts)) > 4
    middle = len(counts) // 2
    assert counts[middle + 1] == counts[-1] > counts[middle // 2]  # the ramp ends halfway
    for before, after in pairwise(seen):
        assert all((after[name] | ~mask).all() for name, mask in before.items())
    stored = load_file(folder / "model" / "model.safetensors")
    assert sum(int((stored[name] == 0).sum()) for name in weights) == counts[-1]


def test_masked_weights_get_no_gradient(model):
    hold = HoldZeros(magnitude.zeros(model))
    hold.weights = prunable(model)
    name = next(iter(hold.masks))
    hold.masks[name][0] = True
    for weight in hold.weights.values():
        weight.grad = torch.ones_like(weight)
    hold.on_before_optimizer_step(None, None, None)  # type: ignore[arg-type]
    assert not hold.weights[name].grad[0].any()
    assert hold.weights[name].grad[1:].all()


def test_zeros_of_an_earlier_step_persist_while_the_next_is_trained(parent, smaller):
    sparse = smaller(parent, "magnitude", name="sparse", sparsity=0.5)
    folder = smaller(sparse, "layers", name="fewer", keep=2, epochs=1, lr=1e-2)
    sparse_weights = prunable(load_predictor(sparse, device="cpu").model)
    weights = prunable(load_predictor(folder, device="cpu").model)
    moved = 0
    for name, weight in weights.items():
        old = name.replace("layer.1.", "layer.2.")  # layers 0 and 2 of 4
        assert torch.equal(weight == 0, sparse_weights[old] == 0), name
        moved += int((weight != sparse_weights[old]).sum())
    assert moved > 0
