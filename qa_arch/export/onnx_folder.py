"""``qa-arch export --to onnx``: a folder that is asked without torch's weights, by ONNX Runtime."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

from qa_arch.config.files import write_json
from qa_arch.config.identity import config_hash
from qa_arch.errors import ConfigError
from qa_arch.export.equality import check, check_questions
from qa_arch.export.folder import new_folder
from qa_arch.export.graph import OPSET, quantise_graph, write_graph
from qa_arch.models import store
from qa_arch.models.onnx_model import DESCRIPTION, GRAPH, Description, Equality, OnnxModel
from qa_arch.nn.precision import Precision
from qa_arch.results import provenance
from qa_arch.results.record import write_record
from qa_arch.tasks.base import Watch
from qa_arch.tasks.span_predictor import SpanPredictor
from qa_arch.types.records import RunRecord, Threshold
from qa_arch.types.text import QuestionSet

PACKAGES = ("onnx", "onnxscript", "onnxruntime")


def export_onnx(
    predictor: SpanPredictor,
    out: str | Path,
    *,
    precision: Precision = "fp32",
    questions: QuestionSet | None = None,
    source: str | None = None,
    beside_run: bool = False,
    watch: Watch | None = None,
) -> Equality:
    """Write the predictor (in fp32, on the CPU) as a graph with all that is needed to ask it.

    ``precision`` is fp32 or int8. The graph is checked on ``questions`` (by default some of the run's own)
    before the folder appears. ``source`` identifies the run's model (``tasks.engines.source_of``).
    ``beside_run``: ``out`` lies in the folder of the run, whose record is its own, and replaces an earlier
    graph; else it gets a copy of the record and is a run by itself. Raises ConfigError for a model that
    cannot be traced, RunError where ``out`` is in the way or the graph gives something else, UnavailableError
    without the packages.
    """
    if precision not in ("fp32", "int8"):
        raise ConfigError(f"--precision {precision}: a graph is in fp32 or in int8; cast neither by hand")
    questions = check_questions(predictor.config) if questions is None else questions
    with new_folder(out, replaces=DESCRIPTION if beside_run else None) as folder:
        inputs, outputs = write_graph(folder / GRAPH, predictor)
        description = Description(
            inputs=inputs,
            outputs=outputs,
            segments=predictor.segments,
            precision="fp32",
            opset=OPSET,
            versions=provenance.versions(PACKAGES),
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
    """The run's record; of a model that has none, its config and its threshold."""
    if predictor.record is not None:
        return predictor.record
    config, threshold = asdict(predictor.config), predictor.null_threshold
    return RunRecord(
        status="ok",
        name=predictor.config.name,
        model=str(predictor.config.model.get("name")),
        seed=predictor.config.seed,
        config=config,
        config_hash=config_hash(config),
        threshold=Threshold(value=None if threshold == float("inf") else threshold, fitted_on="nothing"),
    )
