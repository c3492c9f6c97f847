"""Model files and graphs of others are read or refused in one line, and none of them runs code."""

import math
import shutil
import subprocess
import sys
from contextlib import contextmanager
from functools import partial

import pytest
from broken_records import change_json
from checkpoints import make_checkpoint
from shapes import unchecked_shapes

from qa_arch.cli.main import main
from qa_arch.errors import QaArchError
from qa_arch.qa.loading import load_predictor

onnx = pytest.importorskip("onnx", reason="pip install -e '.[onnx]'")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
TEXT = "The song was written by Ada Stone in 1971. "
RUNS_CODE = {
    *("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect"),
    "pickle.find_class",
}
"""Audit events of a process that runs what a file names, or connects to it."""
TRAP = {"auto_map": {name: f"trap.{name}" for name in ("AutoConfig", "AutoModel", "AutoTokenizer")}}
CONFIG = [
    *({"hidden_size": value} for value in (10**6, 10**30, -1, 0, "many", [3])),
    *({"model_type": "evil"}, {"hidden_act": "os.system"}, {"attn_implementation": "a/kernel"}),
    *(TRAP, {"quantization_config": {"quant_method": "gptq"}}, {"torchscript": True}),
]
TOKENIZER = [{"model": {"type": "Unigram", "vocab": [["a", math.nan]]}}, {"normalizer": {"type": "Lua"}}]
TOKENIZER_CONFIG = [TRAP, {"tokenizer_class": "os.system"}, {"chat_template": "{{ ''.__class__ }}"}]


def graph(path, change):
    model = onnx.load(path)
    change(model.graph)
    path.write_bytes(model.SerializeToString())  # onnx.save refuses some of the changes


def through(graph, operator, inputs=(), **attributes):
    """Compute the first output by ``operator`` from what it was."""
    name = graph.output[0].name
    for node in graph.node:
        node.output[:] = [f"{name}_before" if output == name else output for output in node.output]
    graph.initializer.append(onnx.helper.make_tensor("two", onnx.TensorProto.INT64, [1], [2]))
    graph.node.append(onnx.helper.make_node(operator, [f"{name}_before", *inputs], [name], **attributes))
    graph.output[0].type.tensor_type.ClearField("shape")


def external(graph):
    tensor = graph.initializer[0]
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../../../../../etc/passwd")


def constant(graph, value):
    for tensor in graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        if array.dtype.kind == "f":
            tensor.CopyFrom(onnx.numpy_helper.from_array(array * 0 + array.dtype.type(value), tensor.name))


def dimension(values, size, number=0):
    values[0].type.tensor_type.shape.dim[number].Clear()
    values[0].type.tensor_type.shape.dim[number].dim_value = size


GRAPHS = [
    partial(through, operator="Unsqueeze", inputs=["two"]),
    partial(through, operator="Cast", to=onnx.TensorProto.INT64),
    partial(through, operator="ReduceSum", keepdims=1),
    partial(through, operator="Evil", domain="evil.ops"),
    partial(through, operator="Loop"),
    external,
    partial(constant, value=math.nan),
    partial(constant, value=math.inf),
    lambda graph: graph.input[0].type.tensor_type.shape.dim.add(),
    lambda graph: dimension(graph.input, 1),
    lambda graph: dimension(graph.input, 7, 1),
    lambda graph: dimension(graph.output, 7, 1),
    lambda graph: graph.input.pop(),
    lambda graph: graph.output.pop(),
    lambda graph: graph.node.pop(),
]
CASES = [
    *((folder, name, partial(change_json, **values))
      for (folder, name), tables in {
          ("run", "model/encoder.json"): CONFIG, ("checkpoint", "config.json"): CONFIG,
          ("run", "model/tokenizer/tokenizer.json"): TOKENIZER, ("checkpoint", "tokenizer.json"): TOKENIZER,
          ("run", "model/tokenizer/tokenizer_config.json"): TOKENIZER_CONFIG,
          ("checkpoint", "tokenizer_config.json"): TOKENIZER_CONFIG,
      }.items() for values in tables),
    *(("graph", "model.onnx", partial(graph, change=change)) for change in GRAPHS),
]  # fmt: skip
watched: list[str] | None = None


def watch(event, arguments):
    if watched is not None and event in RUNS_CODE and arguments[0] != "git":  # our own, for the commit
        watched.append(f"{event} {arguments}")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A run, a checkpoint and a graph, each loaded once, which imports what their libraries need."""
    folder = tmp_path_factory.mktemp("models")
    small = ["debug=fast", "encoder.initializer_range=0.2", "features.cache_dir=null"]
    assert main(["train", "model=bert", *small, "--folder", str(folder / "run")]) == 0
    with unchecked_shapes():
        assert main(["export", str(folder / "run"), "--to", "onnx", "--out", str(folder / "graph")]) == 0
    make_checkpoint("bert", folder / "checkpoint", [TEXT])
    for name in ("run", "graph", "checkpoint"):
        load_predictor(folder / name, device="cpu")("Who wrote it?", TEXT)
    sys.addaudithook(watch)
    return folder


@contextmanager
def watching():
    global watched
    watched = []
    try:
        yield watched
    finally:
        watched = None


@pytest.mark.parametrize(("kind", "name", "damage"), CASES)
def test_hostile_files_are_refused_or_read_without_running_code(models, tmp_path, kind, name, damage):
    folder = shutil.copytree(models / kind, tmp_path / kind)
    (folder / "trap.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    damage(folder / name)
    message = ""
    with watching() as events:
        try:
            load_predictor(folder, device="cpu").predict([("Who wrote it?", TEXT * 4), ("a" * 50, "b" * 50)])
        except QaArchError as error:
            message = str(error)
    assert "\n" not in message
    assert events == []
    assert not (tmp_path / "ran").exists()


def test_the_watch_sees_code():
    with watching() as events:
        subprocess.run(["true"], check=True)
    assert events
