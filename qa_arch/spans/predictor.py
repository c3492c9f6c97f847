"""Trained models that answer: a run, a downloaded checkpoint or an ensemble as a predictor of spans.

Weights come from safetensors, or from the graph of ``qa-arch export`` that lies beside a run.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from os import PathLike, fspath
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from qa_arch.config.identity import config_hash, files_hash
from qa_arch.config.schema import Config, Decode, reads_corpus, validate
from qa_arch.config.target import TRUSTED
from qa_arch.data.question_sets import question_set
from qa_arch.errors import ConfigError, QaArchError, RunError, UnavailableError
from qa_arch.features.batches import Collator
from qa_arch.features.cache import windows_of
from qa_arch.features.vectors import WordVectors, vector_rows
from qa_arch.features.windows import FeatureTable, check_ids
from qa_arch.features.words import backend_of, unlimited
from qa_arch.models import store
from qa_arch.models.checkpoint_files import (
    CheckpointFiles,
    Settings,
    checkpoint_settings,
    is_checkpoint,
    names_checkpoint,
    open_checkpoint,
    run_config,
)
from qa_arch.models.ensemble import Ensemble
from qa_arch.models.onnx_model import DESCRIPTION, GRAPH, OnnxModel, read_description
from qa_arch.models.span_checkpoint import SpanCheckpoint, load_span_checkpoint
from qa_arch.nn import processor
from qa_arch.nn.count import parameter_blocks
from qa_arch.nn.precision import Precision, cast_weights
from qa_arch.records import MODEL, ONNX, Device, Parameters, RunRecord, Threshold, read_finished
from qa_arch.results import provenance
from qa_arch.spans.ranking import Ranking
from qa_arch.spans.search import SpanCollector
from qa_arch.tasks import Predictor, Watch, device_of, read_table, task_of
from qa_arch.types.text import Example, Prediction, QuestionSet

PART = 1000
"""Questions in memory at once in ``read_parts``: enough to sort windows by length."""


class SpanPredictor(Predictor):
    """Answers questions about texts with a span of the text or "no answer".

    ``null_threshold`` is that fitted on the run's calibration split (``Prediction.at(null_threshold)``).
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        vectors: WordVectors | None,
        config: Config,
        *,
        segments: bool,
        null_threshold: float,
        temperature: float = 1.0,
        record: RunRecord | None = None,
        precision: Precision = "fp32",
        vocab_size: int | None = None,
    ) -> None:
        self.model, self.tokenizer, self.vectors = model.eval(), tokenizer, vectors
        self.segments = segments
        self.config, self.record = config, record
        self.null_threshold, self.temperature = null_threshold, temperature
        self.precision: Precision = precision
        self.vocab_size = vocab_size

    @property
    def engine(self) -> str:
        """As of every predictor; ``onnx fp32`` of a graph, ``onnx + torch fp32`` of an ensemble of both."""
        models = self.model.members if isinstance(self.model, Ensemble) else [self.model]
        names = sorted({"onnx" if isinstance(model, OnnxModel) else "torch" for model in models})
        return processor.engine(" + ".join(names), self.precision)

    def __call__(self, question: str, context: str) -> Prediction:
        """The prediction for a single question about a text."""
        return self.predict([(question, context)])[0]

    def predict(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        decode: Decode | None = None,
        batch_size: int | None = None,
    ) -> list[Prediction]:
        """The predictions, with candidates, for pairs of a question and a text, in order.

        Where question or text is blank there is none (``best`` is None, ``windows`` is 0). ``decode`` is
        used in place of the model's own. Raises DataError for a text that is no valid Unicode.
        """
        examples = [
            Example(id=str(number), question=question, context=context)
            for number, (question, context) in enumerate(pairs)
            if question.strip() and context.strip()
        ]
        predictions = [
            Prediction(id=str(number), best=None, null_odds=math.inf, windows=0)
            for number in range(len(pairs))
        ]
        if examples:
            questions = question_set("questions", examples, "2.0")
            table = self.table(questions, cache=False)
            ranking = self.read(questions, table=table, batch_size=batch_size, decode=decode)
            for prediction in ranking.predictions():
                predictions[int(prediction.id)] = prediction
        return predictions

    def table(self, questions: QuestionSet, *, cache: bool = True) -> FeatureTable:
        """The windows of a set under the settings that the model was trained with.

        Raises ConfigError for a token that is not among the model's ``vocab_size``, where that is given.
        """
        settings = self.config.features if cache else replace(self.config.features, cache_dir=None)
        table = windows_of(questions, self.tokenizer, settings, segments=self.segments)
        if self.vocab_size is not None:
            check_ids(table, self.vocab_size, str(self.config.encoder.name))
        return table

    def read(
        self,
        questions: QuestionSet,
        *,
        table: FeatureTable | None = None,
        batch_size: int | None = None,
        watch: Watch | None = None,
        decode: Decode | None = None,
    ) -> Ranking:
        """The ranked answers to each question of a set, in order; see ``Ranking.answers``.

        ``table`` holds the set's windows where they are made already. ``watch`` counts windows. ``decode``
        is used in place of the config's.
        """
        table = self.table(questions) if table is None else table
        return read_table(
            self.model,
            Collator(table, vector_rows(self.vectors, table), labels=False),
            SpanCollector(questions, table, decode or self.config.decode),
            batch_size=batch_size or self.config.trainer.eval_batch_size,
            precision=self.precision,
            watch=watch,
        )

    def read_parts(
        self,
        questions: QuestionSet,
        *,
        size: int = PART,
        batch_size: int | None = None,
        watch: Watch | None = None,
    ) -> Iterator[Ranking]:
        """``read`` for any number of questions in the memory of ``size``: a ranking for each part, in order.

        Features are made anew for each part. ``watch`` counts questions.
        """
        for begin in range(0, len(questions), size):
            examples = questions.examples[begin : begin + size]
            part = question_set(questions.name, examples, questions.protocol)
            yield self.read(part, table=self.table(part, cache=False), batch_size=batch_size)
            if watch is not None:
                watch(begin + len(examples), len(questions))


def checkpoint_predictor(
    source: str | Path,
    *,
    device: str | torch.device,
    precision: Precision,
    settings: Settings | None = None,
    record: RunRecord | None = None,
) -> SpanPredictor:
    """The checkpoint that ``source`` names, as ``record`` says that it was scored, or as one that is new.

    A new one has null threshold 0, which nothing was fitted on; ``settings`` change how its texts are cut and
    decoded. Raises RunError where the files are not those that were scored.
    """
    files = open_checkpoint(source, None if record is None else record.setting("model", "revision"))
    model, tokenizer, segments = load_span_checkpoint(files)
    if record is None:
        record = _new_record(files, model, precision, settings)
    record = replace(record, precision=precision, device=_device(torch.device(device)))
    return SpanPredictor(
        cast_weights(model.to(device), precision),
        tokenizer,
        None,
        run_config(record.config),
        segments=segments,
        null_threshold=record.null_threshold,
        temperature=record.temperature,
        record=record,
        precision=precision,
        vocab_size=model.vocab_size,
    )


def _new_record(
    files: CheckpointFiles, model: SpanCheckpoint, precision: Precision, changes: Settings | None
) -> RunRecord:
    """What can be said of a checkpoint before it is scored; neither training nor seed is known."""
    config = checkpoint_settings(
        files.source,
        name=files.name,
        revision=files.revision,
        precision=precision,
        max_tokens=model.max_tokens,
        changes=changes,
    )
    commit, dirty = provenance.commit()
    return RunRecord(
        status="ok",
        name=config["name"],
        model=files.name,
        seed=config["seed"],
        config=config,
        config_hash=config_hash(config, {}),
        commit=commit,
        dirty=dirty,
        created=provenance.now(),
        versions=provenance.versions(),
        parameters=Parameters(**asdict(parameter_blocks(model.model))),
        threshold=Threshold(value=0.0, fitted_on="nothing"),
    )


def _device(device: torch.device) -> Device:
    gpu = device.type == "cuda"
    return Device(
        kind=device.type, name=torch.cuda.get_device_name(device) if gpu else provenance.processor()
    )


Engine = Literal["auto", "torch", "onnx"]
"""``auto`` takes the graph beside a run where it gives torch's answers in less time: on a CPU, in fp32."""
log = logging.getLogger(__name__)


def source_of(folder: Path, record: RunRecord) -> str:
    """What identifies the model of a run: the hash of its files, of a downloaded checkpoint the revision."""
    if is_checkpoint(record.config) and not record.members:
        return str(record.setting("model", "revision"))
    model = folder / MODEL
    return files_hash(model, (path for path in model.rglob("*") if path.is_file()))


def require_graph(folder: Path, record: RunRecord, *, device: torch.device, precision: Precision) -> None:
    """Raise a QaArchError unless the graph beside the run in ``folder`` can read in place of its weights.

    RunError where there is none, or it was made of other weights or in int8; ConfigError for a device or a
    precision that is not the graph's; UnavailableError without ONNX Runtime.
    """
    graph = folder / ONNX
    anew = f"qa-arch export {folder} --to onnx makes it"
    if not (graph / DESCRIPTION).is_file():
        raise RunError(f"{graph}: there is no graph of the run; {anew}")
    if device.type != "cpu":
        raise ConfigError(f"{graph}: a graph reads on the CPU, and {device} is wanted (--device cpu)")
    if precision != "fp32":
        raise ConfigError(f"{graph}: the graph is in fp32, and {precision} is wanted (--precision fp32)")
    if find_spec("onnxruntime") is None:
        raise UnavailableError(f"{graph}: ONNX Runtime is not installed (pip install 'qa-arch[onnx]')")
    description = read_description(graph)
    if description.precision != "fp32":
        raise RunError(f"{graph}: is in {description.precision}, beside a run it has to be in fp32; {anew}")
    if description.source != source_of(folder, record):
        raise RunError(f"{graph}: was made of other weights than the run has now; {anew} anew")


def report_fallback(error: QaArchError) -> None:
    """Log why torch reads although a graph lies there: as a warning where something is wrong with it."""
    log.log(logging.WARNING if isinstance(error, RunError) else logging.INFO, "%s; torch reads", error)


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
    (``spans.predictor``), which the log then says. None: what the folder itself holds.

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
    if reads_corpus(predictor.config.model):
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
