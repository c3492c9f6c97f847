"""Products and lookups of an int8 graph are those of the rounded values, token by token."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="pip install -e '.[onnx]'")
pytest.importorskip("onnxruntime", reason="pip install -e '.[onnx]'")
from qa_arch.export.onnx import OPSET, quantise  # noqa: E402  after the skip
from qa_arch.models.onnx_model import _session  # noqa: E402

FLOAT, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


def save_graph(path, operator, constant, name, shape, kind=FLOAT, **options):
    """A graph of one operator, of the input ``name`` and a constant."""
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(operator, ["w", name] if operator == "Gather" else [name, "w"], ["y"])],
        "one",
        [value(name, kind, shape)],
        [value("y", FLOAT, None)],
        [onnx.numpy_helper.from_array(constant, "w")],
    )
    opset = [onnx.helper.make_opsetid("", OPSET)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=8), path, **options)


@pytest.fixture
def run(tmp_path):
    """``run(operator, constant, x)`` -> output of a graph of one operator, quantised."""

    def run(operator, constant, x):
        kind = INT64 if x.dtype == np.int64 else FLOAT
        save_graph(tmp_path / "g.onnx", operator, constant, "x", x.shape, kind)
        quantise(tmp_path / "g.onnx")
        session = _session(tmp_path / "g.onnx")
        assert session.get_session_options().get_session_config_entry("session.x64quantprecision") == "1"
        return session.run(None, {"x": x})[0]

    return run


def rounded(values, axis):
    """The values in 127 steps on either side of zero, along an axis."""
    step = np.maximum(np.abs(values).max(axis, keepdims=True), 1e-12) / 127
    return np.rint(values / step) * step


def test_product_is_that_of_rounded_values(run):
    random = np.random.default_rng(3)
    x = random.normal(size=(2, 5, 24)).astype(np.float32)
    x *= np.array([0.01, 1.0, 30.0, 0.0, 4.0], np.float32)[:, None]  # each token has its own scale
    weight = random.normal(size=(24, 40)).astype(np.float32)
    actual = run("MatMul", weight, x)
    np.testing.assert_allclose(actual, rounded(x, -1) @ rounded(weight, 0), rtol=1e-4, atol=1e-4)
    assert np.array_equal(actual[:1, 1:2], run("MatMul", weight, x[:1, 1:2])), "alone as in its batch"


def test_products_that_share_a_weight_have_integers_of_their_own(tmp_path):
    """ONNX Runtime fails on shared ones without VNNI."""
    path = tmp_path / "g.onnx"
    save_graph(path, "MatMul", np.eye(24, dtype=np.float32), "x", (2, 24))
    model = onnx.load(path)
    model.graph.node.append(onnx.helper.make_node("MatMul", ["y", "w"], ["z"]))
    onnx.save(model, path)
    quantise(path)
    products = [node for node in onnx.load(path).graph.node if node.op_type == "MatMulIntegerToFloat"]
    assert len(products) == len({node.input[1] for node in products}) == 2


@pytest.mark.parametrize("sign", [1, -1])
def test_sums_of_the_largest_terms_are_exact(run, sign):
    """A processor without VNNI adds two products in 16 bits, unless it is told not to."""
    x, weight = np.full((3, 512), 127, np.float32), np.full((512, 32), sign * 127, np.float32)
    weight[:, ::2] *= -1
    assert np.array_equal(run("MatMul", weight, x), x @ weight)


def test_lookups_have_a_scale_per_row(run):
    table = np.random.default_rng(0).normal(size=(30, 16)).astype(np.float32)
    table *= np.float32(10.0) ** np.arange(30, dtype=np.float32)[:, None]
    ids = np.array([[0, 29, 7]])
    np.testing.assert_allclose(run("Gather", table, ids), rounded(table, 1)[ids], rtol=1e-5)


def test_small_matrices_stay_in_fp32(run):
    x, weight = np.random.default_rng(0).normal(size=(2, 3, 24)).astype(np.float32), np.eye(24, 2)
    assert np.array_equal(run("MatMul", weight.astype(np.float32), x), x @ weight.astype(np.float32))


def test_weights_beside_a_large_graph_do_not_stay_in_fp32(tmp_path):
    weight, beside = np.eye(64, dtype=np.float32), {"save_as_external_data": True, "location": "g.onnx.data"}
    save_graph(tmp_path / "g.onnx", "MatMul", weight, "x", [1, 64], **beside)
    assert len(list(tmp_path.iterdir())) == 2
    quantise(tmp_path / "g.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["g.onnx"]
    x = np.arange(64, dtype=np.float32)[None] / 63 * 127
    np.testing.assert_allclose(_session(tmp_path / "g.onnx").run(None, {"x": x})[0], np.rint(x), rtol=1e-6)
