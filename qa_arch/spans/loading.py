"""Load trained models: a run, a downloaded checkpoint, an exported graph or an ensemble of them.

Weights come from safetensors, or from a graph that ``qa-arch export`` wrote into the run. An ensemble
averages its members' probabilities.

Axes: ``B`` windows, ``K`` classes of a softmax and, last, the null: ``N`` = K + 1; ``M`` members.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from qa_arch import provenance
from qa_arch.config.files import files_hash
from qa_arch.config.find import choice
from qa_arch.config.machine import with_machine
from qa_arch.config.schema import task_entry, validate
from qa_arch.config.target import TRUSTED
from qa_arch.data.input_files import as_list
from qa_arch.errors import BRIEF, ConfigError, QaArchError, RunError, UnavailableError, first_line
from qa_arch.features.cache import tokenizer_hash
from qa_arch.features.vectors import WordVectors
from qa_arch.models import store
from qa_arch.models.checkpoint_files import (
    ExportedSettings,
    Settings,
    checkpoint_settings,
    is_checkpoint,
    names_checkpoint,
    open_checkpoint,
    run_config,
)
from qa_arch.models.onnx_model import DESCRIPTION, OnnxModel, read_description
from qa_arch.nn.count import parameter_blocks
from qa_arch.nn.precision import Precision, cast_weights
from qa_arch.nn.weight_files import bounded
from qa_arch.records import GRAPH, MODEL, ONNX, Device, RunRecord, Threshold, read_finished, require_folder
from qa_arch.spans.predictor import SpanPredictor
from qa_arch.tasks import Predictor, device_of, task_of
from qa_arch.types.tensors import Batch, Logits, SpanLogits, StepLogits, log_choices

log = logging.getLogger(__name__)
Engine = Literal["auto", "torch", "onnx"]
"""``auto`` uses the graph in a run folder where it is faster with the same answers: on a CPU, in fp32."""


def checkpoint_predictor(
    source: str | Path,
    *,
    device: str | torch.device,
    precision: Precision,
    settings: Settings | None = None,
    record: RunRecord | None = None,
) -> SpanPredictor:
    """Predictor of the checkpoint ``source``, with the settings of ``record`` if it was scored before.

    A new one takes the settings that ``qa-arch export`` wrote into its folder, or else an unfitted null
    threshold of 0; ``settings`` override windows and decoding. Raises RunError if the files are not those
    that were scored.
    """
    files = open_checkpoint(source, None if record is None else record.setting("model", "revision"))
    from qa_arch.models.span_checkpoint import load_span_checkpoint  # transformers' models: seconds

    model, tokenizer, segments = load_span_checkpoint(files)
    if record is None:
        exported = ExportedSettings.load(files.folder)
        config = checkpoint_settings(
            files.source,
            name=files.name,
            revision=files.revision,
            precision=precision,
            max_tokens=model.max_tokens,
            exported=exported,
            changes=settings,
        )
        record = provenance.new_record(
            config,
            {},
            status="ok",
            parameters=parameter_blocks(model.model),
            threshold=exported.threshold if exported else Threshold(value=0.0, fitted_on="nothing"),
            confidence=exported.confidence if exported else None,
        )
    gpu = torch.device(device).type == "cuda"
    name = torch.cuda.get_device_name(device) if gpu else provenance.processor()
    record = replace(record, precision=precision, device=Device(kind=torch.device(device).type, name=name))
    return SpanPredictor(
        cast_weights(model.to(device), precision),
        tokenizer,
        None,
        run_config(record.config),
        segments=segments,
        record=record,
        precision=precision,
        vocab_size=model.vocab_size,
    )


def source_of(folder: Path, record: RunRecord) -> str:
    """Identity of a run's model: the hash of its files, or the revision of a downloaded checkpoint."""
    if is_checkpoint(record.config) and not record.members:
        return str(record.setting("model", "revision"))
    model = folder / MODEL
    return files_hash(model, (path for path in model.rglob("*") if path.is_file()))


def require_graph(folder: Path, record: RunRecord, *, device: torch.device, precision: Precision) -> None:
    """Raise a QaArchError unless the graph in the run folder can be used in place of the weights.

    RunError if it is missing, or was exported from other weights or in int8; ConfigError for a device or a
    precision other than the graph's; UnavailableError without ONNX Runtime.
    """
    graph = folder / ONNX
    command = f"qa-arch export {shlex.quote(str(folder))} --to onnx"
    if not (graph / DESCRIPTION).is_file():
        raise RunError(f"{graph}: the run has no graph; export it: {command}")
    if device.type != "cpu":
        raise ConfigError(f"{graph}: a graph runs on the CPU, not on {device} (use --device cpu)")
    if precision != "fp32":
        raise ConfigError(f"{graph}: the graph is in fp32, not in {precision} (use --precision fp32)")
    if find_spec("onnxruntime") is None:
        raise UnavailableError(f"{graph}: ONNX Runtime is not installed (pip install 'qa-arch[onnx]')")
    description = read_description(graph)
    if description.precision != "fp32" or description.source != source_of(folder, record):
        reason = "was exported in int8, or from weights that have changed since"
        raise RunError(f"{graph}: {reason}; export the run again: {command}")


def load_predictor(
    run: str | PathLike[str],
    *,
    device: str | torch.device | None = None,
    precision: Precision = "fp32",
    trust: Sequence[str] = (),
    settings: Settings | None = None,
    engine: Engine | None = None,
) -> Predictor:
    """Load the best model of a run folder, ready to find spans or to select answers.

    ``run`` may also be a downloaded checkpoint (a folder or a hub id of any
    ``AutoModelForQuestionAnswering``) or the folder of its record; ``settings`` override how its windows are
    cut and its spans decoded. A folder of ``qa-arch export --to onnx`` is a run that uses the CPU and the
    precision of its export. For a run with a graph in its folder ``onnx``, ``engine`` chooses ``torch``,
    ``onnx`` or ``auto`` (``Engine``). None uses what the folder itself contains.

    Weights come only from safetensors and classes only from trusted packages (``trust`` adds prefixes).
    ``int8`` needs a CPU, which is then the default device. Raises RunError if the folder is not a finished
    run, or has no graph for ``engine="onnx"``; ConfigError for an untrusted target and for an unknown or
    unsupported engine or precision; UnavailableError for a device that cannot be used.
    """
    run = fspath(run)
    try:
        predictor = _load(run, device, precision, trust, settings, engine)
        predictor.try_out()
    except Exception as error:  # files of others that do not fit together can raise anything
        if isinstance(error, QaArchError) or trust:  # of a trusted package, which the command line names
            raise
        reason = f"{type(error).__name__}: {first_line(error, BRIEF)}"
        raise RunError(f"{run}: its files do not make a working model ({reason}); copy them again") from error
    return predictor


def _load(
    run: str,
    device: str | torch.device | None,
    precision: Precision,
    trust: Sequence[str],
    settings: Settings | None,
    engine: Engine | None,
) -> Predictor:
    _check_choice("precision", precision, get_args(Precision))
    _check_choice("engine", engine, (None, *get_args(Engine)))
    gpu = torch.cuda.is_available() and precision != "int8" and engine != "onnx"
    target = device or ("cuda" if gpu else "cpu")
    _require_device(target)
    require_folder(run)
    if names_checkpoint(run):
        if engine == "onnx":
            raise ConfigError(
                f"--engine onnx: {run} is a downloaded checkpoint without a graph; make one with qa-arch"
                f" export {shlex.quote(str(run))} --to onnx --out GRAPH, and name GRAPH"
            )
        return checkpoint_predictor(run, device=target, precision=precision, settings=settings)
    folder = Path(run)
    record = _of_this_machine(read_finished(folder))
    if (folder / GRAPH).exists() or (folder / DESCRIPTION).exists():
        if engine == "torch":
            raise ConfigError(f"--engine torch: {folder} holds a graph and no weights; name the exported run")
        return _load_onnx(folder, record, precision)
    if engine in ("auto", "onnx") and (graph := _graph_predictor(folder, record, engine, target, precision)):
        return graph
    if is_checkpoint(record.config) and not record.members:
        source = str(run_config(record.config).encoder.name)
        return checkpoint_predictor(source, device=target, precision=precision, record=record)
    if not (folder / MODEL).is_dir():
        raise RunError(
            f"{folder}: has no weights (no folder {MODEL}), like any published record; train the run"
            f" again: qa-arch train --config-from {shlex.quote(str(folder))} --folder RUN"
        )
    config = validate(record.config)
    task = task_of(config.model)
    with bounded(folder / MODEL):
        parts = task.load(folder / MODEL, config, (*TRUSTED, *as_list(trust)))
    store.load_weights(folder / MODEL, parts.model, precision)
    parts.model.to(target)
    return task.predictor(config, parts, record, precision)


def _of_this_machine(record: RunRecord) -> RunRecord:
    """Use this machine's cache folder and no logger, as a run from elsewhere must choose neither."""
    machine = {"logger": choice("logger/none"), "runs_dir": "runs", "features": choice("features/windows")}
    return replace(record, config=with_machine(record.config, machine))


def _check_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    if value not in choices:
        known = ", ".join(filter(None, choices))
        raise ConfigError(f"{name}: {value!r} is unknown; choose from {known}")


def _require_device(device: str | torch.device) -> None:
    """Raise UnavailableError unless tensors can be made on ``device``."""
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = first_line(error)
        raise UnavailableError(
            f"device {device}: cannot be used ({reason}); use cpu (--device cpu)"
        ) from error


def _graph_predictor(
    folder: Path, record: RunRecord, engine: Engine, device: str | torch.device, precision: Precision
) -> SpanPredictor | None:
    """Load the graph in the run folder; None, with a log entry, if ``auto`` falls back to torch."""
    graph = folder / ONNX
    if engine == "auto" and not graph.is_dir():
        return None
    try:
        require_graph(folder, record, device=torch.device(device), precision=precision)
        predictor = _load_onnx(graph, record, precision)
    except QaArchError as error:
        if engine == "onnx":
            raise
        log.log(logging.WARNING if isinstance(error, RunError) else logging.INFO, "%s; using torch", error)
        return None
    log.info("%s: using ONNX Runtime with the graph in %s", folder, graph)
    return predictor


def _load_onnx(folder: Path, record: RunRecord, precision: Precision) -> SpanPredictor:
    description = read_description(folder)
    if precision not in ("fp32", description.precision):
        raise ConfigError(
            f"{folder}: was exported in {description.precision}, which is fixed; leave out --precision"
            f" {precision}, or export the run again with it"
        )
    return SpanPredictor(
        OnnxModel(folder / GRAPH, description),
        store.load_tokenizer(folder),
        store.load_vectors(folder),
        run_config(record.config),
        segments=description.segments,
        record=record,
        precision=description.precision,
        library="onnx",
    )


def load_ensemble(
    runs: Sequence[str | Path],
    *,
    device: str | torch.device | None = None,
    precision: Precision = "fp32",
    trust: Sequence[str] = (),
    engine: Engine | None = None,
) -> SpanPredictor:
    """Load a predictor that averages the probabilities of several runs; a single run is loaded as it is.

    Decoding follows the config of the first run; null threshold and temperature are averaged. Raises
    ConfigError for a run named twice, RunError if two runs have different tokenizers or windows.
    """
    if len({Path(run).resolve() for run in runs}) < len(runs):
        raise ConfigError("an ensemble takes each run only once")
    options: Any = {"device": device, "precision": precision, "trust": trust, "engine": engine}
    members = [require_spans(run, load_predictor(run, **options)) for run in runs]
    first = members[0]
    if len(members) == 1:
        return first
    for run, member in zip(runs[1:], members[1:], strict=True):
        _require_same_windows(runs[0], first, run, member)
    tables = [member.vectors for member in members]
    vectors = _shared_words(tables)
    model = Ensemble([member.model for member in members], [_row_mapping(vectors, table) for table in tables])
    predictor = SpanPredictor(
        model.to(device_of(first.model)),
        first.tokenizer,
        vectors,
        first.config,
        segments=first.segments,
        record=first.record,
        precision=precision,
        library=" + ".join(sorted({member.library for member in members})),
    )
    predictor.null_threshold = sum(member.null_threshold for member in members) / len(members)
    predictor.temperature = sum(member.temperature for member in members) / len(members)
    return predictor


def require_spans(run: str | Path, predictor: Predictor) -> SpanPredictor:
    """Return ``predictor`` if it finds spans. Raises RunError, with a remedy, if it does anything else."""
    if isinstance(predictor, SpanPredictor):
        return predictor
    if task_entry(predictor.config.model["task"]).reads == "corpus":
        raise RunError(
            f"{run}: this run was pre-trained on a corpus and answers no questions yet; fine-tune it:"
            f" qa-arch train model=bert encoder.name={shlex.quote(str(run))}"
        )
    raise RunError(
        f"{run}: this run selects answers from candidates, not spans of a text; score it with"
        " qa-arch evaluate --run, rank candidates with qa_arch.load_predictor(RUN)(question, candidates)"
    )


def _shared_words(tables: Sequence[WordVectors | None]) -> WordVectors | None:
    """Words of all tables, without vectors, to whose rows the batches of an ensemble refer."""
    words = tuple(dict.fromkeys(word for table in tables if table is not None for word in table.words))
    return WordVectors(words, np.zeros((len(words) + 1, 0), np.float32)) if any(tables) else None


def _row_mapping(vectors: WordVectors | None, table: WordVectors | None) -> torch.Tensor | None:
    """Row in ``table`` of each row of ``vectors``; row 0 is the unknown word in both."""
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
                f"{second}: features.{name} is {theirs}, that of {first} is {ours}: the runs of an ensemble"
                " must read the same windows"
            )
    same_rules = tokenizer_hash(member.tokenizer) == tokenizer_hash(other.tokenizer)
    if member.segments != other.segments or not same_rules:
        raise RunError(
            f"{second}: its tokenizer is not that of {first}: the runs of an ensemble must read the same"
            " tokens"
        )


class Ensemble(nn.Module):
    """Averages its members' probabilities of start, end and "no answer", or of each step.

    ``rows`` maps, for each member, the rows of the shared table of words to those of its own word vectors;
    None for a member without vectors. Raises ConfigError if members differ in kind: spans or sequences. If
    only some have a verifier, it is part of their null scores.
    """

    def __init__(self, members: Sequence[nn.Module], rows: Sequence[Int[Tensor, "V"] | None]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        for number, mapping in enumerate(rows):
            self.register_buffer(f"rows_{number}", mapping, persistent=False)

    def forward(self, batch: Batch) -> Logits:
        outputs = []
        for number, member in enumerate(self.members):
            rows = getattr(self, f"rows_{number}")
            mapped = rows is not None and batch.vector is not None
            outputs.append(member(replace(batch, vector=rows[batch.vector]) if mapped else batch))
        return average(outputs)


def average(members_logits: Sequence[Logits]) -> Logits:
    """Logits of the members' mean probabilities; equal members give their own logits."""
    spans = [logits for logits in members_logits if isinstance(logits, SpanLogits)]
    steps = [logits for logits in members_logits if isinstance(logits, StepLogits)]
    if steps and not spans and len({logits.stop.shape[1] for logits in steps}) == 1:
        choices = _log_mean(torch.stack([log_choices(logits) for logits in steps]))
        return StepLogits(choices[..., :-1], choices[..., -1])
    if steps:
        raise ConfigError(
            "the models of an ensemble must all choose spans, or all choose sequences of the same length"
            " (model.limit)"
        )
    if any(logits.verifier is None for logits in spans):
        spans = [logits.folded() for logits in spans]
    start = _average_scores([(logits.start, logits.null_start) for logits in spans])
    end = _average_scores([(logits.end, logits.null_end) for logits in spans])
    weighted = [logits.verifier_weight * logits.verifier for logits in spans if logits.verifier is not None]
    verifier = None
    if weighted:  # the log-odds of the mean probability of "no answer"
        odds = torch.stack(weighted).float()
        verifier = _log_mean(nn.functional.logsigmoid(odds)) - _log_mean(nn.functional.logsigmoid(-odds))
    return SpanLogits(start[:, :-1], end[:, :-1], start[:, -1], end[:, -1], verifier)


def _average_scores(
    members: Sequence[tuple[Float[Tensor, "B K"], Float[Tensor, "B"]]],
) -> Float[Tensor, "B N"]:
    """Mean probabilities of the classes and, last, of the null, as scores on the scale of the members'.

    Windows of a question are compared by scores, so the mean of the members' log-normalisers is added back.
    """
    scores = torch.stack([torch.cat([classes, null[:, None]], dim=1).float() for classes, null in members])
    return _log_mean(scores.log_softmax(-1)) + scores.logsumexp(-1).mean(0)[:, None]


def _log_mean(logs: Float[Tensor, "M *R"]) -> Float[Tensor, "*R"]:
    """Logarithm of the mean over the first axis, from logarithms."""
    return logs.logsumexp(0) - torch.tensor(float(len(logs)), device=logs.device).log()
