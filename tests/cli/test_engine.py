"""``qa-arch export`` and ``--engine``: an exported graph replaces torch if it has the weights of its run."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from shapes import unchecked_shapes

from qa_arch.cli.main import main
from qa_arch.models.onnx_model import DESCRIPTION
from qa_arch.records import GRAPH, MODEL, ONNX, find_runs, read_record

TEXT = "The song was written by Ada Stone in 1971."
QUESTION = ("--question", "Who wrote it?", "--context", TEXT, "--null-threshold", "inf")
USES_ONNX = "using ONNX Runtime"


@pytest.fixture(scope="session")
def run_with_graph(trained, tmp_path_factory) -> Path:
    """The trained run with its exported graph inside. Do not change it."""
    folder = Path(shutil.copytree(trained, tmp_path_factory.mktemp("graph") / trained.name))
    with unchecked_shapes():
        assert main(["export", str(folder), "--to", "onnx"]) == 0
    return folder


@pytest.fixture
def qa_arch(qa_arch, caplog):
    """``qa_arch(*arguments)`` -> exit code, stdout, stderr and log."""
    caplog.set_level("INFO", "qa_arch")

    def call(*arguments):
        caplog.clear()
        code, out, err = qa_arch(*arguments)
        return code, out, "\n".join([err, *caplog.messages])

    return call


@pytest.fixture
def run(run_with_graph, tmp_path) -> Path:
    """A copy of ``run_with_graph`` that tests may change."""
    return Path(shutil.copytree(run_with_graph, tmp_path / run_with_graph.name))


def change_weights(run: Path) -> None:
    """Scale the weights, as if the run had been trained again."""
    path = run / MODEL / "model.safetensors"
    save_file({name: value * 1.01 for name, value in load_file(path).items()}, path)


def engine_of(run: Path) -> str:
    """Engine recorded with the dev scores."""
    (engine,) = {point.engine for point in read_record(run).scores["dev"].values()}
    return engine


def test_graph_inside_a_run_is_not_listed_as_a_run(run_with_graph):
    names = {path.name for path in (run_with_graph / ONNX).iterdir()}
    assert names == {GRAPH, DESCRIPTION, "tokenizer"}
    assert [folder for folder, _ in find_runs([run_with_graph])] == [run_with_graph]


def test_evaluate_uses_the_graph_and_records_the_engine(qa_arch, trained, run):
    assert engine_of(run) == "torch fp32"
    torch_points = json.loads(qa_arch("evaluate", "--json", "--run", run, "--engine", "torch")[1])
    assert engine_of(run) == "torch fp32"
    code, out, err = qa_arch("evaluate", "--json", "--run", run)
    assert code == 0, err
    assert err.count(USES_ONNX) == 1
    assert engine_of(run) == "onnx fp32"
    graph_points = json.loads(out)
    assert {point.pop("engine") for point in graph_points.values()} == {"onnx fp32"}
    assert {point.pop("engine") for point in torch_points.values()} == {"torch fp32"}
    for name, point in torch_points.items():
        assert graph_points[name]["exact"] == point["exact"]
        assert graph_points[name]["f1"] == pytest.approx(point["f1"], abs=1e-9)


@pytest.mark.parametrize("command", ["ask", "predict"])
def test_engine_option(qa_arch, run, tmp_path, command):
    data = tmp_path / "data.jsonl"
    data.write_text(json.dumps({"question": "Who wrote it?", "context": TEXT}) + "\n")
    rest = {"ask": QUESTION, "predict": ("--data", data, "--out", "-")}[command]
    outputs = {}
    for engine, uses_onnx in (("auto", True), ("onnx", True), ("torch", False)):
        code, out, err = qa_arch(command, run, *rest, "--engine", engine)
        assert code == 0, err
        assert (USES_ONNX in err) == uses_onnx
        outputs[engine] = out
    assert outputs["auto"] == outputs["onnx"] != ""


SLOW_IMPORTS = (
    "transformers.models",
    "transformers.modeling_utils",
    "torch._dynamo",
    "pytorch_lightning",
    "datasets",
)


@pytest.mark.slow
def test_asking_a_graph_or_a_match_lstm_imports_no_transformer_and_no_compiler(run_with_graph):
    """They take half of the time in which a small model answers."""
    program = f"""
import sys
import qa_arch.nn.match_lstm
from qa_arch.cli.main import main
code = main(["ask", {str(run_with_graph)!r}, "--engine", "onnx", *{QUESTION}])
sys.exit(code or ", ".join(name for name in {SLOW_IMPORTS} if name in sys.modules) or 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200)
    assert (done.returncode, USES_ONNX in done.stderr) == (0, True), done.stderr


def test_graph_of_other_weights_is_not_used(qa_arch, run):
    change_weights(run)
    code, _, err = qa_arch("evaluate", "--run", run)
    assert code == 0
    (line,) = [line for line in err.splitlines() if "using torch" in line]
    assert "from weights that have changed" in line
    assert engine_of(run) == "torch fp32"
    code, _, err = qa_arch("evaluate", "--run", run, "--engine", "onnx")
    assert code == 5
    assert f"export the run again: qa-arch export {run} --to onnx" in err


@pytest.mark.slow
def test_graph_is_exported_again_in_place(qa_arch, run):
    change_weights(run)
    with unchecked_shapes():
        code, out, err = qa_arch("export", run, "--to", "onnx")
    assert code == 0, err
    checked = r"checked on \d+ questions of \S+: logits within \S+e-\d+, \d+ of the answers the same"
    assert re.search(checked, out)
    assert out.splitlines()[-1].endswith(f"MB  {run / ONNX}")
    assert USES_ONNX in qa_arch("ask", run, *QUESTION)[2]


def test_other_precisions_use_torch(qa_arch, run):
    code, _, err = qa_arch("evaluate", "--run", run, "--precision", "bf16")
    assert code == 0
    assert "the graph is in fp32, not in bf16" in err
    assert "using torch" in err
    assert engine_of(run) == "torch bf16"
    assert qa_arch("ask", run, *QUESTION, "--precision", "bf16", "--engine", "onnx")[0] == 2


def test_torch_is_used_without_onnx_runtime(qa_arch, run, monkeypatch):
    monkeypatch.setattr("qa_arch.spans.loading.find_spec", lambda name: None)
    code, _, err = qa_arch("ask", run, *QUESTION)
    assert code == 0
    assert "ONNX Runtime is not installed" in err
    assert qa_arch("ask", run, *QUESTION, "--engine", "onnx")[0] == 6


@pytest.mark.parametrize("name", [GRAPH, DESCRIPTION])
def test_damaged_graph_is_reported_and_torch_is_used(qa_arch, run, name):
    (run / ONNX / name).write_bytes(b"no such thing")
    code, _, err = qa_arch("ask", run, *QUESTION)
    assert code == 0
    assert f"{ONNX}/{name}: cannot be" in err
    assert err.count("using torch") == 1


def test_graph_folder_has_no_weights_for_torch(qa_arch, run, tmp_path):
    graph = Path(shutil.copytree(run / ONNX, tmp_path / "graph"))
    shutil.copy(run / "run.json", graph)
    for engine in ("auto", "onnx"):
        assert qa_arch("ask", graph, *QUESTION, "--engine", engine)[0] == 0
    code, _, err = qa_arch("ask", graph, *QUESTION, "--engine", "torch")
    assert code == 2
    assert "holds a graph and no weights" in err
