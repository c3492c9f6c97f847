"""Loading of models: a run or a downloaded checkpoint as a predictor, or several of spans as a single one."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from os import PathLike, fspath
from pathlib import Path

import numpy as np
import torch

from qa_arch.config.checkpoints import Settings, is_checkpoint, run_config
from qa_arch.config.schema import validate
from qa_arch.config.target import TRUSTED
from qa_arch.errors import ConfigError, QaArchError, RunError
from qa_arch.features.glove import WordVectors
from qa_arch.features.template import backend_of, unlimited
from qa_arch.models import store
from qa_arch.models.checkpoint_files import names_checkpoint
from qa_arch.models.ensemble import Ensemble
from qa_arch.models.onnx_model import DESCRIPTION, GRAPH, OnnxModel, read_description
from qa_arch.nn.precision import Precision
from qa_arch.results.record import MODEL, ONNX, read_finished
from qa_arch.tasks import task_of
from qa_arch.tasks.base import Predictor
from qa_arch.tasks.checkpoint_predictor import checkpoint_predictor
from qa_arch.tasks.engines import Engine, report_fallback, require_graph
from qa_arch.tasks.language_predictor import LanguagePredictor
from qa_arch.tasks.reading import device_of
from qa_arch.tasks.span_predictor import SpanPredictor
from qa_arch.types.records import RunRecord

log = logging.getLogger(__name__)


def load_predictor(
    run: str | PathLike[str],
    *,
    device: str | torch.device | None = None,
    precision: Precision = "fp32",
    trust: Sequence[str] = (),
    settings: Settings | None = None,
    engine: Engine | None = None,
) -> Predictor:
    """The best model of a run folder, ready to answer: to find a span, or to select an answer.

    ``run`` may also be a downloaded checkpoint (a folder or a hub id of any
    ``AutoModelForQuestionAnswering``), or the folder of its record; ``settings`` change how its windows are
    cut and its spans decoded. A folder of ``qa-arch export --to onnx`` is a run that reads on the CPU, in the
    precision of its export. Of a run with a graph beside it (folder ``onnx``) ``engine`` chooses what reads:
    ``torch``, ``onnx``, or ``auto``, the graph where it gives torch's answers in less time
    (``tasks.engines``), which the log then says. None: what the folder itself holds.

    Weights come from safetensors and classes from trusted packages only (``trust`` adds prefixes).
    ``int8`` needs a CPU, the default device then. Raises RunError where the folder is not a finished
    run, or ``engine="onnx"`` has no graph of it, ConfigError for an untrusted target and for an engine
    without the device or the precision, UnavailableError for a precision that the device has not.
    """
    run = fspath(run)
    gpu = torch.cuda.is_available() and precision != "int8" and engine != "onnx"
    where = device or ("cuda" if gpu else "cpu")
    if names_checkpoint(run):
        if engine == "onnx":
            raise ConfigError(
                f"--engine onnx: {run} is a downloaded checkpoint without a graph; qa-arch export {run}"
                " --to onnx --out GRAPH makes it, then name GRAPH"
            )
        return checkpoint_predictor(run, device=where, precision=precision, settings=settings)
    folder = Path(run)
    record = read_finished(folder)
    if (folder / GRAPH).exists() or (folder / DESCRIPTION).exists():
        if engine == "torch":
            raise ConfigError(
                f"--engine torch: {folder} holds a graph and no weights; name the run that it was made of"
            )
        return _load_onnx(folder, record, precision)
    if engine in ("auto", "onnx") and (graph := _graph_beside(folder, record, engine, where, precision)):
        return graph
    if is_checkpoint(record.config) and not record.members:
        source = str(run_config(record.config).encoder.name)
        return checkpoint_predictor(source, device=where, precision=precision, record=record)
    if not (folder / MODEL).is_dir():
        raise RunError(
            f"{folder}: has no weights (no folder {MODEL}), as a published record has none; train the run"
            f" again: qa-arch train --config-from {folder} --folder RUN"
        )
    config = validate(record.config)
    trusted = (*TRUSTED, *trust)
    return task_of(config.model).load(folder / MODEL, record, config, where, precision, trusted)


def _graph_beside(
    folder: Path, record: RunRecord, engine: Engine, device: str | torch.device, precision: Precision
) -> SpanPredictor | None:
    """The graph that lies in the run's folder; None where ``auto`` has torch read."""
    graph = folder / ONNX
    if engine == "auto" and not graph.is_dir():
        return None
    try:
        require_graph(folder, record, device=torch.device(device), precision=precision)
        predictor = _load_onnx(graph, record, precision)
    except QaArchError as error:
        if engine == "onnx":
            raise
        report_fallback(error)
        return None
    log.info("%s: ONNX Runtime reads, with the graph in %s", folder, graph)
    return predictor


def _load_onnx(folder: Path, record: RunRecord, precision: Precision) -> SpanPredictor:
    description = read_description(folder)
    if precision not in ("fp32", description.precision):
        raise ConfigError(
            f"{folder}: was exported in {description.precision}, which a graph keeps; leave out --precision"
            f" {precision}, or export the run again with it"
        )
    return SpanPredictor(
        OnnxModel(folder / GRAPH, description),
        store.load_tokenizer(folder),
        store.load_vectors(folder),
        run_config(record.config),
        segments=description.segments,
        null_threshold=record.null_threshold,
        temperature=record.temperature,
        record=record,
        precision=description.precision,
    )


def load_ensemble(
    runs: Sequence[str | Path],
    *,
    device: str | torch.device | None = None,
    precision: Precision = "fp32",
    trust: Sequence[str] = (),
    engine: Engine | None = None,
) -> SpanPredictor:
    """The mean of the runs' probabilities as one predictor; of one run, the run itself.

    Decoding follows the config of the first run; null threshold and temperature are the means of theirs.
    Raises ConfigError for a run named twice, RunError where two runs have different tokenizers or windows.
    """
    if len({Path(run).resolve() for run in runs}) < len(runs):
        raise ConfigError("an ensemble names each run once")
    members = [
        _of_spans(run, load_predictor(run, device=device, precision=precision, trust=trust, engine=engine))
        for run in runs
    ]
    first = members[0]
    if len(members) == 1:
        return first
    for run, member in zip(runs[1:], members[1:], strict=True):
        _require_same_windows(runs[0], first, run, member)
    tables = [member.vectors for member in members]
    vectors = _index(tables)
    model = Ensemble([member.model for member in members], [_rows(vectors, table) for table in tables])
    thresholds = [member.null_threshold for member in members]
    return SpanPredictor(
        model.to(device_of(first.model)),
        first.tokenizer,
        vectors,
        first.config,
        segments=first.segments,
        null_threshold=sum(thresholds) / len(thresholds) if all(map(math.isfinite, thresholds)) else math.inf,
        temperature=sum(member.temperature for member in members) / len(members),
        record=first.record,
        precision=precision,
    )


def _of_spans(run: str | Path, member: Predictor) -> SpanPredictor:
    if isinstance(member, SpanPredictor):
        return member
    refuse_pretrained(run, member)
    raise RunError(
        f"{run}: this run selects answers from candidates and finds none in a text; qa-arch evaluate --run"
        " scores it, qa_arch.load_predictor(RUN)(question, candidates) ranks"
    )


def refuse_pretrained(run: str | Path, predictor: Predictor) -> None:
    """RunError, with what to do, for a pre-training run where answers are wanted."""
    if isinstance(predictor, LanguagePredictor):
        raise RunError(
            f"{run}: this run was pre-trained on a corpus and answers no questions yet; qa-arch train"
            f" model=bert encoder.name={run} makes one that does, and qa-arch pretrain ask asks this one"
        )


def _index(tables: Sequence[WordVectors | None]) -> WordVectors | None:
    """The words of all tables, without vectors: what the batches of an ensemble refer to."""
    if all(table is None for table in tables):
        return None
    words = tuple(dict.fromkeys(word for table in tables if table is not None for word in table.words))
    return WordVectors(words, np.zeros((len(words) + 1, 0), np.float32))


def _rows(vectors: WordVectors | None, table: WordVectors | None) -> torch.Tensor | None:
    """Row in ``table`` of every row of ``vectors``; row 0 is the unknown word of both."""
    if vectors is None or table is None:
        return None
    return torch.cat([torch.zeros(1, dtype=torch.long), torch.from_numpy(table.rows(vectors.words))])


def _require_same_windows(
    first: str | Path, member: SpanPredictor, second: str | Path, other: SpanPredictor
) -> None:
    for name in ("max_length", "stride", "max_question"):
        ours, theirs = (getattr(m.config.features, name) for m in (member, other))
        if ours != theirs:
            raise RunError(
                f"{second}: features.{name} is {theirs}, that of {first} is {ours}: only runs that read the"
                " same windows make an ensemble"
            )
    if member.segments != other.segments or _vocabulary(member) != _vocabulary(other):
        raise RunError(
            f"{second}: its tokenizer is not that of {first}: only runs that read the same tokens make an"
            " ensemble"
        )


def _vocabulary(member: SpanPredictor) -> str:
    with unlimited(backend_of(member.tokenizer)) as backend:
        return backend.to_str()
