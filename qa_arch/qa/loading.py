"""Load trained models, each of one of four kinds: a run, a checkpoint, a graph, or an ensemble of them.

Weights come from safetensors, or from a graph that ``qa-arch export`` wrote. An ensemble averages its
members' probabilities.

Axes: ``B`` windows, ``K`` classes of a softmax and, last, the null: ``N`` = K + 1; ``M`` members.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from qa_arch import provenance
from qa_arch.config.find import choice
from qa_arch.config.machine import with_machine
from qa_arch.config.schema import recipe_of, refuse_recipe, validate
from qa_arch.config.target import TRUSTED
from qa_arch.data.files import as_list
from qa_arch.errors import BRIEF, ConfigError, QaArchError, RunError, first_line, named
from qa_arch.features.cache import tokenizer_hash
from qa_arch.features.vectors import WordVectors
from qa_arch.files import read_json
from qa_arch.models import store
from qa_arch.models.checkpoint_files import (
    SETTINGS_FILE,
    ExportedSettings,
    Settings,
    checkpoint_settings,
    is_checkpoint,
    names_checkpoint,
    open_checkpoint,
    run_config,
)
from qa_arch.models.onnx_model import DESCRIPTION, OnnxModel, read_description
from qa_arch.nn.encoder_factory import bounded
from qa_arch.nn.features import parameter_blocks
from qa_arch.nn.precision import Precision, bf16_is_faster, cast_weights
from qa_arch.nn.reading import Place, device_of, require_device
from qa_arch.qa import task
from qa_arch.qa.reader import Reader
from qa_arch.records import (
    GRAPH,
    MEMBERS,
    MODEL,
    RECORD,
    Device,
    RunRecord,
    Threshold,
    read_finished,
    read_record,
    require_folder,
    run_named,
)
from qa_arch.tensors import Batch, Logits, SpanLogits, StepLogits, log_choices

log = logging.getLogger(__name__)
Kind = Literal["run", "checkpoint", "graph", "ensemble"]
Source = str | PathLike[str]
"""A folder, or the hub id of a checkpoint."""


def load(
    source: Source | Sequence[Source],
    *,
    device: Place | None = None,
    precision: Precision | None = "fp32",
    trust: Sequence[str] | None = None,
    settings: Settings | None = None,
    max_question: int | None = None,
) -> Reader:
    """Load a trained span model: a run, a downloaded checkpoint, an exported graph or an ensemble of them.

    ``precision=None`` is that of training, or fp32 where that is faster.
    ``max_question`` is a higher limit of a question, in tokens, than the run's own, up to what its encoder
    can read; what is cut off is counted in ``Answer.question_cut``. ``settings`` override the windows and the
    decoding of a checkpoint that was not adopted.

    Weights come from safetensors and classes from trusted packages only (``trust`` adds prefixes).
    Only a graph runs in ``int8``. Raises RunError if the folder is not a finished
    run of a span model, ConfigError for an untrusted target, another precision than a graph's or settings
    of anything else, UnavailableError for a precision or a device that cannot be used.
    """
    sources = _sources(source)
    loaded = load_predictor(sources, device=device, precision=precision, trust=trust, settings=settings)
    reader = require_spans(sources[0], loaded)
    if max_question is not None:
        reader.raise_question_limit(max_question)
    return reader


def load_predictor(
    source: Source | Sequence[Source],
    *,
    device: Place | None = None,
    precision: Precision | None = "fp32",
    trust: Sequence[str] | None = None,
    settings: Settings | None = None,
) -> Any:
    """Load the best model of any run: a ``Reader``, or what the recipe of an extra makes of its runs.

    Arguments and errors are those of ``load``.
    """
    if precision not in (None, *get_args(Precision)):
        known = ", ".join(get_args(Precision))
        raise ConfigError(f"precision: {precision!r} is unknown; choose from {known}")
    sources, trust = _sources(source), as_list(trust or (), "trust")
    kind, record = kind_of(sources)
    changes = settings or {}
    if not isinstance(changes, Mapping) or not all(isinstance(item, Mapping) for item in changes.values()):
        raise ConfigError(
            "settings: expected section -> setting -> value, such as {'features': {'max_length': 512}}, got"
            f" {settings!r:.80}"
        )
    if settings and (kind != "checkpoint" or record is not None):
        raise ConfigError(
            "settings: are for a downloaded checkpoint by itself that was not adopted; leave them out"
        )
    given = precision
    device, precision = _placed(record, device, precision)
    require_device(device)
    folder = Path(sources[0])
    options: Any = {"device": device, "precision": precision, "trust": trust}
    members = {**options, "precision": given}  # as asked, not as the first member has it
    try:
        match kind, record:
            case "ensemble", _ if len(sources) > 1:
                predictor: Any = _ensemble(sources, members)
            case "ensemble", RunRecord():  # adopted: its record decides how it decodes and abstains
                predictor = as_recorded(_ensemble(member_runs(folder), members), record)
            case "graph", RunRecord():
                predictor = _graph(folder, record, precision)
            case "checkpoint", RunRecord():
                name = str(run_config(record.config).encoder.name)
                predictor = _checkpoint(name, record, options, None)
            case "run", RunRecord():
                predictor = _run(folder, record, device, precision, trust)
            case _:  # a checkpoint that was never adopted
                predictor = _checkpoint(sources[0], None, options, settings)
        predictor.try_out()  # so that files that do not fit together fail here, not at the first question
    except Exception as error:  # files of others that do not fit together can raise anything
        own_code = trust and kind in ("run", "ensemble")  # of a package that the command line names
        if isinstance(error, QaArchError) or own_code:
            raise
        reason = f"{type(error).__name__}: {first_line(error, BRIEF)}"
        raise RunError(
            f"{' '.join(sources)}: its files do not make a working model ({reason}); copy them again"
        ) from error
    return predictor


def _sources(source: Source | Sequence[Source]) -> list[str]:
    sources = [run_named(item) for item in as_list(source, "source")]
    if not sources:
        raise ConfigError("source: names no model; give a run, a checkpoint or a graph")
    return sources


def kind_of(sources: Sequence[str]) -> tuple[Kind, RunRecord | None]:
    """Kind of what is to be loaded, and its record, or the first of several; None for a new checkpoint.

    Raises RunError if it is none, or is not finished.
    """
    source, folder = sources[0], Path(sources[0])
    require_folder(source)
    if names_checkpoint(source):
        return "checkpoint" if len(sources) == 1 else "ensemble", None
    record = read_finished(folder)
    # A run from elsewhere chooses neither this machine's cache folder nor a logger.
    machine = {"logger": choice("logger/none"), "runs_dir": "runs", "features": choice("features/windows")}
    record = replace(record, config=with_machine(record.config, machine))
    # The folder of an ensemble has a record, but no weights of its own.
    if len(sources) > 1 or (folder / MEMBERS).is_file():
        return "ensemble", record
    if (folder / GRAPH).exists() or (folder / DESCRIPTION).exists():
        return "graph", record
    # What an ensemble of checkpoints has recorded is not one.
    return "checkpoint" if is_checkpoint(record.config) and not record.members else "run", record


def _placed(
    record: RunRecord | None, device: Place | None, precision: Precision | None
) -> tuple[Place, Precision]:
    """Where a model runs and in which precision: as asked, else on a GPU if there is one, and as in training.

    A CPU that only emulates the precision of training is faster in fp32.
    """
    chosen = precision
    if chosen is None and record is not None:  # a checkpoint does not record it
        chosen = record.precision or record.config["trainer"]["precision"]  # type: ignore[assignment]
    chosen = chosen or "fp32"
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if precision is None and record is not None and str(device) == "cpu":
        emulated = chosen == "bf16" and record.device.kind == "cuda" and not bf16_is_faster()
        chosen = "fp32" if emulated or chosen == "fp16" else chosen
    return device, chosen


# Runs and checkpoints -----------------------------------------------------------------------------


def _run(folder: Path, record: RunRecord, device: Place, precision: Precision, trust: Sequence[str]) -> Any:
    if not (folder / MODEL).is_dir():
        raise RunError(
            f"{folder}: has no weights (no folder {MODEL}), like any published record; train the run"
            f" again: qa-arch train --config-from {shlex.quote(str(folder))} --folder RUN"
        )
    # What may be imported comes from the caller, never from the record.
    config, trusted = validate(record.config), (*TRUSTED, *trust)
    recipe = recipe_of(config.model)
    with bounded(folder / MODEL):
        if recipe is not None:
            return recipe.load().load(folder, record, device=device, precision=precision, trusted=trusted)
        parts = task.load(folder / MODEL, config, trusted)
    store.load_weights(folder / MODEL, parts.model)
    parts.model.to(device)
    return task.predictor(config, parts, record, precision)


def _checkpoint(source: str, record: RunRecord | None, options: Any, settings: Settings | None) -> Reader:
    """Reader of the checkpoint ``source``, with the settings of ``record`` if it was adopted before.

    A new one takes the settings that ``qa-arch export`` wrote into its folder; ``settings`` override windows
    and decoding. If they change either, or nothing was exported, the null threshold is 0 and not fitted.
    Raises RunError if the files are not those that were scored.
    """
    device, precision = options["device"], options["precision"]
    # At the revision that was scored: a branch on the hub may have moved on since.
    files = open_checkpoint(source, None if record is None else record.setting("model", "revision"))
    from qa_arch.models.span_checkpoint import load_span_checkpoint  # transformers' models: seconds

    model, tokenizer, segments = load_span_checkpoint(files)
    if record is None:
        exported = ExportedSettings.load(files.folder)
        with named(str(files.folder / SETTINGS_FILE) if exported and not settings else ""):
            config = checkpoint_settings(
                files.source,
                name=files.name,
                revision=files.revision,
                precision=precision,
                max_tokens=model.max_tokens,
                exported=exported,
                changes=settings,
            )
        fitted = exported if exported and exported.fits(run_config(config)) else None
        record = provenance.new_record(
            config,
            {},
            status="ok",
            parameters=parameter_blocks(model.model),
            threshold=fitted.threshold if fitted else Threshold(value=0.0, fitted_on="nothing"),
            confidence=fitted.confidence if fitted else None,
            data=exported.data if exported else {},
            held_out=exported.held_out if exported else None,
        )
    gpu = torch.device(device).type == "cuda"
    name = torch.cuda.get_device_name(device) if gpu else provenance.processor()
    record = replace(record, precision=precision, device=Device(kind=torch.device(device).type, name=name))
    return Reader(
        cast_weights(model.to(device), precision),
        tokenizer,
        None,
        run_config(record.config),
        segments=segments,
        record=record,
        precision=precision,
        vocab_size=model.vocab_size,
    )


def require_spans(run: str | Path, predictor: Any) -> Reader:
    """Return ``predictor`` if it finds spans. Raises RunError, with a remedy, if it does anything else."""
    if isinstance(predictor, Reader):
        return predictor
    refuse_recipe(run, predictor.config.model)
    raise RunError(f"{run}: finds no spans; name a run that answers questions")


# Graphs ------------------------------------------------------------------------------------------


def _graph(folder: Path, record: RunRecord, precision: Precision) -> Reader:
    description = read_description(folder)
    if precision not in ("fp32", description.precision):
        raise ConfigError(
            f"{folder}: was exported in {description.precision}, which is fixed; leave out --precision"
            f" {precision}, or export the run again with it"
        )
    return Reader(
        OnnxModel(folder / GRAPH, description),
        store.load_tokenizer(folder),
        store.load_vectors(folder),
        run_config(record.config),
        segments=description.segments,
        record=record,
        precision=description.precision,
        library="onnx",
    )


# Ensembles ---------------------------------------------------------------------------------------


def member_runs(folder: Path) -> list[str]:
    """The runs behind an ensemble's folder. Raises RunError if one was trained again or moved since, or if
    they are not as many as its record says."""
    remedy = "adopt its runs again"
    content = read_json(folder / MEMBERS, remedy)
    try:
        members = [(str(folder / member["run"]), member["created"]) for member in content]
    except (TypeError, KeyError):
        members = []
    if len(members) != len(read_record(folder).members):
        raise RunError(f"{folder / MEMBERS}: does not list the members in {RECORD}; {remedy}")
    for run, created in members:
        if not Path(run).is_dir() or read_record(run).created != created:
            raise RunError(f"{folder}: {run} is no longer the run that was adopted; adopt it again")
    return [run for run, _ in members]


def as_recorded(reader: Reader, record: RunRecord) -> Reader:
    """The reader, decoding and abstaining as the record of its ensemble says."""
    reader.config = replace(reader.config, decode=run_config(record.config).decode)
    reader.record = record
    reader.null_threshold, reader.temperature = record.null_threshold, record.temperature
    return reader


def _ensemble(runs: Sequence[str], options: Any) -> Reader:
    """A reader that averages the probabilities of several runs; a single run is loaded as it is.

    Decoding follows the config of the first run; null threshold and temperature are averaged. The precision
    None is that of all runs, or fp32 if they differ. Raises ConfigError for a run named twice, RunError if
    two runs have different tokenizers or windows.
    """
    if len({Path(run).resolve() for run in runs}) < len(runs):
        raise ConfigError("an ensemble takes each run only once")
    if options["precision"] is None:
        own = {_placed(kind_of([run])[1], options["device"], None)[1] for run in runs}
        options = {**options, "precision": own.pop() if len(own) == 1 else "fp32"}
    members = [require_spans(run, load_predictor(run, **options)) for run in runs]
    first = members[0]
    if len(members) == 1:
        return first
    for run, member in zip(runs[1:], members[1:], strict=True):
        _require_same_windows(runs[0], first, run, member)
    tables = [member.vectors for member in members]
    vectors = _shared_words(tables)
    model = Ensemble([member.model for member in members], [_row_mapping(vectors, table) for table in tables])
    precisions = {member.precision for member in members}  # a graph keeps its own
    precision = precisions.pop() if len(precisions) == 1 else options["precision"]
    libraries = {m.library if m.precision == precision else m.engine for m in members}
    reader = Reader(
        model.to(device_of(first.model)),
        first.tokenizer,
        vectors,
        first.config,
        segments=first.segments,
        record=first.record,
        precision=precision,
        library=" + ".join(sorted(libraries, key=lambda name: (" " not in name, name))),
    )
    reader.records = tuple(record for member in members for record in member.records)
    reader.null_threshold = sum(member.null_threshold for member in members) / len(members)
    reader.temperature = sum(member.temperature for member in members) / len(members)
    return reader


def _shared_words(tables: Sequence[WordVectors | None]) -> WordVectors | None:
    """Words of all tables, without vectors, to whose rows the batches of an ensemble refer."""
    words = tuple(dict.fromkeys(word for table in tables if table is not None for word in table.words))
    return WordVectors(words, np.zeros((len(words) + 1, 0), np.float32)) if any(tables) else None


def _row_mapping(vectors: WordVectors | None, table: WordVectors | None) -> torch.Tensor | None:
    """Row in ``table`` of each row of ``vectors``; row 0 is the unknown word in both."""
    if vectors is None or table is None:
        return None
    return torch.cat([torch.zeros(1, dtype=torch.long), torch.from_numpy(table.rows(vectors.words))])


def _require_same_windows(first: str | Path, member: Reader, second: str | Path, other: Reader) -> None:
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
