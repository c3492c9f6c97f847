"""Graphs whose outputs are not the logits of a span model are refused."""

import pytest
import torch

from qa_arch.errors import RunError
from qa_arch.models.onnx_model import BOUNDARIES, Description, OnnxModel
from qa_arch.tensors import Batch

onnx = pytest.importorskip("onnx", reason="pip install -e '.[onnx]'")
pytest.importorskip("onnxruntime", reason="pip install -e '.[onnx]'")
FLOAT, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


def model(folder, kind=FLOAT, start=1, null=2, rank=2):
    """A graph whose logits are the ids and their sums, with more axes than in a model if told so."""
    node, value = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    axes = {"last": [-1], "new": [2]}
    nodes = [
        node("Cast", ["ids"], ["logits"], to=kind),
        node("Identity", ["logits"], ["end"]),
        node("Unsqueeze", ["logits", "new"], ["start"])
        if start > 1
        else node("Identity", ["logits"], ["start"]),
        node("ReduceSum", ["logits", "last"], ["null_start"], keepdims=int(null == 1)),
        node("Identity", ["null_start"], ["null_end"]),
    ]
    constants = [onnx.helper.make_tensor(name, INT64, [1], values) for name, values in axes.items()]
    inputs = [value("ids", INT64, ["B", "T", "extra"][:rank])]
    outputs = [value(name, kind, None) for name in BOUNDARIES]
    graph = onnx.helper.make_graph(nodes, "span", inputs, outputs, constants)
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=8), folder / "model.onnx")
    facts = {"segments": False, "precision": "fp32", "opset": 17, "versions": {}}
    return OnnxModel(folder / "model.onnx", Description(inputs=("ids",), outputs=BOUNDARIES, **facts))


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        ({"start": 2}, r"start is float32 of shape \(2, 3, 1\), not float32 \(B, T\)"),
        ({"null": 1}, r"null_start is float32 of shape \(2, 1\), not float32 \(B\)"),
        ({"kind": INT64}, r"start is int64 of shape \(2, 3\)"),
        ({"rank": 3}, r"Invalid rank for input: ids"),
    ],
)
def test_graph_of_other_outputs_is_refused(tmp_path, graph, message):
    ids, flags = torch.arange(6).view(2, 3), torch.ones(2, 3, dtype=torch.bool)
    batch = Batch(ids[:, 0], ids, flags, None, question=flags, context=flags, word=ids, overlap=flags)
    assert model(tmp_path)(batch).null.tolist() == [6, 24]
    with pytest.raises(RunError, match=rf"model\.onnx: cannot be run \(.*{message}.*\); export the"):
        model(tmp_path, **graph)(batch)
