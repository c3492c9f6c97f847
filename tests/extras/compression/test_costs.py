"""Costs of compressed runs: measured in turn with the baseline, and written to their records."""

from argparse import Namespace

import pytest

from benchmarks import compression
from qa_arch.export.onnx import export_onnx
from qa_arch.qa.loading import load_predictor
from qa_arch.records import read_record


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked_shapes")
def test_runs_are_measured_by_engine_and_record_their_costs(
    run_folder, smaller, tmp_path, monkeypatch, capsys
):
    """A tiny run, a part of its layers, and its graph in int8."""
    export_onnx(load_predictor(run_folder, device="cpu"), tmp_path / "graph", precision="int8")
    folders = (run_folder, smaller(run_folder, "layers", keep=2), tmp_path / "graph")
    runs = parent, layers, graph = [str(folder) for folder in folders]
    measured: list[tuple[str, tuple[str, ...]]] = []

    def measure(what, runs, args):
        measured.append((what, tuple(runs)))
        return compression.CHILDREN[what](Namespace(**{**vars(args), "runs": runs}))

    monkeypatch.setattr(compression, "_run_child", measure)
    options = ["--baseline", parent, "--data", "synthetic:dev", "--questions", "3", "--repeats", "2"]
    options += ["--precision", "bf16"]
    assert compression.main([layers, graph, *options]) == 0
    assert measured == [
        ("latency", (parent, layers)),
        ("latency", (graph,)),
        *(("memory", (run,)) for run in runs),
    ]
    costs = [read_record(run).cost for run in runs]
    baseline = f"{run_folder.name} ({read_record(parent).run_hash[:8]})"
    assert {cost.baseline for cost in costs} == {baseline}
    assert [cost.engine for cost in costs] == ["torch", "torch", "onnx"]
    assert [cost.precision for cost in costs] == ["bf16", "bf16", "int8"]
    assert all(cost.latency_ms > 0 and cost.latency_ratio > 0 for cost in costs)
    assert costs[0].memory_ratio == 1.0
    assert (costs[0].questions, costs[0].repeats) == (3, 2)
    output = capsys.readouterr().out
    assert "bert-layers2" in output
    assert "× latency" in output
