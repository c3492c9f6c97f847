"""A torch span model as an ONNX graph, by ``torch.onnx.export``; and that graph in int8."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qa_arch.data.synthetic import generate
from qa_arch.errors import ConfigError, UnavailableError
from qa_arch.features.collate import Collator
from qa_arch.features.glove import vector_rows
from qa_arch.models.onnx_model import INPUTS, OUTPUTS
from qa_arch.tasks.reading import device_of
from qa_arch.tasks.span_predictor import SpanPredictor
from qa_arch.types.tensors import Batch, SpanLogits

OPSET = 18
SAMPLE = 3
"""Windows that the model is traced with: more than one, which a trace would take for a constant."""


class _Flat(nn.Module):
    """The model with tensors in and tensors out; a verifier's score is part of ``null_start``."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        given: dict[str, Any] = dict.fromkeys(INPUTS) | dict(zip(self.names, tensors, strict=True))
        logits = self.model(Batch(index=torch.arange(tensors[0].shape[0]), **given))
        if not isinstance(logits, SpanLogits):
            return logits.token, logits.stop
        boundaries = logits.start, logits.end, logits.null - logits.null_end, logits.null_end
        return boundaries if logits.pair is None else (*boundaries, logits.pair)


def write_graph(path: Path, predictor: SpanPredictor) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Write the predictor's model to ``path``, with any number of windows of any length; (inputs, outputs).

    Inputs are the fields of ``Batch`` that the model reads. Weights up to 2 GB are in the file, larger ones
    in ``model.onnx.data`` beside it. Raises ConfigError for a model that cannot be traced or is not in fp32,
    UnavailableError without the packages.
    """
    translations = _translations()
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass

    if predictor.precision != "fp32" or device_of(predictor.model).type != "cpu":
        raise ConfigError("a graph is made of a model in fp32 on the CPU; load it so, and quantise the graph")
    batch = sample(predictor)
    names = tuple(name for name in INPUTS if getattr(batch, name) is not None)
    tensors = tuple(getattr(batch, name) for name in names)
    flat = _Flat(predictor.model, names).eval()
    with torch.no_grad(), _quiet():
        computed = flat(*tensors)
        outputs = next(outputs for outputs in OUTPUTS[::-1] if len(outputs) == len(computed))
        try:
            program = torch.onnx.export(
                flat,
                tensors,
                dynamo=True,
                input_names=names,
                output_names=outputs,
                dynamic_shapes=(tuple({0: "B", 1: "T"} for _ in names),),
                custom_translation_table=translations,
                opset_version=OPSET,
                verbose=False,
            )
        except (torch.onnx.errors.OnnxExporterError, RuntimeError) as error:
            raise ConfigError(
                f"{type(predictor.model).__name__}: this model cannot be traced into a graph"
                f" ({_cause(error)}); what it computes must not depend on sizes in Python (len, int, loops"
                " over units)"
            ) from error
    assert program is not None
    inputs = program.model.graph.inputs
    for value in list(inputs):
        if not value.uses():
            inputs.remove(value)
    ClearMetadataAndDocStringPass()(program.model)  # stack traces, with paths of this machine
    program.save(path)
    return tuple(str(value.name) for value in inputs), outputs


def quantise_graph(path: Path) -> None:
    """The graph at ``path`` in int8, in place: a scale for each column of a weight, one for all activations.

    The products of weights alone are quantised, whose zeros are exact; scores and recurrences stay fp32.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantised = path.with_suffix(".int8.onnx")
    with _quiet():
        quantize_dynamic(
            path,
            quantised,
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            weight_type=QuantType.QInt8,
            extra_options={"MatMulConstBOnly": True},
        )
    quantised.replace(path)


def sample(predictor: SpanPredictor) -> Batch:
    """Some windows of generated questions, which every model can read."""
    table = predictor.table(generate(1, 0), cache=False)
    return Collator(table, vector_rows(predictor.vectors, table), labels=False)(range(SAMPLE))


def _translations() -> Any:
    try:
        from qa_arch.export.translation import TRANSLATIONS
    except ImportError as error:
        raise UnavailableError(
            f"an ONNX graph needs onnx and onnxscript ({error}): pip install 'qa-arch[onnx]'"
        ) from error
    return TRANSLATIONS


def _cause(error: BaseException) -> str:
    """The first line of the innermost exception."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporters' notes on other packages and on names of axes."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
