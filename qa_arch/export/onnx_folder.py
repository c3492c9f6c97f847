"""``qa-arch export --to onnx``: a folder with a graph that ONNX Runtime runs in place of the torch model.

``torch.onnx.export`` turns a span model into a graph, which may then be quantised, and is checked on
real questions before the folder appears.
"""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qa_arch import provenance
from qa_arch.config import extras
from qa_arch.config.files import replacing_folder, write_json
from qa_arch.config.schema import Config
from qa_arch.data.sources import open_passages
from qa_arch.data.splits import subset
from qa_arch.data.synthetic import generate
from qa_arch.errors import ConfigError, QaArchError, RunError, first_line
from qa_arch.features.batches import Collator
from qa_arch.features.vectors import vector_rows
from qa_arch.metrics.squad import score
from qa_arch.models import store
from qa_arch.models.onnx_model import DESCRIPTION, INPUTS, OUTPUTS, Description, ExportCheck, OnnxModel
from qa_arch.nn import processor
from qa_arch.nn.precision import Precision
from qa_arch.provenance import identify
from qa_arch.records import GRAPH, RunRecord, Threshold, changing, write_record
from qa_arch.spans.predictor import SpanPredictor
from qa_arch.spans.ranking import Ranking
from qa_arch.spans.search import SpanCollector
from qa_arch.tasks import Watch, device_of, read_table
from qa_arch.types.tensors import Batch, Logits, SpanLogits, StepLogits
from qa_arch.types.text import QuestionSet

OPSET = 18
SAMPLE = 3
"""Windows that the model is traced with: the tracer would take a single one for a constant."""
QUESTIONS = 200
MAX_DIFFERENCE = 1e-4
"""Largest difference allowed between logits of torch and of an fp32 graph."""
MAX_TIES = 0.01
"""Share of answers that may still differ: spans with scores this close may swap ranks."""
log = logging.getLogger(__name__)


@contextmanager
def new_folder(path: str | Path, *, replaces: str | None = None) -> Iterator[Path]:
    """Yield a temporary folder that becomes ``path`` at the end of the block, or is removed on an error.

    Raises RunError if ``path`` is not empty, unless it contains the file ``replaces``; QaArchError if it
    cannot be written.
    """
    target = Path(path)
    with changing(target, "folder", replaced=True):
        replaced = replaces is not None and (target / replaces).is_file()
        if target.is_file() or (target.is_dir() and any(target.iterdir()) and not replaced):
            raise RunError(f"{target}: exists already; name a new folder, or remove it first")
        with replacing_folder(target) as temporary:
            yield temporary


def sizes(folder: Path) -> Counter[str]:
    """Bytes of each file and subfolder of ``folder``."""
    total: Counter[str] = Counter()
    for file in filter(Path.is_file, folder.rglob("*")):
        total[file.relative_to(folder).parts[0]] += file.stat().st_size
    return total


class _Flat(nn.Module):
    """The model with plain tensors as inputs and outputs, the latter in the order of ``OUTPUTS``."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        fields: dict[str, Any] = dict.fromkeys(INPUTS) | dict(zip(self.names, tensors, strict=True))
        logits = self.model(Batch(index=torch.arange(tensors[0].shape[0]), **fields))
        if not isinstance(logits, SpanLogits):
            return logits.token, logits.stop
        scores = logits.start, logits.end, logits.null_start, logits.null_end
        if logits.verifier is None:
            return scores
        return *scores, logits.verifier_weight * logits.verifier


def write_graph(path: Path, predictor: SpanPredictor) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Write the model to ``path``, for windows of any number and length; return (inputs, outputs).

    Inputs are the fields of ``Batch`` that the model uses. Weights up to 2 GB are in the file, larger ones
    in ``model.onnx.data`` next to it. Raises ConfigError for a model that cannot be traced or is not in fp32,
    UnavailableError without the packages.
    """
    extras.require("onnx", "an ONNX graph")
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass

    from qa_arch.export.translation import TRANSLATIONS

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
    for value in list(inputs):
        if not value.uses():
            inputs.remove(value)
    ClearMetadataAndDocStringPass()(program.model)  # stack traces with local paths
    program.save(path)
    return tuple(str(value.name) for value in inputs), outputs


def quantise_graph(path: Path) -> None:
    """Quantise the graph at ``path`` to int8 in place: one scale per weight column, one for all activations.

    Only products with weights, whose zeros are exact, are quantised; scores and recurrences stay in fp32.
    """
    import onnx
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
    model = onnx.load(quantised)
    _copy_shared_weights(model.graph)
    onnx.save(model, path)
    quantised.unlink()


def _copy_shared_weights(graph: Any) -> None:
    """Give each int8 product its own weight and zero point.

    Without VNNI, ONNX Runtime 1.32 makes them unsigned at every product, and fails if it meets one twice.
    """
    stored = {initializer.name: initializer for initializer in graph.initializer}
    seen: set[str] = set()
    for number, node in enumerate(node for node in graph.node if node.op_type == "MatMulInteger"):
        for place in (1, 3):
            name = node.input[place]
            if name in seen:
                copied = graph.initializer.add()
                copied.CopyFrom(stored[name])
                copied.name = node.input[place] = f"{name}_{number}"
            seen.add(name)


def sample(predictor: SpanPredictor) -> Batch:
    """A few windows of generated questions, which every model can read."""
    table = predictor.table(generate(1, 0), cache=False)
    return Collator(table, vector_rows(predictor.vectors, table), labels=False)(range(SAMPLE))


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
    predictor: SpanPredictor, model: OnnxModel, questions: QuestionSet, watch: Watch | None = None
) -> ExportCheck:
    """Compare the results of both on ``questions``, read in the same batches.

    Raises RunError if logits of an fp32 graph differ by more than ``MAX_DIFFERENCE``, or more than
    ``MAX_TIES`` of its answers differ. An int8 graph is only measured.
    """
    table = predictor.table(questions, cache=False)
    ours, theirs, largest = read_table(
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
        engine=processor.engine("onnx", model.description.precision),
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
                questions = open_passages(source, on_error=config.data.on_error, use="answering")
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
    largest = 0.0
    for name in names:
        a, b = getattr(first, name), getattr(second, name)
        finite = a.isfinite()
        if not torch.equal(finite, b.isfinite()) or not torch.equal(a[~finite], b[~finite]):
            return float("inf")
        if finite.any():
            largest = max(largest, float((a - b)[finite].abs().max()))
    return largest


def export_onnx(
    predictor: SpanPredictor,
    out: str | Path,
    *,
    precision: Precision = "fp32",
    questions: QuestionSet | None = None,
    source: str | None = None,
    beside_run: bool = False,
    watch: Watch | None = None,
) -> ExportCheck:
    """Write the predictor (in fp32, on the CPU) as a folder with a graph and everything needed to use it.

    ``precision`` is fp32 or int8. The graph is checked on ``questions`` (by default some of the run's own)
    before the folder appears. ``source`` identifies the run's model (``spans.loading.source_of``).
    With ``beside_run``, ``out`` lies in the folder of the run, shares its record and replaces an earlier
    graph; else it gets a copy of the record and is a run of its own. Raises ConfigError for a model that
    cannot be traced, RunError if ``out`` exists or the graph has other results, UnavailableError without the
    packages.
    """
    if precision not in ("fp32", "int8"):
        raise ConfigError(f"--precision {precision}: a graph can be exported in fp32 or in int8 only")
    questions = check_questions(predictor.config) if questions is None else questions
    with new_folder(out, replaces=DESCRIPTION if beside_run else None) as folder:
        inputs, outputs = write_graph(folder / GRAPH, predictor)
        description = Description(
            inputs=inputs,
            outputs=outputs,
            segments=predictor.segments,
            precision="fp32",
            opset=OPSET,
            versions=provenance.versions(extras.EXTRAS["onnx"]),
            source=source,
        )
        result = check(predictor, OnnxModel(folder / GRAPH, description), questions, watch)
        if precision == "int8":
            quantise_graph(folder / GRAPH)
            description = replace(description, precision="int8")
            result = check(predictor, OnnxModel(folder / GRAPH, description), questions, watch)
        write_json(folder / DESCRIPTION, asdict(replace(description, check=result)))
        store.save_tokenizer(folder, predictor.tokenizer)
        if predictor.vectors is not None:
            store.save_vectors(folder, predictor.vectors)
        if not beside_run:
            size = sum(file.stat().st_size for file in folder.glob(f"{GRAPH}*"))
            record = replace(_record(predictor), precision=precision, weights_bytes=size, cost=None)
            write_record(folder, record)
    return result


def _record(predictor: SpanPredictor) -> RunRecord:
    """The run's record, or a new one with config and threshold for a model without a record."""
    if predictor.record is not None:
        return predictor.record
    config, threshold = predictor.config, predictor.null_threshold
    settings = asdict(config)
    return RunRecord(
        status="ok",
        name=config.name,
        model=str(config.model.get("name")),
        seed=config.seed,
        config=settings,
        **identify(settings)._asdict(),
        threshold=Threshold(value=None if threshold == float("inf") else threshold, fitted_on="nothing"),
    )
