"""``qa-arch export --to onnx``: a folder with a graph that ONNX Runtime runs in place of the torch model.

``torch.onnx.export`` turns a span model into a graph, with the translations at the end of this module. It
may be quantised, and is checked on real questions before the folder appears; ``models.onnx_model`` runs it.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import qa_arch.nn.match_lstm  # registers torch.ops.qa_arch
import qa_arch.nn.text_lstm  # noqa: F401
from qa_arch import provenance
from qa_arch.config.schema import Config
from qa_arch.config.target import OPTIONAL
from qa_arch.data.sources import open_passages
from qa_arch.data.splits import subset
from qa_arch.data.synthetic import generate
from qa_arch.errors import ConfigError, QaArchError, RunError, UnavailableError, first_line, install
from qa_arch.export import new_folder, sample
from qa_arch.features.batches import Collator
from qa_arch.features.vectors import vector_rows
from qa_arch.files import write_json
from qa_arch.metrics.squad import score
from qa_arch.models import store
from qa_arch.models.onnx_model import DESCRIPTION, INPUTS, OUTPUTS, Description, ExportCheck, OnnxModel
from qa_arch.nn.precision import Precision
from qa_arch.nn.reading import Watch, device_of, run_model
from qa_arch.qa.decoding import SpanCollector
from qa_arch.qa.ranking import Ranking
from qa_arch.qa.reader import Reader
from qa_arch.records import GRAPH, write_record
from qa_arch.tensors import Batch, Logits, SpanLogits, StepLogits, difference
from qa_arch.types import QuestionSet

try:
    import onnx
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass
    from onnxscript import BOOL, FLOAT, INT64, graph, script
    from onnxscript import opset18 as op
except ImportError as error:
    raise UnavailableError(f"an ONNX graph needs ONNX ({error}); {install('onnx')}") from error

OPSET, CONTRIB = 18, "com.microsoft"
"""Version of ONNX's operators, and the domain of those that only ONNX Runtime has."""
QUESTIONS = 200
MAX_DIFFERENCE = 1e-4
"""Largest difference allowed between logits of torch and of an fp32 graph."""
LARGEST, WIDE = 127, 16
"""Largest int8 magnitude, and the least width of a matrix that is quantised."""
MAX_TIES = 0.01
"""Share of answers that may still differ: spans with scores this close may swap ranks."""
log = logging.getLogger(__name__)


class _Flat(nn.Module):
    """The model with plain tensors as inputs and outputs, the latter in the order of ``OUTPUTS``."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        fields: dict[str, Any] = dict.fromkeys(INPUTS) | dict(zip(self.names, tensors, strict=True))
        logits = self.model(Batch(index=torch.arange(tensors[0].shape[0]), **fields))
        # Outputs are told apart by their number alone: two of a sequence, four or five of spans.
        if not isinstance(logits, SpanLogits):
            return logits.token, logits.stop
        scores = logits.start, logits.end, logits.null_start, logits.null_end
        if logits.verifier is None:
            return scores
        return *scores, logits.verifier_weight * logits.verifier


def write_graph(path: Path, predictor: Reader) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Write the model to ``path``, for windows of any number and length; return (inputs, outputs).

    Inputs are the fields of ``Batch`` that the model uses. Weights up to 2 GB are in the file, larger ones
    in ``model.onnx.data`` next to it. Raises ConfigError for a model that cannot be traced or is not in fp32.
    """
    if predictor.precision != "fp32" or device_of(predictor.model).type != "cpu":
        raise ConfigError(
            "only a model loaded in fp32 on the CPU can be traced; --precision int8 quantises its graph"
        )
    batch = sample(predictor)
    names = tuple(name for name in INPUTS if getattr(batch, name) is not None)
    tensors = tuple(getattr(batch, name) for name in names)
    flat = _Flat(predictor.model, names).eval()
    with torch.no_grad(), _quiet():
        expected = flat(*tensors)
        outputs = next(outputs for outputs in OUTPUTS[::-1] if len(outputs) == len(expected))
        try:
            program = torch.onnx.export(
                flat,
                tensors,
                dynamo=True,
                input_names=names,
                output_names=outputs,
                dynamic_shapes=(tuple({0: "B", 1: "T"} for _ in names),),
                custom_translation_table=TRANSLATIONS,
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
    # A model without segments or features leaves inputs that nothing reads.
    for value in list(inputs):
        if not value.uses():
            inputs.remove(value)
    ClearMetadataAndDocStringPass()(program.model)  # stack traces with local paths
    program.save(path)
    return tuple(str(value.name) for value in inputs), outputs


def quantise(path: Path) -> None:
    """Quantise the graph at ``path`` to int8 in place: x W = s_x (q_x q_w) s_w, exact sums in int32.

    q_w has a scale s_w per column, q_x a scale s_x per token (Yao et al. 2022, ZeroQuant, section 4.1), so
    that an answer does not depend on the other windows of its batch. Products with wide weights are
    quantised, and lookup tables, with a scale per row; all else stays in fp32.
    """
    model = onnx.load(path)
    quantised = _Quantised({tensor.name: tensor for tensor in model.graph.initializer})
    nodes = [part for node in model.graph.node for part in quantised.parts(node)]
    used = set(_inputs(nodes))
    tensors = [tensor for name, tensor in quantised.tensors.items() if name in used]
    for field, values in ((model.graph.node, nodes), (model.graph.initializer, tensors)):
        del field[:]
        field.extend(values)
    model.opset_import.append(onnx.helper.make_opsetid(CONTRIB, 1))
    onnx.save(model, path)
    path.with_name(f"{path.name}.data").unlink(missing_ok=True)  # a large graph's weights, in fp32


class _Quantised:
    """Replaces the nodes of a graph one by one; ``tensors`` are its constants and those added."""

    def __init__(self, tensors: dict[str, Any]) -> None:
        self.tensors = tensors
        self.scaled: set[str] = set()
        """Inputs of products whose scale and bytes are computed."""
        self.constants = {
            "one": np.float32(1),
            "zero": np.uint8(128),
            "least": np.float32(1e-12),  # a token of zeros has no scale
            "step": np.float32(1 / LARGEST),
            "last": np.array([-1]),
        }

    def parts(self, node: Any) -> Iterator[Any]:
        """``node`` itself, or the nodes in its place."""
        axis = {"MatMul": 1, "Gather": 0}.get(node.op_type)
        tensor = None if axis is None else self.tensors.get(node.input[axis])
        weight = None if tensor is None else onnx.numpy_helper.to_array(tensor)
        if weight is None or weight.ndim != 2 or weight.dtype != np.float32 or min(weight.shape) < WIDE:
            yield node
        elif axis == 1:
            yield from self._product(node, weight)
        else:
            yield from self._lookup(node, weight)

    def _product(self, node: Any, weight: np.ndarray) -> Iterator[Any]:
        x, y = node.input[0], node.output[0]
        if x not in self.scaled:  # query, key and value read the same states
            self.scaled.add(x)
            yield _node("Abs", [x], f"{x}.size")
            yield _node("ReduceMax", [f"{x}.size", self._constant("last")], f"{x}.largest")
            yield _node("Max", [f"{x}.largest", self._constant("least")], f"{x}.most")
            yield _node("Mul", [f"{x}.most", self._constant("step")], f"{x}.scale")
            yield _node("Div", [x, f"{x}.scale"], f"{x}.steps")
            # QuantizeLinear takes no scale per token: it rounds what is divided already.
            yield _node("QuantizeLinear", [f"{x}.steps", *map(self._constant, ("one", "zero"))], f"{x}.bytes")
        # Named after the product: without VNNI, ONNX Runtime fails if two products share their integers.
        integers, scale = self._integers(y, weight, 0)
        inputs = [f"{x}.bytes", integers, self._constant("one"), scale, self._constant("zero")]
        yield _node("MatMulIntegerToFloat", inputs, f"{y}.sums", domain=CONTRIB)
        yield _node("Mul", [f"{y}.sums", f"{x}.scale"], y)

    def _lookup(self, node: Any, table: np.ndarray) -> Iterator[Any]:
        (name, ids), y = node.input, node.output[0]
        integers, scale = self._integers(name, table, 1)
        yield _node("Gather", [integers, ids], f"{y}.bytes")
        yield _node("Cast", [f"{y}.bytes"], f"{y}.steps", to=onnx.TensorProto.FLOAT)
        yield _node("Gather", [scale, ids], f"{y}.scale")
        yield _node("Mul", [f"{y}.steps", f"{y}.scale"], y)

    def _integers(self, name: str, weight: np.ndarray, axis: int) -> tuple[str, str]:
        """Names of the integers of ``weight``, and of the scales of each column (axis 0) or row."""
        largest = np.abs(weight).max(axis, keepdims=True)
        scale = np.maximum(largest, np.finfo(np.float32).tiny) / np.float32(LARGEST)
        return (
            self._store(f"{name}.int8", np.rint(weight / scale).astype(np.int8)),
            self._store(f"{name}.scale", scale if axis else scale[0]),
        )

    def _constant(self, name: str) -> str:
        return self._store(f"int8.{name}", self.constants[name])

    def _store(self, name: str, value: Any) -> str:
        if name not in self.tensors:
            self.tensors[name] = onnx.numpy_helper.from_array(np.asarray(value), name)
        return name


def _inputs(nodes: Iterable[Any]) -> Iterator[str]:
    """Names that the nodes read, also in the bodies of loops."""
    for node in nodes:
        yield from node.input
        for attribute in node.attribute:
            yield from _inputs(attribute.g.node)


def _node(operator: str, inputs: Sequence[str], output: str, **attributes: Any) -> Any:
    return onnx.helper.make_node(operator, inputs, [output], **attributes)


def _cause(error: BaseException) -> str:
    """The first line of the innermost exception."""
    while error.__cause__ is not None:
        error = error.__cause__
    return first_line(error)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporters' notes on other packages and axis names."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def check(
    predictor: Reader, model: OnnxModel, questions: QuestionSet, watch: Watch | None = None
) -> ExportCheck:
    """Compare the results of both on ``questions``, read in the same batches.

    Raises RunError if logits of an fp32 graph differ by more than ``MAX_DIFFERENCE``, or more than
    ``MAX_TIES`` of its answers differ. An int8 graph is only measured.
    """
    table = predictor.table(questions, cache=False)
    ours, theirs, largest = run_model(
        predictor.model,
        Collator(table, vector_rows(predictor.vectors, table), labels=False),
        _Comparison(model, *(SpanCollector(questions, table, predictor.config.decode) for _ in range(2))),
        batch_size=predictor.config.trainer.eval_batch_size,
        watch=watch,
    )
    threshold = predictor.null_threshold
    answers, scores = [], []
    for predictions in (ours.best_predictions, theirs.best_predictions):
        spans = [prediction.at(threshold) for prediction in predictions]
        answers.append([span and (span.text, span.start, span.end) for span in spans])
        points = score(questions, {item.id: item.text(threshold) for item in predictions})
        scores.append({"exact": points.exact, "f1": points.f1})
    same = sum(a == b for a, b in zip(*answers, strict=True))
    result = ExportCheck(
        data=questions.name,
        questions=len(questions),
        windows=len(table),
        largest_difference=largest,
        same_answers=same,
        torch_scores=scores[0],
        onnx_scores=scores[1],
    )
    exact = model.description.precision == "fp32"
    if exact and (largest > MAX_DIFFERENCE or len(questions) - same > MAX_TIES * len(questions)):
        raise RunError(
            f"the graph does not reproduce the model: on {len(questions)} questions of {questions.name}"
            f" logits differ by up to {largest:.2g}, and {len(questions) - same} answers differ;"
            " nothing was written, please report it"
        )
    return result


def check_questions(config: Config) -> QuestionSet:
    """Up to ``QUESTIONS`` questions of the run's calibration or open dev set, or else generated ones."""
    for source in (config.data.calibration, config.data.dev if config.data.open_dev else None):
        if source is not None:
            try:
                language = config.data.language
                questions = open_passages(
                    source, on_error=config.data.on_error, use="answering", language=language
                )
            except QaArchError as error:
                log.warning("the export is not checked on the run's own questions: %s", error)
            else:
                return subset(questions, min(QUESTIONS, len(questions)), config.seed)
    return subset(generate(15, 0), QUESTIONS, config.seed)


class _Comparison:
    """Collects the spans of torch's logits and of the graph's on the same batches."""

    def __init__(self, model: nn.Module, ours: SpanCollector, theirs: SpanCollector) -> None:
        self.model, self.ours, self.theirs = model, ours, theirs
        self.largest = 0.0

    def add(self, batch: Batch, logits: Logits) -> None:
        graph_logits = self.model(batch)
        self.largest = max(self.largest, largest_difference(logits, graph_logits))
        self.ours.add(batch, logits)
        self.theirs.add(batch, graph_logits)

    def result(self) -> tuple[Ranking, Ranking, float]:
        return self.ours.result(), self.theirs.result(), self.largest


def largest_difference(first: Logits, second: Logits) -> float:
    """Largest absolute difference of two logits; ``inf`` if only one of them is finite."""
    names = ("token", "stop") if isinstance(first, StepLogits) else ("start", "end", "null", "null_end")
    return max(difference(getattr(first, name), getattr(second, name)) for name in names)


def export_onnx(
    predictor: Reader,
    out: str | Path,
    *,
    precision: Precision = "fp32",
    questions: QuestionSet | None = None,
    watch: Watch | None = None,
) -> ExportCheck:
    """Write the predictor (in fp32, on the CPU) as a folder with a graph and everything needed to use it.

    ``precision`` is fp32 or int8. The graph is checked on ``questions`` (by default some of the run's own)
    before the folder appears, with a copy of the record: it is a run of its own. Raises ConfigError for a
    model that cannot be traced, RunError if ``out`` exists or the graph has other results.
    """
    if precision not in ("fp32", "int8"):
        raise ConfigError(f"--precision {precision}: a graph can be exported in fp32 or in int8 only")
    questions = check_questions(predictor.config) if questions is None else questions
    record = predictor.record
    assert record is not None  # as of every loaded reader
    with new_folder(out) as folder:
        inputs, outputs = write_graph(folder / GRAPH, predictor)
        description = Description(
            inputs=inputs,
            outputs=outputs,
            segments=predictor.segments,
            precision="fp32",
            opset=OPSET,
            versions=provenance.versions(OPTIONAL["onnx"]),
        )
        result = check(predictor, OnnxModel(folder / GRAPH, description), questions, watch)
        if precision == "int8":
            quantise(folder / GRAPH)
            description = replace(description, precision="int8")
            result = check(predictor, OnnxModel(folder / GRAPH, description), questions, watch)
            # The scores and the time of the run are not those of the rounded weights.
            record = replace(record, scores={}, rows={}, seconds=replace(record.seconds, predict=None))
        write_json(folder / DESCRIPTION, asdict(replace(description, check=result)))
        store.save_tokenizer(folder, predictor.tokenizer)
        if predictor.vectors is not None:
            store.save_vectors(folder, predictor.vectors)
        size = sum(file.stat().st_size for file in folder.glob(f"{GRAPH}*"))
        write_record(folder, replace(record, precision=precision, weights_bytes=size, cost=None))
    return result


# Translations of operators that torch's exporter lacks -----------------------------------------------
# Axes: ``C`` steps, ``B`` texts, ``Q`` question units, ``l`` hidden width.

LOWEST = -3.4028234663852886e38
"""Lowest finite fp32 number: its softmax is 0, and it never leads to NaN."""


@script(default_opset=op)
def match_lstm(
    inputs: FLOAT[...],
    reversal: INT64[...],
    keys: FLOAT[...],
    values: FLOAT[...],
    mask: BOOL[...],
    score: FLOAT[...],
    bias: FLOAT[...],
    state: FLOAT[...],
) -> FLOAT[...]:
    """The steps of ``qa_arch.nn.match_lstm.recur_reference`` as a Scan. ``bias`` cancels in the softmax."""
    # The second direction reads the same units, those of each text in reverse; padding stays last.
    order = op.Expand(op.Unsqueeze(reversal, [2]), op.Shape(inputs))
    back = op.GatherElements(inputs, order, axis=0)
    steps = op.Concat(op.Unsqueeze(inputs, [2]), op.Unsqueeze(back, [2]), axis=2)
    weight = op.Transpose(state, perm=[1, 0])
    keys_of_both = op.Unsqueeze(keys, [1])
    column = op.Unsqueeze(score, [1])
    padding = op.Unsqueeze(op.Where(mask, 0.0, LOWEST), [1])
    # One Scan for both directions: its state is (B, 2, l).
    zero = op.Expand(0.0, op.Concat(op.Shape(inputs, start=1, end=2), [2], op.Shape(score), axis=0))

    @graph()
    def step(h: FLOAT[...], c: FLOAT[...], unit: FLOAT[...]):
        # Before attention: the share of the input and of the previous state.
        query, o, i, f, g = op.Split(op.Add(unit, op.MatMul(h, weight)), num_outputs=5, axis=2)
        energies = op.MatMul(op.Tanh(op.Add(keys_of_both, op.Unsqueeze(query, [2]))), column)
        attention = op.Softmax(op.Add(op.Squeeze(energies, [3]), padding), axis=2)
        # The values are those of the question after the gates' weights, so attending adds to the gates.
        more_o, more_i, more_f, more_g = op.Split(op.MatMul(attention, values), num_outputs=4, axis=2)
        entering = op.Mul(op.Sigmoid(op.Add(i, more_i)), op.Tanh(op.Add(g, more_g)))
        new_c = op.Add(op.Mul(op.Sigmoid(op.Add(f, more_f)), c), entering)
        new_h = op.Mul(op.Sigmoid(op.Add(o, more_o)), op.Tanh(new_c))
        output = op.Identity(new_h)
        return new_h, new_c, output

    _last_h, _last_c, states = op.Scan(zero, zero, steps, body=step, num_scan_inputs=1)
    return states


def lstm(x: Any, inputs: Any, state: Any, inputs_bias: Any, state_bias: Any) -> Any:
    """torch orders the gates i, f, g, o, ONNX i, o, f, g; ONNX returns states of shape (K, 1, B, l)."""

    def reordered(part: Any) -> Any:
        i, f, g, o = op.Split(part, num_outputs=4, axis=0)
        return op.Concat(i, o, f, g, axis=0)

    states, _, _ = op.LSTM(
        op.Transpose(x, perm=[1, 0, 2]),
        op.Unsqueeze(reordered(inputs), [0]),
        op.Unsqueeze(reordered(state), [0]),
        op.Unsqueeze(op.Concat(reordered(inputs_bias), reordered(state_bias), axis=0), [0]),
        hidden_size=state.shape[1],
    )
    return op.Transpose(op.Squeeze(states, [1]), perm=[1, 0, 2])


def sort_stable(x: Any, *, stable: bool = True, dim: int = -1, descending: bool = False) -> Any:
    """Values and order of a small integer type; on ties, TopK takes the first."""
    size = op.Gather(op.Shape(x), [dim])
    wide = op.Cast(x, to=INT64.dtype)
    values, order = op.TopK(wide, size, axis=dim, largest=int(descending), sorted=1)
    return op.CastLike(values, x), order


def cummax(x: Any, dim: int) -> Any:
    """Running maximum along the second of two axes, and its index."""
    return _running(x, op.ReduceMax, op.ArgMax, torch.iinfo(torch.int64).min)


def cummin(x: Any, dim: int) -> Any:
    """Running minimum along the second of two axes, and its index."""
    return _running(x, op.ReduceMin, op.ArgMin, torch.iinfo(torch.int64).max)


def _running(x: Any, reduce: Callable[..., Any], arg: Callable[..., Any], fill: int) -> Any:
    """Reduce all values up to each position, and their index: (B, T) each."""
    length = op.Shape(x, start=1, end=2)
    position = op.Range(0, op.Squeeze(length, [0]), 1)
    seen = op.LessOrEqual(op.Unsqueeze(position, [0]), op.Unsqueeze(position, [1]))
    history = op.Where(seen, op.Unsqueeze(x, [1]), op.Constant(value_int=fill))  # (B, T, T)
    # Of equal values torch gives the last index.
    return reduce(history, [2], keepdims=0), arg(history, axis=2, keepdims=0, select_last_index=1)


TRANSLATIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.ops.qa_arch.match_lstm.default: match_lstm,
    torch.ops.qa_arch.lstm.default: lstm,
    torch.ops.aten.sort.stable: sort_stable,
    torch.ops.aten.cummax.default: cummax,
    torch.ops.aten.cummin.default: cummin,
}
