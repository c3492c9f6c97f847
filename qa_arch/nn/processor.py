"""CPU fast paths (int8, bf16), each tested once per process before use.

Without VNNI, oneDNN and ONNX Runtime add two products of an unsigned and a signed byte in 16 bits, which can
saturate: 2 * 255 * 127 > 32767. ``ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2`` makes torch, but not
ONNX Runtime, behave that way on a newer CPU.

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

from qa_arch.errors import UnavailableError, first_line

LARGEST = 127
"""Largest int8 magnitude: the range is symmetric, so zero is exact."""
UNSIGNED = 128
"""Zero point added to inputs, which oneDNN subtracts again inside the exact sums.

oneDNN has a fast kernel for unsigned inputs on every CPU, but not for signed ones (700 times slower than fp32
on a Zen 5).
"""
SHAPES = ((1, 33, 5), (40, 384, 64))
"""(R, D, N) of the exactness tests: a single row of odd sizes, and the block sizes of a real product."""
Product = Callable[[Float[Tensor, "R D"], Tensor, Float[Tensor, "N"]], Float[Tensor, "R N"]]
"""(integers from -127 to 127, packed weights, scale per column) -> scaled sums."""
log = logging.getLogger(__name__)


def pack(weight: Int8[Tensor, "N D"]) -> Tensor:
    """Pack ``weight`` for the products below. Raises UnavailableError if torch has no int8 kernel."""
    try:
        return torch.ops.onednn.qlinear_prepack(weight, None)
    except (AttributeError, NotImplementedError, RuntimeError) as error:
        raise UnavailableError(
            f"precision int8: torch {torch.__version__} has no int8 kernel here"
            f" ({first_line(error)}); use bf16 or fp32"
        ) from error


def shifted_product(
    rows: Float[Tensor, "R D"], packed: Tensor, scale: Float[Tensor, "N"]
) -> Float[Tensor, "R N"]:
    """Product of the rows, shifted in place to 1 ... 255."""
    return _sums(rows.add_(UNSIGNED).to(torch.uint8), UNSIGNED, packed, scale)


def halved_product(
    rows: Float[Tensor, "R D"], packed: Tensor, scale: Float[Tensor, "N"]
) -> Float[Tensor, "R N"]:
    """Product of the positive part minus that of the negative part: 2 * 127 * 127 fits in 16 bits."""
    parts = torch.cat([rows, -rows]).clamp_(min=0).to(torch.uint8)
    positive, negative = _sums(parts, 0, packed, scale).chunk(2)
    return positive - negative


def _sums(
    rows: UInt8[Tensor, "R D"], zero_point: int, packed: Tensor, scale: Float[Tensor, "N"]
) -> Float[Tensor, "R N"]:
    zeros = torch.zeros(len(scale), dtype=torch.int64)
    return torch.ops.onednn.qlinear_pointwise(
        rows, 1.0, zero_point, packed, scale, zeros, None, 1.0, 0, torch.float32, "none", [], "none"
    )


@cache
def int8_product() -> Product:
    """Fastest product that is exact on this CPU. Raises UnavailableError if none is."""
    if _exact(shifted_product):
        return shifted_product
    if not _exact(halved_product):
        raise UnavailableError("precision int8: no int8 product is exact on this processor; use fp32")
    log.info("int8: products saturate on this processor; computing them in two exact halves")
    return halved_product


def _exact(product: Product) -> bool:
    """Whether the product is exact for terms of the largest magnitude and either sign."""
    for R, D, N in SHAPES:
        rows, weight = torch.full((R, D), float(LARGEST)), torch.full((N, D), LARGEST, dtype=torch.int8)
        rows[1::2] *= -1
        weight[1::2] *= -1
        if not torch.equal(product(rows.clone(), pack(weight), torch.ones(N)), rows @ weight.float().T):
            return False
    return True


@cache
def onnx_int8() -> dict[str, str]:
    """ONNX Runtime session settings under which its int8 products are exact on this CPU.

    They make the weights unsigned if signed ones saturate. Raises UnavailableError if that does not help.
    """
    unsigned = {"session.x64quantprecision": "1"}
    if _exact_in_onnx({}):
        return {}
    if not _exact_in_onnx(unsigned):
        raise UnavailableError(
            "ONNX Runtime's int8 product is not exact on this processor; use an fp32 graph"
        )
    log.info("ONNX int8: signed weights saturate on this processor; ONNX Runtime uses unsigned ones")
    return unsigned


def _exact_in_onnx(settings: dict[str, str]) -> bool:
    """``_exact`` for the graph nodes that ``quantize_dynamic`` produces for a matrix product."""
    try:
        import numpy as np
        import onnxruntime
        from onnx import TensorProto, helper, numpy_helper
    except ImportError as error:
        raise UnavailableError(f"an int8 graph needs ONNX ({error}): pip install 'qa-arch[onnx]'") from error
    for R, D, N in SHAPES:
        rows, weight = np.full((R, D), 255, np.float32), np.full((D, N), LARGEST, np.int8)
        rows[:, 0] = 0  # a range of 0 to 255 quantises to the same bytes
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
    """ONNX Runtime session options with as many threads as torch."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.enable_mem_pattern = False  # one plan per batch shape: 40% more memory, no gain in speed
    for name, value in settings.items():
        options.add_session_config_entry(name, value)
    return options


@cache
def lstm_in_bf16() -> bool:
    """Whether torch's LSTM runs on this CPU under bf16 autocast and agrees with fp32 up to rounding."""
    with torch.inference_mode(False), torch.enable_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        x, lstm = torch.randn(3, 5, 8), nn.LSTM(8, 8, batch_first=True)
        try:
            with torch.autocast("cpu", torch.bfloat16):
                states = lstm(x)[0]
            states.sum().backward()
            with torch.autocast("cpu", enabled=False):
                agrees = torch.allclose(states.float(), lstm(x)[0], atol=0.02)
        except RuntimeError:
            agrees = False
    if not agrees:
        log.info("bf16: this processor has no LSTM in bf16; LSTMs run in fp32")
    return agrees


@cache
def bf16_is_faster() -> bool:
    """Whether a bf16 matrix product is faster than fp32 on this CPU, i.e. not just emulated."""
    x, weight = torch.ones(128, 256), torch.ones(256, 256)
    fp32, bf16 = (_seconds(x.to(kind), weight.to(kind)) for kind in (torch.float32, torch.bfloat16))
    return bf16 < fp32


def _seconds(x: Tensor, weight: Tensor) -> float:
    """Shortest of a few timed products; the first ones are warm-up."""
    times = []
    for _ in range(8):
        start = time.perf_counter()
        nn.functional.linear(x, weight)
        times.append(time.perf_counter() - start)
    return min(times)


def engine(library: str, precision: str) -> str:
    """Label such as ``torch fp32``; a slower int8 product is named: ``torch int8 in halves``."""
    if precision == "int8" and "torch" in library and int8_product() is halved_product:
        precision += " in halves"
    elif precision == "int8" and "onnx" in library and onnx_int8():
        precision += " as u8u8"
    return f"{library} {precision}"
