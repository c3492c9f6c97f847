"""``qa-arch export --to onnx``: the folder of a graph is scored and asked like the run it was made from."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from qa_arch.models.onnx_model import DESCRIPTION
from qa_arch.records import GRAPH, find_runs, read_record

TEXT = "The song was written by Ada Stone in 1971."
QUESTION = ("--question", "Who wrote it?", "--context", TEXT, "--null-threshold", "inf")


@pytest.fixture(scope="session")
def exported(trained, tmp_path_factory) -> tuple[Path, str]:
    """The graph of the trained run, and what the command printed. Do not change it."""
    folder = tmp_path_factory.mktemp("exported") / "graph"
    arguments = ["export", str(trained), "--to", "onnx", "--out", str(folder)]
    call = [sys.executable, "-m", "qa_arch", *arguments]
    done = subprocess.run(call, stdout=subprocess.PIPE, text=True, timeout=400, check=True)
    return folder, done.stdout


@pytest.fixture
def graph(exported) -> Path:
    return exported[0]


def test_export_prints_its_check_and_the_sizes(exported):
    folder, out = exported
    checked = r"checked on \d+ questions of \S+: logits within \S+e-\d+, \d+ of the answers the same; EM"
    assert re.search(checked, out)
    assert out.splitlines()[-1].endswith(f"MB  {folder}")
    assert {path.name for path in folder.iterdir()} == {GRAPH, DESCRIPTION, "run.json", "tokenizer"}
    assert [path for path, _ in find_runs([folder])] == [folder]


def test_graph_scores_as_its_run_and_records_the_engine(qa_arch, trained, graph):
    outputs = [qa_arch("evaluate", "--json", "--run", run) for run in (trained, graph)]
    assert [code for code, _, _ in outputs] == [0, 0], outputs
    torch_points, graph_points = (json.loads(out) for _, out, _ in outputs)
    assert {point.engine for point in read_record(graph).scores["dev"].values()} == {"onnx fp32"}
    assert {point.pop("engine") for point in graph_points.values()} == {"onnx fp32"}
    assert {point.pop("engine") for point in torch_points.values()} == {"torch fp32"}
    for name, point in torch_points.items():
        assert graph_points[name]["exact"] == point["exact"]
        assert graph_points[name]["f1"] == pytest.approx(point["f1"], abs=1e-9)


def test_graph_is_asked_and_predicts(qa_arch, trained, graph, tmp_path):
    data = tmp_path / "data.jsonl"
    data.write_text(json.dumps({"question": "Who wrote it?", "context": TEXT}) + "\n")
    answers = []
    for run in (trained, graph):
        code, out, err = qa_arch("predict", run, "--data", data, "--out", "-")
        assert code == 0, err
        answers.append(json.loads(out)["spans"][0]["text"])
        assert qa_arch("ask", run, *QUESTION)[0] == 0
    assert answers[0] == answers[1] != ""


SLOW_IMPORTS = (
    "transformers.models",
    "transformers.modeling_utils",
    "torch._dynamo",
    "pytorch_lightning",
    "datasets",
)


@pytest.mark.slow
def test_asking_a_graph_or_a_match_lstm_imports_no_transformer_and_no_compiler(graph):
    """They take half of the time in which a small model answers."""
    program = f"""
import sys
import qa_arch.nn.match_lstm
from qa_arch.cli.main import main
code = main(["ask", {str(graph)!r}, *{QUESTION}])
sys.exit(code or ", ".join(name for name in {SLOW_IMPORTS} if name in sys.modules) or 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
