"""Pruning of heads, units, layers and single weights: what is removed, and that nothing else changes."""

import copy
import json
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from checkpoints import CONFIGS, SIZES
from safetensors.torch import load_file
from torch import nn

from baselines.transformer import TransformerSpan
from qa_arch.errors import ConfigError
from qa_arch.extras.compression.pruning import (
    HoldZeros,
    InnerMap,
    Pruner,
    chosen_layers,
    head_count,
    importance,
    keep_best,
    keep_layers,
    prunable,
    scheduled_sparsity,
    smallest,
)
from qa_arch.models.proposed import BertMatch
from qa_arch.nn.encoder import Encoder
from qa_arch.qa.loading import load_predictor
from qa_arch.records import read_record
from qa_arch.tensors import Batch

FAMILIES = ("bert", "distilbert", "qa_transformer", "mpnet", "deberta-v2", "modernbert")


def tiny(family: str) -> Encoder:
    """Three layers of four heads with weights far from zero."""
    if family == "qa_transformer":
        pytest.importorskip("qa_arch.extras.pretraining", reason="our Transformer is another extra")
    overrides = {
        key: value for key, value in CONFIGS.get(family, {}).items() if key not in ("n_layers", "n_heads")
    }
    depth = {"n_layers": 3, "n_heads": 4} if family == "distilbert" else {}
    sizes = {**SIZES, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 50, "pad_token_id": 0}
    torch.manual_seed(1)
    encoder = Encoder.from_description({"model_type": family, **sizes, **overrides, **depth}).eval()
    for parameter in encoder.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    return encoder


@pytest.fixture
def batch():
    torch.manual_seed(2)
    mask = torch.arange(12).expand(3, 12) < torch.tensor([[12], [9], [7]])
    return Batch(
        index=torch.arange(3),
        ids=torch.randint(5, 45, (3, 12)) * mask,
        mask=mask,
        segments=(torch.arange(12).expand(3, 12) > 4).long() * mask,
        question=mask,
        context=mask,
        word=torch.zeros(3, 12, dtype=torch.long),
        overlap=mask,
    )


def batch_for(encoder: Encoder, batch: Batch) -> Batch:
    return batch if encoder.has_segments else replace(batch, segments=None)


def states(encoder: Encoder, batch: Batch) -> torch.Tensor:
    with torch.no_grad():
        return encoder.eval()(batch.ids, batch.mask, batch.segments)[batch.mask]


def ranked(pruner: Pruner, kind: str, units: int) -> dict[str, torch.Tensor]:
    """Scores by which every map keeps different units."""
    return {inner.name: torch.roll(torch.arange(units) * 1.0, i) for i, inner in enumerate(pruner.of(kind))}


@pytest.mark.parametrize(
    ("family", "kind"), [*((f, "units") for f in FAMILIES), *((f, "heads") for f in FAMILIES[:3])]
)
def test_removing_units_or_heads_equals_zeroing_them(family, kind, batch):
    encoder = tiny(family)
    batch = batch_for(encoder, batch)
    zeroed = copy.deepcopy(encoder)
    pruner = Pruner(encoder, batch)
    count, target, size = (24, 10, 1) if kind == "units" else (4, 1, 4)
    scores = ranked(pruner, kind, count)
    smaller = keep_best(pruner, kind, target, scores)
    for name, values in scores.items():
        removed = values.argsort()[: count - target, None] * size + torch.arange(size)
        with torch.no_grad():
            zeroed.get_submodule(name).weight[:, removed.flatten()] = 0.0
    torch.testing.assert_close(states(smaller, batch), states(zeroed, batch), rtol=1e-4, atol=1e-5)
    if kind == "heads":
        assert (head_count(smaller), smaller.config.num_attention_heads) == (1, 4)
    else:
        assert 10 in [getattr(smaller.config, name, 0) for name in ("intermediate_size", "hidden_dim")]
    reloaded = Encoder.from_description(json.loads(json.dumps(smaller.describe())))
    reloaded.load_state_dict(smaller.state_dict())
    assert torch.equal(states(reloaded, batch), states(smaller, batch))


@pytest.mark.parametrize("family", ["bert", "distilbert", "modernbert"])
def test_remaining_layers_are_unchanged(family, batch):
    encoder = tiny(family)
    smaller = keep_layers(encoder, [0, 2], batch_for(encoder, batch))
    assert smaller.depth == 2
    for layer, old in zip(smaller.layers(), (0, 2), strict=True):
        for name, parameter in encoder.layers()[old].named_parameters():
            assert torch.equal(parameter, layer.get_parameter(name)), name


def test_layers_are_chosen_evenly_or_from_the_front():
    assert chosen_layers(12, 4, "every_other") == [0, 3, 6, 9]
    assert chosen_layers(6, 4, "every_other") == [0, 1, 3, 4]
    assert chosen_layers(6, 2, "first") == [0, 1]


def test_wrong_removal_is_detected(batch, monkeypatch):
    pruner = Pruner(tiny("bert"), batch)
    remove = pruner.remove
    monkeypatch.setattr(pruner, "remove", lambda linear, columns: remove(linear, [c - 1 for c in columns]))
    first, *others = (inner.name for inner in pruner.of("units"))
    scores = {name: torch.arange(24).flip(0) * 1.0 for name in others}
    with pytest.raises(ConfigError, match="does not compute the same"):
        keep_best(pruner, "units", 10, scores | {first: torch.arange(24).roll(9) * 1.0})


@pytest.mark.parametrize("size", [1, 3])
def test_importance_is_the_gate_gradient_of_each_windows_loss(size):
    torch.manual_seed(0)
    first, second = nn.Linear(4, 6), nn.Linear(6, 2)

    model = nn.Sequential(first, nn.Tanh(), nn.Dropout(0.5), second)
    first.weight.requires_grad_(False)
    windows = [torch.randn(2, 5, 4), torch.randn(3, 5, 4)]

    def losses(x):
        return model(x).square().sum((1, 2))

    maps = [InnerMap("3", second, "units")]
    (scores,) = importance(model, maps, size, windows, losses).values()
    expected = torch.zeros(6 // size)
    for x in torch.cat(windows):
        gate = torch.ones(6 // size, requires_grad=True)
        gated = torch.tanh(first(x)) * gate.repeat_interleave(size)
        second(gated).square().sum().backward()
        expected += gate.grad.abs() / 5
    torch.testing.assert_close(scores, expected)
    assert not first.weight.requires_grad
    assert first.weight.grad is None


def test_layer_matrices_and_the_match_are_prunable_but_embeddings_and_outputs_are_not():
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
    encoder = Encoder.from_description({"model_type": "bert", "vocab_size": 50, **sizes})
    names = set(prunable(TransformerSpan(encoder)))
    assert len(names) == 2 * 6  # query, key, value, output and the two feed-forward maps of each layer
    assert all(".layer." in name and name.endswith(".weight") for name in names)
    match = BertMatch(encoder, vectors=torch.eye(9)[:, 1:] * 1.0, train_vectors=True, hidden=6)
    names = set(prunable(match))
    assert "features.vectors" not in names
    assert {"match", "pointer"} <= {name.partition(".")[0] for name in names}


def unmasked(weights):
    return {name: torch.zeros_like(weight, dtype=torch.bool) for name, weight in weights.items()}


def test_smallest_weights_globally_or_per_layer_in_exact_number():
    weights = {"a": torch.tensor([[0.1, -0.2], [0.3, -4.0]]), "b": torch.tensor([[5.0, 6.0], [-7.0, 8.0]])}
    overall = smallest(weights, 0.5, "global", unmasked(weights))
    assert (overall["a"].sum(), overall["b"].sum()) == (4, 0)
    for mask in smallest(weights, 0.5, "layer", unmasked(weights)).values():
        assert mask.tolist() == [[True, True], [False, False]]
    tied = {"a": torch.ones(4, 5)}
    assert smallest(tied, 0.35, "global", unmasked(tied))["a"].sum() == 7


def test_masks_only_grow():
    weights, previous = {"a": torch.ones(4, 5)}, {"a": torch.zeros(4, 5, dtype=torch.bool)}
    previous["a"][3, 2:] = True
    weights["a"][previous["a"]] = 0.0
    weights["a"][0, 0] = 0.0  # zero by chance, and first among the ties
    assert torch.equal(smallest(weights, 3 / 20, "global", previous)["a"], previous["a"])
    assert (smallest(weights, 0.5, "global", previous)["a"] | ~previous["a"]).all()
    assert torch.equal(smallest(weights, 1 / 20, "layer", previous)["a"], previous["a"]), "pruned globally"


def test_schedule_follows_zhu_and_gupta():
    assert [scheduled_sparsity(t, 4, 0.0, 0.8) for t in (0, 2, 4, 9)] == pytest.approx(
        [0.0, 0.8 * 7 / 8, 0.8, 0.8]
    )
    assert scheduled_sparsity(1, 4, 0.2, 0.8) == pytest.approx(0.8 - 0.6 * 0.75**3)
    assert scheduled_sparsity(0, 0, 0.0, 0.8) == 0.8


def test_zeros_persist_through_training_saving_and_loading(parent, smaller, monkeypatch):
    seen: list[dict[str, torch.Tensor]] = []
    hold = HoldZeros._hold

    def recorded(self, step):
        hold(self, step)
        seen.append({name: mask.clone() for name, mask in self.masks.items()})

    monkeypatch.setattr(HoldZeros, "_hold", recorded)
    folder = smaller(parent, "magnitude", sparsity=0.7, scope="global", epochs=2, lr=1e-2, ramp=0.5)
    weights = prunable(load_predictor(folder, device="cpu").model)
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


def test_zeros_and_frozen_layers_persist_while_the_next_step_is_trained(sparse, smaller):
    folder = smaller(sparse, "layers", "encoder.freeze=1", keep=2, epochs=1, lr=1e-2)
    record = read_record(folder)
    assert (record.model, record.parent.run) == ("bert-sparse50-layers2", sparse.name)
    before, after = (load_file(run / "model" / "model.safetensors") for run in (sparse, folder))
    old = {name: before[name.replace("layer.1.", "layer.2.")] for name in after}  # layers 0 and 2 of 4
    for name in prunable(load_predictor(folder, device="cpu").model):
        assert torch.equal(after[name] == 0, old[name] == 0), name
    unchanged = {name for name in after if torch.equal(after[name], old[name])}
    assert {name for name in after if "embeddings" in name or ".layer.0." in name} <= unchanged
    assert not {name for name in after if ".layer.1." in name and name.endswith("weight")} & unchanged


def test_encoders_without_removable_parts_are_refused(batch):
    mpnet = tiny("mpnet")
    with pytest.raises(ConfigError, match="mpnet: heads can be removed in only 0 of its 3 layers"):
        Pruner(mpnet, batch_for(mpnet, batch)).of("heads")
    sizes = {**SIZES, "vocab_size": 50, "embedding_size": 8, "type_vocab_size": 2}
    albert = Encoder.from_description({"model_type": "albert", **sizes})
    with pytest.raises(ConfigError, match="albert: its 2 layers share their weights"):
        keep_layers(albert, [0], batch)
