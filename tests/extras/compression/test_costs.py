"""Costs of smaller runs: measured in turn with the baseline, and written into their records."""

from __future__ import annotations

from argparse import Namespace

import pytest
from jaxtyping import config as shapes
from steps import step

from benchmarks import compression
from qa_arch.cli.compose import compose
from qa_arch.config.schema import validate
from qa_arch.export.onnx_folder import export_onnx
from qa_arch.extras.compression.runs import Request, compress
from qa_arch.records import read_record
from qa_arch.spans.loading import load_predictor
from qa_arch.training.run import train


@pytest.fixture
def runs(tmp_path):
    """A tiny run, the same in int8, and as a graph."""
    small = ["model=bert", "debug=fast", "features.cache_dir=null", "trainer.max_steps=1", "data.dev=null"]
    parent = tmp_path / "parent"
    parent.mkdir()
    train(validate(compose([*small, "trainer.progress=false"])), folder=parent)
    compress(Request(parent, tmp_path / "int8", step("int8")))
    shapes.update("jaxtyping_disable", True)
    try:
        export_onnx(load_predictor(parent, device="cpu"), tmp_path / "graph", precision="int8")
    finally:
        shapes.update("jaxtyping_disable", False)
    return [str(tmp_path / name) for name in ("parent", "int8", "graph")]


@pytest.mark.slow
def test_each_run_is_measured_by_its_engine_and_says_what_it_costs(runs, monkeypatch, capsys):
    asked: list[tuple[str, tuple[str, ...]]] = []

    def child(what, own, args):
        asked.append((what, tuple(own)))
        return compression.CHILDREN[what](Namespace(**{**vars(args), "runs": own}))

    monkeypatch.setattr(compression, "_child", child)
    parent, int8, graph = runs
    options = ["--baseline", parent, "--data", "synthetic:dev", "--questions", "3", "--repeats", "2"]
    options += ["--precision", "bf16"]
    assert compression.main([int8, graph, *options]) == 0
    assert asked == [
        ("latency", (parent, int8)),
        ("latency", (graph,)),
        *(("memory", (run,)) for run in runs),
    ]
    costs = [read_record(run).cost for run in runs]
    baseline = f"parent ({read_record(parent).config_hash[:8]})"
    assert {cost.baseline for cost in costs} == {baseline}
    assert [cost.engine for cost in costs] == ["torch", "torch", "onnx"]
    assert [cost.precision for cost in costs] == ["bf16", "int8", "int8"]
    assert all(cost.latency_ms > 0 and cost.latency_ratio > 0 for cost in costs)
    assert costs[0].memory_ratio == 1.0
    assert (costs[0].questions, costs[0].repeats) == (3, 2)
    output = capsys.readouterr().out
    assert "bert-int8" in output
    assert "× latency" in output
