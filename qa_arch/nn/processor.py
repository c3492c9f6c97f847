"""Fast paths of this processor: each is tried here, once a process, before it is used.

Without VNNI the kernels of oneDNN and ONNX Runtime add two products of an unsigned and a signed byte in 16
bits, which saturate: 2 * 255 * 127 > 32767. ``ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2`` makes such
a processor of a newer one (of torch, not of ONNX Runtime).

Axes: ``R`` rows, ``D`` terms of a sum, ``N`` columns.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from jaxtyping import Float, Int8, UInt8
from torch import Tensor, nn

from qa_arch.errors import UnavailableError

LARGEST = 127
"""Largest magnitude in int8: the range is symmetric, so that zero is exact."""
UNSIGNED = 128
"""Added to inputs: oneDNN has its fast kernel for unsigned ones everywhere, for signed ones not on every CPU
(on a Zen 5 these took 700 times as long as fp32), and takes it off again inside the exact sums."""
SHAPES = ((1, 33, 5), (40, 384, 64))
"""Rows, terms and columns of a proof: a single row with odd ends, and the blocks of a real product."""
Product = Callable[[Float[Tensor, "R D"], Tensor, Float[Tensor, "N"]], Float[Tensor, "R N"]]
"""Whole numbers from -127 to 127, packed weights, the scale of each column: the sums times the scales."""
log = logging.getLogger(__name__)


def pack(weight: Int8[Tensor, "N D"]) -> Tensor:
    """``weight`` as the products below take it; UnavailableError where torch has no kernel for int8."""
    try:
        return torch.ops.onednn.qlinear_prepack(weight, None)
    except (AttributeError, NotImplementedError, RuntimeError) as error:
        raise UnavailableError(
            f"precision int8: torch {torch.__version__} has no int8 kernel here"
            f" ({str(error).splitlines()[0]}); use bf16 or fp32"
        ) from error


def shifted(rows: Float[Tensor, "R D"], packed: Tensor, scale: Float[Tensor, "N"]) -> Float[Tensor, "R N"]:
    """One product, of the rows moved up to 1 ... 255, in place."""
    return _sums(rows.add_(UNSIGNED).to(torch.uint8), UNSIGNED, packed, scale)


def halved(rows: Float[Tensor, "R D"], packed: Tensor, scale: Float[Tensor, "N"]) -> Float[Tensor, "R N"]:
    """The product of the positive numbers less that of the negative: 2 * 127 * 127 fits in 16 bits."""
    parts = torch.cat([rows, -rows]).clamp_(min=0).to(torch.uint8)
    positive, negative = _sums(parts, 0, packed, scale).chunk(2)
    return positive - negative


def _sums(
    rows: UInt8[Tensor, "R D"], zero: int, packed: Tensor, scale: Float[Tensor, "N"]
) -> Float[Tensor, "R N"]:
    none = torch.zeros(len(scale), dtype=torch.int64)
    return torch.ops.onednn.qlinear_pointwise(
        rows, 1.0, zero, packed, scale, none, None, 1.0, 0, torch.float32, "none", [], "none"
    )


@cache
def int8_product() -> Product:
    """The fastest product that is exact here; UnavailableError where none is."""
    if _exact(shifted):
        return shifted
    if not _exact(halved):
        raise UnavailableError("precision int8: no int8 product is exact on this processor; use fp32")
    log.info("int8: products saturate on this processor; they are computed in two halves, which are exact")
    return halved


def _exact(product: Product) -> bool:
    """Whether every entry is the right one, where all terms are as large as they get and of either sign."""
    for R, D, N in SHAPES:
        rows, weight = torch.full((R, D), float(LARGEST)), torch.full((N, D), LARGEST, dtype=torch.int8)
        rows[1::2] *= -1
        weight[1::2] *= -1
        if not torch.equal(product(rows.clone(), pack(weight), torch.ones(N)), rows @ weight.float().T):
            return False
    return True


@cache
def onnx_int8() -> dict[str, str]:
    """Settings of a session of ONNX Runtime under which its int8 products are exact here.

    Where signed weights saturate it makes them unsigned. UnavailableError where that does not help.
    """
    unsigned = {"session.x64quantprecision": "1"}
    if _exact_in_onnx({}):
        return {}
    if not _exact_in_onnx(unsigned):
        raise UnavailableError(
            "ONNX Runtime's int8 product is not exact on this processor; use a graph in fp32"
        )
    log.info("ONNX int8: signed weights saturate on this processor; ONNX Runtime reads them as unsigned ones")
    return unsigned


def _exact_in_onnx(settings: dict[str, str]) -> bool:
    """The same as ``_exact`` for the nodes that ``quantize_dynamic`` makes of a product."""
    try:
        import numpy as np
        import onnxruntime
        from onnx import TensorProto, helper, numpy_helper
    except ImportError as error:
        raise UnavailableError(
            f"a graph in int8 needs ONNX ({error}): pip install 'qa-arch[onnx]'"
        ) from error
    for R, D, N in SHAPES:
        rows, weight = np.full((R, D), 255, np.float32), np.full((D, N), LARGEST, np.int8)
        rows[:, 0] = 0  # rows from 0 to 255 are themselves in bytes
        weight[:, 1::2] *= -1
        nodes = [
            helper.make_node("DynamicQuantizeLinear", ["x"], ["bytes", "scale", "zero"]),
            helper.make_node("MatMulInteger", ["bytes", "w", "zero"], ["sums"]),
            helper.make_node("Cast", ["sums"], ["floats"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["floats", "scale"], ["y"]),
        ]
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xy"]
        graph = helper.make_graph(nodes, "proof", ends[:1], ends[1:], [numpy_helper.from_array(weight, "w")])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), session_options(settings), providers=["CPUExecutionProvider"]
        )
        if not np.array_equal(session.run(None, {"x": rows})[0], rows @ weight.astype(np.float32)):
            return False
    return True


def session_options(settings: dict[str, str]) -> Any:
    """Session options of ONNX Runtime, with as many threads as torch."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.enable_mem_pattern = False  # a plan for each shape of a batch: 40% more memory, no time
    for name, value in settings.items():
        options.add_session_config_entry(name, value)
    return options


@cache
@torch.compiler.disable
def lstm_in_bf16() -> bool:
    """Whether torch's LSTM runs on this CPU under bf16 autocast and gives about what it gives in fp32."""
    with torch.inference_mode(False), torch.enable_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        x, reader = torch.randn(3, 5, 8), nn.LSTM(8, 8, batch_first=True)
        try:
            with torch.autocast("cpu", torch.bfloat16):
                states = reader(x)[0]
            states.sum().backward()
            with torch.autocast("cpu", enabled=False):
                right = torch.allclose(states.float(), reader(x)[0], atol=0.02)
        except RuntimeError:
            right = False
    if not right:
        log.info("bf16: this processor has no LSTM in bf16; LSTMs run in fp32")
    return right


@cache
def bf16_is_faster() -> bool:
    """Whether a product in bf16 takes less time on this CPU than in fp32, and is not only emulated."""
    x, weight = torch.ones(128, 256), torch.ones(256, 256)
    fp32, bf16 = (_seconds(x.to(kind), weight.to(kind)) for kind in (torch.float32, torch.bfloat16))
    return bf16 < fp32


def _seconds(x: Tensor, weight: Tensor) -> float:
    """The shortest of a few products; the first ones warm up."""
    taken = []
    for _ in range(8):
        began = time.perf_counter()
        nn.functional.linear(x, weight)
        taken.append(time.perf_counter() - began)
    return min(taken)


def engine(library: str, precision: str) -> str:
    """``torch fp32``; an int8 product that is not the fastest one is named: ``torch int8 in halves``."""
    path = ""
    if precision == "int8" and "torch" in library and int8_product() is halved:
        path += " in halves"
    if precision == "int8" and "onnx" in library and onnx_int8():
        path += " as u8u8"
    return f"{library} {precision}{path}"
