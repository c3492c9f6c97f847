"""A compressed run is a run like any other; its record says what it was made of, and its measured costs."""

import json
import shutil
from argparse import Namespace
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from qa_arch.config.compose import compose
from qa_arch.config.schema import validate
from qa_arch.data.sources import open_passages
from qa_arch.errors import ConfigError
from qa_arch.export.huggingface import export_hf
from qa_arch.export.onnx import export_onnx
from qa_arch.extras.compression import pruning
from qa_arch.features.batches import Collator
from qa_arch.qa import start
from qa_arch.qa.loading import load_predictor
from qa_arch.records import read_record
from qa_arch.results.columns import runs_table
from qa_arch.results.publish import publish
from qa_arch.results.systems import group_by_system
from qa_arch.training.checkpoint import BestWeights


def test_record_states_the_step_and_the_settings_of_the_parent(parent, sparse):
    before, after = read_record(parent), read_record(sparse)
    assert (after.status, after.model) == ("ok", "bert-sparse50")
    assert after.parent.run_hash == before.run_hash
    step = {"method": "magnitude", "sparsity": 0.5, "scope": "global", "ramp": 0.5}
    assert after.config["compression"].items() >= step.items()
    trainer = {"epochs": 0, "max_steps": -1, "select": "last", "patience": 0}
    assert after.config["trainer"] == before.config["trainer"] | trainer
    for section in ("data", "encoder", "optim", "features"):
        assert after.config[section] == before.config[section]
    masks = pruning.zeros(load_predictor(sparse, device="cpu").model)
    assert pruning.sparsity_of(masks) == pytest.approx(0.5, abs=1e-3)
    assert after.parameters.nonzero < after.parameters.total == before.parameters.total


def test_runs_are_tabulated_with_their_parent_and_published(
    parent, sparse, tmp_path, monkeypatch, few_questions
):
    train_set = Path(few_questions[0].partition("=")[2])
    monkeypatch.setenv("QA_ARCH_DATA", str(train_set.parent))
    monkeypatch.chdir(parent.parent)
    runs = [(folder, read_record(folder)) for folder in (parent, sparse)]
    by_layer = replace(runs[1][1], config=deepcopy(runs[1][1].config))
    by_layer.config["compression"]["scope"] = "layer"
    runs.append((tmp_path / "layer", by_layer))
    columns = ["model", "f1", "parameters", "nonzero", "weights_mb"]
    rows = [row for row in runs_table(runs[:2], columns=columns).rows if "run" in row]
    assert [row["model"] for row in rows] == ["bert", "bert-sparse50"]
    assert rows[0]["nonzero"] == rows[0]["parameters"] > rows[1]["nonzero"]
    assert rows[0]["weights_mb"] == rows[1]["weights_mb"] > 0
    labels = [system.label for system in group_by_system(runs)]
    assert labels == ["bert", "bert-sparse50 scope=global", "bert-sparse50 scope=layer"]
    assert read_record(publish(sparse, tmp_path / "records")).parent == runs[1][1].parent


def test_smaller_encoder_replaces_that_of_any_name(parent, renamed_encoder):
    words = [f"init_from={parent}", "compression=layers", "compression.keep=2"]
    parts = start.assemble(validate(compose(words)))
    assert parts.encoder is parts.model[0].encoder
    assert parts.encoder.depth == 2


def test_importance_is_estimated_on_training_windows_only(parent, smaller, monkeypatch, few_questions):
    batches: list = []
    real = pruning.importance

    def recorded(model, maps, size, windows, losses):
        batches.extend(windows)
        return real(model, maps, size, batches, losses)

    monkeypatch.setattr(pruning, "importance", recorded)
    record = read_record(smaller(parent, "widths", keep=24, windows=10))
    assert (record.model, record.status) == ("bert-ffn24", "ok")
    assert 10 <= sum(map(len, batches)) < 10 + max(map(len, batches))
    table = load_predictor(parent, device="cpu").table(open_passages(few_questions[0].partition("=")[2]))
    collate = Collator(table)
    assert all(torch.equal(batch.ids, collate(batch.index.tolist()).ids) for batch in batches)


@pytest.mark.slow
def test_interrupted_training_resumes_where_it_stopped(parent, smaller, monkeypatch):
    settings = {"sparsity": 0.6, "epochs": 3, "lr": 1e-2}
    uninterrupted = smaller(parent, "magnitude", name="uninterrupted", **settings)
    epochs, real = [], BestWeights.on_validation_end

    def interrupt(self, trainer, module):
        epochs.append(trainer.current_epoch)
        if len(epochs) == 2:
            raise KeyboardInterrupt
        real(self, trainer, module)

    with monkeypatch.context() as patch:
        patch.setattr(BestWeights, "on_validation_end", interrupt)
        with pytest.raises(KeyboardInterrupt):
            smaller(parent, "magnitude", name="interrupted", **settings)
    resumed = smaller(parent, "magnitude", name="interrupted", **settings)
    first, second = (load_file(run / "model" / "model.safetensors") for run in (uninterrupted, resumed))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert read_record(uninterrupted).best_epoch == 2, "with rising sparsity the last epoch is selected"


# Refusals


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("widths", {"keep": 64}, r"compression\.keep: 64 is not less than the 64 the model has"),
        ("heads", {"keep": 4}, "4 is not less than the 4"),
        ("magnitude", {"sparsity": 0.4}, r"\.sparsity: 50\.0% of the weights are zero already"),
    ],
)
def test_invalid_requests_are_refused_before_any_work(sparse, smaller, tmp_path, method, settings, message):
    with pytest.raises(ConfigError, match=message):
        smaller(sparse, method, **settings)
    assert not (tmp_path / "smaller" / "model").exists()


def test_change_without_a_run_is_refused(qa_arch):
    code, _, err = qa_arch("train", "compression=layers", "compression.keep=2")
    assert code == 2
    assert err == "qa-arch: compression: changes a trained model; give its run with init_from=RUN\n"


# Models and commands


@pytest.mark.slow
def test_run_with_fewer_heads_exports_to_onnx_but_not_to_hf(parent, smaller, tmp_path, unchecked_shapes):
    folder = smaller(parent, "heads", keep=2, windows=8)
    predictor = load_predictor(folder, device="cpu")
    description = json.loads((folder / "model" / "encoder.json").read_text())
    assert description["fewer_heads"]["heads"] == 2
    assert description["num_attention_heads"] == 4
    with pytest.raises(ConfigError, match="with pruned heads"):
        export_hf(predictor, tmp_path / "hf")
    narrow = load_predictor(smaller(parent, "widths", name="narrow", keep=24, windows=8), device="cpu")
    export_hf(narrow, tmp_path / "narrow-hf")
    assert json.loads((tmp_path / "narrow-hf" / "config.json").read_text())["intermediate_size"] == 24
    assert export_onnx(predictor, tmp_path / "graph").largest_difference < 1e-4


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked_shapes")
def test_runs_are_measured_by_engine_and_record_their_costs(parent, smaller, tmp_path, monkeypatch, capsys):
    """A tiny run, a part of its layers, and its graph in int8."""
    from benchmarks import compression

    copy = shutil.copytree(parent, tmp_path / parent.name)
    export_onnx(load_predictor(copy, device="cpu"), tmp_path / "graph", precision="int8")
    folders = (copy, smaller(copy, "layers", keep=2), tmp_path / "graph")
    runs = full, layers, graph = [str(folder) for folder in folders]
    measured: list[tuple[str, ...]] = []

    def measure(what, runs, args):
        measured.append((what, *runs))
        return compression.CHILDREN[what](Namespace(**{**vars(args), "runs": runs}))

    monkeypatch.setattr(compression, "_run_child", measure)
    options = ["--data", "synthetic:dev", "--questions", "3", "--repeats", "2", "--precision", "bf16"]
    assert compression.main([layers, graph, "--baseline", full, *options]) == 0
    assert measured[:2] == [("latency", full, layers), ("latency", graph)]
    assert measured[2:] == [("memory", run) for run in runs]
    costs = [read_record(run).cost for run in runs]
    assert {cost.baseline for cost in costs} == {f"{copy.name} ({read_record(full).run_hash[:8]})"}
    assert [cost.engine for cost in costs] == ["torch", "torch", "onnx"]
    assert [cost.precision for cost in costs] == ["bf16", "bf16", "int8"]
    assert all(cost.latency_ms > 0 and cost.latency_ratio > 0 for cost in costs)
    assert (costs[0].memory_ratio, costs[0].questions, costs[0].repeats) == (1.0, 3, 2)
    assert "× latency" in capsys.readouterr().out
