"""Run records: ``run.json`` and ``questions.parquet``, typed, written atomically and read back.

A run is scored on sets of questions, called splits (``dev``, ``calibration``, the name of another set), each
at one or several operating points. Every table reads only these files; they contain no text of a data set. A
record is written when the run starts (``running``), after each epoch and at its end.
"""

from __future__ import annotations

import glob
import math
import os
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

from qa_arch import files
from qa_arch.config.check import FolderName, OneLine, Range, convert, from_mapping, suggest
from qa_arch.config.schema import Config, Share, objective
from qa_arch.errors import ConfigError, QaArchError, RunError, first_line
from qa_arch.files import LOCK, PATIENCE, write_json
from qa_arch.manifest import from_extras
from qa_arch.types import Protocol, QuestionSet, rules_of

SCHEMA = 4
"""A change of it comes with a script that migrates records; no code here reads earlier ones."""
MIGRATION = "experiments/migrate_records.py"
DEV, CALIBRATION, TRAIN = "dev", "calibration", "train"
STEP_LOSSES = "train_loss_by_step"
"""Key of an epoch: optimizer step, as text, -> mean loss of training since the previous entry; an entry every
``trainer.log_every`` steps."""

THRESHOLD_0 = "threshold_0"
"""Null threshold 0."""
CALIBRATED = "calibrated"
"""Null threshold fitted on the calibration split."""
GIVEN = "given"
"""Null threshold given by ``qa-arch evaluate --null-threshold``; for an adopted run, its answers as they
are."""
FORCED = "forced"
""""No answer" is never given: scores of the spans alone, and the only point of SQuAD 1.1."""
ORACLE = "oracle"
"""Best null threshold of the scored set itself: a bound, not a result."""
COMPARED = (CALIBRATED, GIVEN, FORCED)
"""Runs are compared at the first of these operating points that a split was scored at. Under the protocols of
extras, which have no threshold, there is a single one."""


def is_squad(protocol: str | None) -> bool:
    """Whether a protocol is SQuAD's, which scores spans; None counts as one."""
    return protocol is None or protocol in get_args(Protocol)


ExperimentName = Annotated[str, FolderName(nested=True)]
SetName = Annotated[str, FolderName()]
SystemName = Annotated[str, OneLine()]
Status = Literal["running", "ok", "oom", "failed", "killed"]
Number = int | Annotated[float, "measured"]
"""A measured value, which may be infinite or NaN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitFacts:
    """Facts of a split; None if they do not apply to the task."""

    name: str | None = None
    fingerprint: str | None = None
    """SHA-256 over the content of the questions."""
    protocol: str | None = None
    questions: int | None = None
    unanswerable: int | None = None
    titles: tuple[str, ...] = ()
    """Articles, to detect whether a set that is scored later was trained on."""
    windows: int | None = None
    truncated_questions: int | None = None
    """Questions cut to the length limit of the encoder."""
    lost_answers: int | None = None
    """Gold answers that no window contains."""
    skipped: int | None = None
    """Malformed records that were skipped."""
    candidates: float | None = None
    """Mean number of candidates per question, where these are ranked."""
    answers: int | None = None
    left_out: int | None = None
    """Questions with nothing to rank."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Facts of a single kind of run; ``language`` if answers are not English."""

    @classmethod
    def of(cls, questions: QuestionSet) -> SplitFacts:
        """Facts of a set of questions about passages, without titles."""
        return cls(
            name=questions.name,
            fingerprint=questions.fingerprint,
            protocol=questions.protocol,
            questions=len(questions),
            unanswerable=sum(not example.answerable for example in questions.examples),
            skipped=len(questions.skipped),
            details=questions.other_language,
        )

    @property
    def rules(self) -> str:
        """``rules_of`` the set's language."""
        return rules_of(self.language)

    @property
    def language(self) -> str:
        """Language by whose rules answers are compared."""
        return self.details.get("language", "en")

    @property
    def counts(self) -> dict[str, int]:
        """Integer entries of ``details``."""
        return {key: value for key, value in self.details.items() if isinstance(value, int)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Scores of one split at one operating point; rates in percent."""

    threshold: Number | None = None
    """Null odds above it mean "no answer"; None if no threshold applies."""
    protocol: str
    metric_version: str
    overlap: tuple[str, ...] = ()
    """Articles that the split shares with the run's training data (``evaluate --allow-overlap``)."""
    engine: str | None = None
    """Engine and precision that computed the logits: ``torch fp32``, ``onnx int8``. None: not recorded."""
    metrics: Mapping[str, Number | None]
    """Keyed as in the official evaluation (``HasAns_f1``), then our own metrics."""

    def metric(self, key: str) -> Number | None:
        """Score by its official key, None if missing; ``exact`` works for both protocols."""
        value = self.metrics.get(key)
        return self.metrics.get("exact_match") if value is None and key == "exact" else value

    @property
    def exact(self) -> Number | None:
        """Exact match, which SQuAD 1.1 calls ``exact_match``."""
        return self.metric("exact")

    @property
    def f1(self) -> Number | None:
        return self.metric("f1")

    def flat(self) -> dict[str, Any]:
        """Metrics and the other fields in a flat mapping, as commands print a point."""
        flat: dict[str, Any] = dict(self.metrics)
        if is_squad(self.protocol):
            flat["threshold"] = self.threshold
        flat |= {"protocol": self.protocol, "metric_version": self.metric_version}
        if self.overlap:
            flat["overlap"] = list(self.overlap)
        if self.engine:
            flat["engine"] = self.engine
        return flat


Points = Mapping[str, Point]
"""Name of the operating point or heuristic -> its scores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """One epoch of training; training and validation are timed separately."""

    epoch: int | None = None
    """From 0."""
    step: int | None = None
    """Optimizer steps so far."""
    train_loss: Number | None = None
    train_seconds: float | None = None
    validation_seconds: float | None = None
    windows: int | None = None
    flops: Number | None = None
    """Floating-point operations of the products in training, estimated from two windows."""
    windows_per_second: float | None = None
    lr: Number | None = None
    """Learning rate after the epoch, which its next step would have: of a linear schedule the last is 0."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """Scores of the calibration split, including ``calibration_loss``."""

    @classmethod
    def from_flat(cls, flat: Mapping[str, Any]) -> Epoch:
        """Build an epoch from a flat mapping, as metrics and callbacks produce it."""
        known = {f.name for f in fields(cls)} - {"metrics"}
        metrics = {key: value for key, value in flat.items() if key not in known}
        return cls(**{key: value for key, value in flat.items() if key in known}, metrics=metrics)

    def value(self, key: str) -> Number | None:
        """Field or metric by name; None if the epoch has no such number."""
        value = self.metrics.get(key, getattr(self, key, None))
        return value if isinstance(value, int | float) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    kind: str | None = None
    """``cpu``, ``cuda`` or ``mps``."""
    name: str | None = None
    cores: int | None = None
    threads: int | None = None
    memory_gb: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSizes:
    """Windows (questions, pairs) per micro batch, and the factors up to one optimizer step."""

    micro: int | None = None
    accumulate: int | None = None
    devices: int | None = None
    global_size: int | None = None
    """The product of the three."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    total: int | None = None
    trainable: int | None = None
    blocks: Mapping[str, int] = field(default_factory=dict)
    word_vectors: int | None = None
    """Frozen, not part of the total."""
    nonzero: int | None = None
    """Nonzero parameters out of the total; counted in runs that started from another, which may be pruned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """The run whose model a run started from (``init_from``)."""

    run: str
    """Name of its folder."""
    run_hash: str
    system: str | None = None
    """Hash of what identifies its system (``systems_hash``): equal for runs that differ only in the seed."""
    titles: tuple[str, ...] = ()
    """Articles that it, or its teacher or parent, was trained or calibrated on, and the run itself is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where the weights of a run come from, before it is trained."""

    parent: Parent | None = None
    encoder: EncoderRun | None = None
    initial: InitialWeights | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Inference cost of a run on a CPU, alternating with a baseline run (``benchmarks.compression``)."""

    baseline: str
    """Folder and run hash of the baseline, to which ratios are relative."""
    engine: Literal["torch", "onnx"]
    precision: str
    processor: str
    threads: int
    questions: int
    """Asked one at a time, ``repeats`` times, alternating with the baseline."""
    repeats: int
    latency_ms: float
    """Median over repeats of the mean time per question."""
    latency_ratio: float
    """Median over adjacent repeats; below 1 is faster than the baseline."""
    memory_mb: float
    """Peak private memory of model and inference in MiB, in a separate process."""
    memory_ratio: float
    measured: str
    """UTC, ISO 8601."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    prepare: float | None = None
    fit: float | None = None
    """Training alone."""
    fit_with_validation: float | None = None
    predict: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """The null threshold: null odds above it mean "no answer"."""

    value: float | None
    """None: "no answer" is never given."""
    fitted_on: str
    """A split, or ``nothing``."""
    prior: Share | None = None
    """Share that unanswerable questions were weighted to in the fit; None: their share of the split."""
    width: Annotated[float, Range(0.01, 100)] | None = None
    """Width of the smoothing in the fit, in standard deviations of the null odds; None: not smoothed."""

    @property
    def limit(self) -> float:
        """The value, ``inf`` if "no answer" is never given."""
        return math.inf if self.value is None else self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Answerability:
    """P(answerable) = 1 / (1 + exp(-(``intercept`` + ``slope`` * null odds)))."""

    slope: float
    intercept: float
    fitted_on: str
    prior: Share | None = None
    """As in ``Threshold``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confidence:
    """Calibration of scores to the probability that an answer is right (``metrics.abstention``)."""

    method: Literal["temperature"]
    value: Annotated[float, Range(0, above=True)]
    fitted_on: str
    """A split."""


@dataclass(frozen=True)
class CalibrationFits:
    """Values fitted after training; names and meaning of None as in ``RunRecord``."""

    threshold: Threshold | None = None
    confidence: Confidence | None = None
    answerability: Answerability | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderRun:
    """The pre-training run, or the local folder, that a run took its encoder from."""

    model: str
    """Name of the model or the folder."""
    seed: int | None = None
    """None for a folder."""
    run_hash: str
    """That of the run, or a hash of the files of the folder."""
    system: str
    """The same hash without the seed: equal for runs that differ only in the seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialWeights:
    """Weights that a pretrained encoder started from."""

    weights: str
    """SHA-256 over their names and values."""
    commit: str | None = None
    """Commit on the hub; None for a local folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherFacts:
    """Teacher of a distilled run."""

    name: str
    """Name of its run folder, or of the checkpoint."""
    run_hash: str
    fingerprint: str
    """SHA-256 over its files."""
    precision: str
    """Precision of its forward passes."""
    titles: tuple[str, ...] = ()
    """Articles that the teacher, but not the student, was trained or calibrated on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevAccess:
    """One scoring of one run on a held-out set."""

    date: str
    """UTC, ISO 8601."""
    commit: str | None
    config_hash: str
    """The run's ``run_hash``."""
    run: str
    """Name of the run folder."""
    data: str
    fingerprint: str


@dataclass(frozen=True, order=True)
class Measure:
    """Set and metric of a score; scores of different measures are not comparable."""

    fingerprint: str
    protocol: str
    metric_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A run: its settings, data, machine, cost and scores."""

    schema: int = SCHEMA
    status: Status
    name: ExperimentName
    """The experiment."""
    model: SystemName
    seed: int
    config: Mapping[str, Any]
    settings_hash: str
    """Hash of the config (``provenance.identify``), which names the folder of a run."""
    run_hash: str
    """Hash of the config and of the content of what the run reads; the other one until it has read that. Both
    stay as the code that made the run computed them."""
    commit: str | None = None
    dirty: bool | None = None
    """Whether the checkout had uncommitted changes; None outside a checkout."""
    code: str | None = None
    """Hash of the code and configs that made the run (``provenance.code_hash``); None if it was resumed with
    other code."""
    created: str = ""
    data: Mapping[SetName, SplitFacts] = field(default_factory=dict)
    held_out: SplitFacts | None = None
    """The closed dev set when the run was trained, with titles also of its passages; None if it is open, was
    not at hand, or is not of passages, and in records made before version 0.2."""
    versions: Mapping[str, str] = field(default_factory=dict)
    device: Device = Device()
    batch: BatchSizes = BatchSizes()
    parameters: Parameters = Parameters()
    seconds: Seconds = Seconds()
    examples_per_second: float | None = None
    peak_memory_mb: float | None = None
    epochs: tuple[Epoch, ...] = ()
    best_epoch: int | None = None
    threshold: Threshold | None = None
    """None if the task has no null, or the run no scores yet."""
    confidence: Confidence | None = None
    """None if nothing was fitted: no calibration split, or a task without confidences."""
    answerability: Answerability | None = None
    """None if nothing was fitted: no null, no calibration split, or only one kind of questions in it."""
    references: Mapping[SetName, Points] = field(default_factory=dict)
    """By split, then by heuristic: scores of untrained heuristics on the same questions."""
    scores: Mapping[SetName, Points] = field(default_factory=dict)
    """By split, then by operating point."""
    rows: Mapping[SetName, str] = field(default_factory=dict)
    """By split: SHA-256 of the question rows that were scored."""
    error: str | None = None
    members: tuple[str, ...] = ()
    """Runs, with their config hashes, behind an ensemble or another decoding."""
    members_hash: str | None = None
    """Joint hash of the members' systems (``systems_hash``): equal for ensembles that differ only in seeds.
    None for a single member, and if it was not recorded."""
    strategy: str | None = None
    """Distributed strategy: ``single``, ``ddp``, ``ddp_spawn`` or ``fsdp``."""
    precision: str | None = None
    """Precision of matrix products, even if the config leaves it to the machine."""
    optimizer_bits: int | None = None
    encoder: EncoderRun | None = None
    """None unless ``encoder.name`` names a pre-training run or a folder, from which also a parent may have
    started."""
    initial: InitialWeights | None = None
    """None for a random encoder."""
    weights_bytes: int | None = None
    """Size of the weight files on disk; None if it was not recorded."""
    parent: Parent | None = None
    """None unless the run started from the model of another."""
    cost: Cost | None = None
    """None if not measured."""
    teacher: TeacherFacts | None = None
    """None if nothing was distilled."""
    dev_accesses: tuple[DevAccess, ...] = ()
    """Scorings of a held-out dev set, as in the experiment's log."""

    def __repr__(self) -> str:
        return f"RunRecord({self.brief})"

    @property
    def shown_split(self) -> str:
        """Dev, or calibration for a run that was not scored on dev."""
        return DEV if DEV in self.scores else CALIBRATION

    @property
    def brief(self) -> str:
        """One line: model, seed, status, and the first two scores of dev, else of calibration."""
        split = self.shown_split
        point = self.compared_point(split)
        spans = {"EM": point.exact, "F1": point.f1} if point and is_squad(point.protocol) else {}
        values = spans or (point.metrics if point else {})
        shown = [f"{name} {value:.1f}" for name, value in values.items() if value is not None]
        scores = ", ".join(shown[:2])
        return f"{self.model}, seed {self.seed}, {self.status}" + (f": {split} {scores}" if scores else "")

    def facts(self, split: str) -> SplitFacts:
        """Facts of a split; all None if the record does not have it."""
        return self.data.get(split, SplitFacts())

    def fingerprint(self, split: str) -> str | None:
        return self.facts(split).fingerprint

    def split_of(self, fingerprint: str) -> str | None:
        """Name of the scored set with this fingerprint; None if the run was not scored on it."""
        return next((split for split in self.scores if self.fingerprint(split) == fingerprint), None)

    @property
    def trained_titles(self) -> frozenset[str]:
        """Articles that the run, its teacher or its parent was trained or calibrated on."""
        own = frozenset(title for facts in self.data.values() for title in facts.titles)
        return own.union(*(source.titles for source in (self.teacher, self.parent) if source))

    def point(self, split: str, name: str) -> Point | None:
        return self.scores.get(split, {}).get(name)

    def compared_point(self, split: str) -> Point | None:
        """Operating point that runs are compared at; None if the split was not scored."""
        points = self.scores.get(split, {})
        return next((points[name] for name in (*COMPARED, *points) if name in points), None)

    @property
    def tuning_score(self) -> float | None:
        """Calibration score that a search maximises, at the fitted null threshold if there is one; None if
        not yet known."""
        point = self.compared_point(CALIBRATION)
        value = None if point is None else point.metric(objective(self.config.get("model", {})))
        return None if value is None else float(value)

    def forced_f1(self, split: str) -> Number | None:
        """F1 on the answerable questions if "no answer" is never given; for SQuAD 1.1, F1."""
        point = self.point(split, FORCED)
        if point is None:
            return None
        value = point.metric("HasAns_f1")
        return point.f1 if value is None and point.protocol == "1.1" else value

    def measure(self, split: str) -> Measure | None:
        """Set and metric of a split's scores; None if it was not scored."""
        point, facts = self.compared_point(split), self.facts(split)
        if point is None:
            return None
        return Measure(str(facts.fingerprint), facts.protocol or point.protocol, point.metric_version)

    @property
    def null_threshold(self) -> float:
        """Null odds above it mean "no answer"; ``inf``: never given, 0: nothing was fitted."""
        return self.threshold.limit if self.threshold else 0.0

    @property
    def temperature(self) -> float:
        """Temperature of the confidences; 1 if nothing was fitted."""
        return self.confidence.value if self.confidence else 1.0

    @property
    def finds_spans(self) -> bool:
        """Whether the run answers questions with spans; runs of the extras' recipes do not."""
        return all(is_squad(facts.protocol) for facts in self.data.values())

    @property
    def adopted(self) -> bool:
        """Whether the run is the answers of another system (``qa-arch adopt``), without weights."""
        return "predictions" in self.config

    def setting(self, section: str, key: str) -> Any:
        """``section.key`` of the config; None if missing."""
        return self.config.get(section, {}).get(key)


def training_data(records: Sequence[RunRecord]) -> dict[str, SplitFacts]:
    """Facts of train and calibration of the first that has them, with the titles of all records."""
    data = {}
    for split in (TRAIN, CALIBRATION):
        facts = [record.data[split] for record in records if split in record.data]
        titles = {title for split_facts in facts for title in split_facts.titles}
        if split == TRAIN:
            # A student has seen what its teacher was trained on, and any run what its parent was.
            sources = [source for r in records for source in (r.teacher, r.parent) if source]
            titles.update(title for source in sources for title in source.titles)
        if facts:
            data[split] = replace(facts[0], titles=tuple(sorted(titles)))
    return data


RECORD = "run.json"
CHECKPOINTS = "checkpoints"
"""Experiment name of downloaded checkpoints, which were not trained here."""
ADOPTED = "adopted"
"""Experiment name of systems known only by their answers (``qa-arch adopt``)."""
NO_SPANS, SCORED_EMPTY = "answers_not_in_passage", "questions_scored_as_empty"
"""Further facts of a set that an adopted system answered."""
CHECKPOINT = ".ckpt"
"""Suffix of the checkpoints in the folder of a run that is not finished."""
QUESTIONS = "questions.parquet"
MOST_VALUES, MOST_BYTES = 3 * 10**7, 2**27
"""Limits on what ``read_questions`` reads: a few bytes of a file can repeat a value any number of times."""
TEXT_COLUMNS, WHOLE_COLUMNS = ("id", "kind", "word"), ("start", "end", "article", "windows")
TRUTH_COLUMNS = ("answerable", "abstained")
"""Columns of question rows whose type matters to all readers."""
SINGLE = ("probability", "confidence")
"""Columns of question rows that are stored in single precision."""
ENCODINGS = {"id": "DELTA_BYTE_ARRAY"} | dict.fromkeys(
    ("null_odds", "probability", "confidence", "start", "end"), "BYTE_STREAM_SPLIT"
)
"""Columns whose values rarely repeat; all others are stored with a list of their values."""
RECORDS = "records"
"""Folder of an experiment's committed runs."""
MODEL = "model"
"""Folder of a run's weights, encoder and tokenizer; published runs have none."""
WANDB = "wandb"
"""Folder of wandb's files in a run folder."""
PRETRAINED = "encoder"
"""Folder within ``MODEL`` of a pre-training run's encoder and tokenizer, in transformers' format."""
TOKENIZER, VECTORS = "tokenizer", "vectors"
"""Folders within ``MODEL`` of the tokenizer and the word vectors."""
SECTIONS = {name for name, hint in get_type_hints(Config).items() if is_dataclass(hint)} | {"model"}
"""Sections of a record's config that are mappings, if present; those of extras may also be None."""
MEMBERS = "members.json"
"""File of an ensemble, or of a run that is decoded or calibrated in another way: its runs."""
GRAPH = "model.onnx"
"""Graph in a folder of ``qa-arch export --to onnx``, which has no model folder."""
Runs = Sequence[tuple[Path, RunRecord]]
"""Run folders with their records."""
Globs = str | Sequence[str]
"""One or several folders or globs below ``records/``."""


WRITING = 120.0
"""Seconds to wait for another command that writes rows and record of the same run."""


@contextmanager
def changing(
    folder: Path, what: str = "run", *, replaced: bool = False, patience: float = PATIENCE
) -> Iterator[RunRecord | None]:
    """Hold the lock of a run folder and yield its record, None if there is none.

    All that reads, changes and writes a record happens within: no other command changes it in between. The
    lock of a folder that is ``replaced`` as a whole lies beside it. RunError after ``patience`` seconds.
    """
    place, file = (folder.parent, folder.name) if replaced else (folder, "")
    with files.hold(place, what, file=file, patience=patience):
        yield read_record(folder) if (folder / RECORD).is_file() else None


def write_record(folder: str | Path, record: RunRecord) -> Path:
    """Write ``run.json`` in the folder atomically; return its path."""
    return write_json(
        Path(folder) / RECORD, {f.name: _plain(getattr(record, f.name)) for f in fields(record)}
    )


def write_end(folder: str | Path, record: RunRecord) -> None:
    """``write_record``; on a full disk status and error alone, in the space that the file has."""
    try:
        write_record(folder, record)
    except QaArchError:
        path = Path(folder) / RECORD
        written = path.read_bytes() if path.is_file() else b"{}"
        end = {**files.parse_json(written), "status": record.status, "error": record.error}
        content = files.json_text(end, None).encode()
        # A longer file would need a block, which a full disk does not have.
        if len(content) > len(written):
            raise
        # In place, unlike everywhere else: an atomic write needs room for a second file.
        with path.open("r+b") as file:
            file.write(content.ljust(len(written)))


def clear_run(folder: Path, keep: Collection[str] = ()) -> None:
    """Remove everything in a run folder except the names in ``keep``.

    Checkpoints go first and then the record: what a kill leaves is not resumed, counts in no table and
    answers nothing.
    """

    def rank(path: Path) -> int:
        return 0 if path.suffix == CHECKPOINT else 1 if path.name == RECORD else 2

    for path in sorted(folder.iterdir(), key=rank):
        if path.name not in keep:
            files.remove(path)


def read_record(folder: str | Path) -> RunRecord:
    """Read the record in a run folder (or at the path of the file).

    A running run that no longer holds its lock is ``killed``. Raises RunError naming file, field and remedy
    if the record cannot be used.
    """
    path = Path(folder)
    path = path / RECORD if path.is_dir() else path
    if not path.exists():
        raise RunError(_missing_record(Path(folder)))
    record = parse_record(files.read_json(path, "run it again or delete the folder"), path)
    # The kernel drops the lock of a process that died, even by a kill -9.
    # A copied record has no lock, and keeps its status.
    stale = record.status == "running" and (path.parent / LOCK).exists() and not files.holder(path.parent)
    return replace(record, status="killed") if stale else record


def read_scored(folder: str | Path) -> RunRecord:
    """Read a record whose scores are shown; RunError also if question rows are not those that were scored."""
    record = read_record(folder)
    for split in record.rows:
        require_rows(Path(folder), record, split)
    return record


def require_rows(folder: Path, record: RunRecord, split: str) -> None:
    """Raise RunError if the run has other question rows than those that its scores of ``split`` are of."""
    run = folder if folder.is_dir() else folder.parent
    path, scored = questions_folder(run, split) / QUESTIONS, record.rows.get(split)
    if scored is None or not path.is_file():
        return
    try:
        actual = files.file_hash(path)
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror}); correct its permissions") from error
    if actual != scored:
        # Rows are written before the record: between the two a reader sees the new rows alone.
        is_new = files.holder(run) is not None or read_record(run).rows.get(split) == actual
        remedy = "it is being scored again; repeat this" if is_new else score_again(run, record, split)
        raise RunError(f"{path}: are not the rows that the scores in {RECORD} belong to; {remedy}")


def score_again(run: Path, record: RunRecord, split: str) -> str:
    """How to get rows of ``split``, and the scores that belong to them."""
    if record.adopted:
        return "adopt the answers again"
    if split == CALIBRATION:
        return "copy the folder again, or train the run again"
    closed = record.setting("data", "open_dev") is False and split == DEV
    which = "--final" if closed else "--train" if split == TRAIN else "--data FILE"
    return f"score the set again: qa-arch evaluate --run {shlex.quote(str(run))} {which}"


def _missing_record(folder: Path) -> str:
    """Error message for a folder without a record: suggests the runs in it, else similar ones nearby."""
    inside, siblings = (_records_below(at, at.glob(f"*/{RECORD}")) for at in (folder, folder.parent))
    near = inside or {*siblings, *_records_below(Path("runs"), Path("runs").glob(f"**/{RECORD}"))}
    hint = suggest("" if inside else str(folder), (str(path.parent) for path in near), limit=5)
    return f"{folder}: {f'holds no {RECORD}' if folder.is_dir() else 'no such run folder'}{hint}"


def run_named(source: str) -> str:
    """The run folder whose path, or whose name at any depth below ``runs``, begins with ``source``.

    ``source`` itself if it exists or begins no name. Raises RunError naming the candidates if there are
    several.
    """
    path = Path(source)
    if path.exists():
        return source
    if len(path.parts) > 1:
        folders = {file.parent for file in path.parent.glob(f"*/{RECORD}")}
    else:
        folders = {file.parent for file in _records_below(Path("runs"), Path("runs").glob(f"**/{RECORD}"))}
    named = sorted(str(folder) for folder in folders if path.name and folder.name.startswith(path.name))
    if len(named) > 1:
        raise RunError(f"{source}: begins the names of {len(named)} runs; name one: {', '.join(named)}")
    return named[0] if named else source


def require_folder(source: str | Path) -> None:
    """Raise RunError if ``source`` is a file, such as the weights or the record in a run folder."""
    if Path(source).is_file():
        raise RunError(f"{source}: is a file; name the folder of the run or checkpoint")


def read_trained(folder: str | Path) -> RunRecord:
    """Read the record of a trained run; RunError if it is adopted."""
    record = read_record(folder)
    if record.adopted:
        raise RunError(f"{folder}: adopted from a prediction file: it has no weights; name a trained run")
    return record


def read_finished(folder: str | Path) -> RunRecord:
    """Read the record of a run that can answer; RunError if it is not finished or has no weights."""
    record = read_trained(folder)
    if record.status != "ok":
        word = shlex.quote(str(folder))
        raise RunError(
            f"{folder}: the run's status is '{record.status}', only a finished one can answer;"
            f" resume it: qa-arch train --config-from {word} --folder {word} --resume"
        )
    return record


def parse_record(raw: Any, path: str | Path = RECORD) -> RunRecord:
    """Parse JSON as a record, checked at every depth; RunError names ``path`` if it is invalid."""
    if not isinstance(raw, Mapping) or "schema" not in raw:
        raise RunError(f"{path}: not a run record (it has no 'schema')")
    if raw["schema"] != SCHEMA:
        is_earlier = type(raw["schema"]) is int and 0 < raw["schema"] < SCHEMA  # a bool is no version
        migrate = f"migrate it: python {MIGRATION} {shlex.quote(str(path))}"
        remedy = migrate if is_earlier else "use the qa_arch version that wrote it"
        raise RunError(f"{path}: record of schema {raw['schema']!r}, this version reads {SCHEMA}; {remedy}")
    try:
        record = from_mapping(RunRecord, raw)
        stated = {key for key in from_extras("sections") if record.config.get(key) is not None}
        for section in (SECTIONS | stated) & record.config.keys():
            if not isinstance(record.config[section], Mapping):
                raise ConfigError(f"config.{section}: expected a mapping")
        if record.best_epoch is not None and not 0 <= record.best_epoch < len(record.epochs):
            raise ConfigError(f"best_epoch: {record.best_epoch} is none of the {len(record.epochs)} epochs")
        convert(ExperimentName, record.config.get("name", record.name), "config.name")
    except ConfigError as error:
        raise RunError(f"{path}: {error}; score the run again or copy it again") from None
    return record


def find_runs(
    patterns: Sequence[str | Path],
    *,
    unreadable: list[str] | None = None,
    read_run: Callable[[Path], RunRecord] = read_scored,
) -> list[tuple[Path, RunRecord]]:
    """Every run at or below paths and globs (``runs/bert-s*``), in path order, each once.

    A pattern that matches nothing may be the prefix of a run's name (``run_named``). Raises RunError if it
    is none, no run is found, or a record or folder cannot be read; with ``unreadable``, the last is appended
    to that list instead, as long as one record can be read.
    """
    problems: list[str] = [] if unreadable is None else unreadable
    paths: list[Path] = []
    for pattern in map(str, patterns):
        named = Path(pattern).exists()  # then brackets in the name are no pattern
        matches = [pattern] if named else sorted(glob.glob(pattern))  # noqa: PTH207
        if not matches and (folder := run_named(pattern)) != pattern:
            matches = [folder]
        if not matches:
            raise RunError(f"{pattern}: no such run or folder, and nothing matches it as a pattern")
        for match in map(Path, matches):
            if match.is_dir():
                paths += _walk(match, problems)
            elif named or match.name == RECORD:  # a pattern may also match other files
                paths.append(match)
    runs = []
    for path in dict.fromkeys(paths):
        try:
            runs.append((path.parent, read_run(path)))
        except RunError as error:
            problems.append(str(error))
    if problems and unreadable is None:
        raise RunError("; ".join(problems))
    if not runs:
        where = ", ".join(map(str, patterns)) or "no folder"
        nothing = f"{where}: holds no {RECORD}; train a model first (qa-arch train)"
        raise RunError("; ".join(unreadable or [nothing]))
    return runs


def recorded(folder: Path, records: Globs) -> Runs:
    """Committed runs of the experiment in ``folder``, in path order, with paths relative to it."""
    globs = [records] if isinstance(records, str) else records
    top = folder / RECORDS
    matches = (path for glob in globs for path in top.glob(f"{glob.rstrip('/')}/**/{RECORD}"))
    return [(path.parent.relative_to(folder), read_scored(path)) for path in _records_below(top, matches)]


def _walk(top: Path, problems: list[str]) -> list[Path]:
    """Run records below ``top``. Unlike a glob it finds links that lead nowhere, and adds folders that cannot
    be read to ``problems``."""
    failed: dict[Path, OSError] = {}
    # Without ``onerror`` folders that cannot be read are passed over.
    walk = os.walk(top, onerror=lambda error: failed.update({Path(error.filename, RECORD): error}))
    matches = [Path(folder, RECORD) for folder, *names in walk if RECORD in chain(*names)]
    problems += [
        f"{path.parent}: cannot be read ({failed[path].strerror}), perhaps with runs; correct its permissions"
        for path in _records_below(top, failed)
        if not isinstance(failed[path], FileNotFoundError)  # removed meanwhile
    ]
    return _records_below(top, matches)


def _records_below(top: Path, paths: Iterable[Path]) -> list[Path]:
    """The run records among ``paths``, sorted, each once: not files of this name below a run's model and
    wandb's folder, and in folders still being copied."""

    def is_skipped(folder: Path) -> bool:
        inside = folder.name in (MODEL, WANDB) and (top / folder.parent / RECORD).is_file()
        return inside or files.is_unfinished(folder)

    return [path for path in sorted({*paths}) if not any(map(is_skipped, path.relative_to(top).parents))]


def questions_folder(run: Path, split: str = DEV) -> Path:
    """Folder of a scored set's question rows: the run folder for dev, below ``sets`` for others."""
    return run if split == DEV else run / "sets" / split


def write_questions(folder: str | Path, columns: Mapping[str, Sequence[Any]]) -> str:
    """Write one row per question (id, kind, scores, offsets, null odds, windows), compressed, no text.

    Returns the hash of the file, for ``RunRecord.rows``.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({name: _compact(name, pa.array(values)) for name, values in columns.items()})
    target = Path(folder) / QUESTIONS
    with files.replacing(target) as path:
        pq.write_table(
            table,
            path,
            compression="zstd",
            compression_level=15,
            use_dictionary=[name for name in columns if name not in ENCODINGS],
            column_encoding=ENCODINGS,
            write_statistics=False,
        )
        return files.file_hash(path)


def _compact(name: str, values: Any) -> Any:
    """The column in the smallest type that changes no table."""
    import pyarrow as pa

    if name in SINGLE and pa.types.is_floating(values.type):
        return values.cast(pa.float32())
    if pa.types.is_integer(values.type):
        with suppress(pa.ArrowInvalid):  # a number beyond 32 bits, which no real row has
            return values.cast(pa.int32())
    return values


def read_questions(folder: str | Path) -> dict[str, list[Any]]:
    """Read the columns written by ``write_questions``; RunError if the file is missing, damaged or has values
    of other types: texts, numbers and booleans, an id for every row, whole and finite numbers as offsets."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow import types

    path = Path(folder) / QUESTIONS
    if not path.is_file():
        raise RunError(f"{path}: missing; the run did not finish scoring")

    def is_text(kind: pa.DataType) -> bool:
        return types.is_string(kind) or types.is_null(kind)

    def is_value(kind: pa.DataType) -> bool:
        return is_text(kind) or types.is_primitive(kind)

    fits = {
        **dict.fromkeys(TEXT_COLUMNS, is_text),
        **dict.fromkeys(WHOLE_COLUMNS, types.is_integer),
        **dict.fromkeys(TRUTH_COLUMNS, types.is_boolean),
    }
    try:
        with pq.ParquetFile(path) as file:
            facts, batches, room = file.metadata, [], MOST_BYTES
            if (count := facts.num_rows * facts.num_columns) > MOST_VALUES:
                raise ValueError(f"{count:,} values, more than {MOST_VALUES:,}")
            groups, columns = range(facts.num_row_groups), range(facts.num_columns)
            sizes = (facts.row_group(g).column(c).total_uncompressed_size for g in groups for c in columns)
            # No text is longer than what is stored of its column: a batch of them fits into the limit.
            longest = max([1, *sizes])
            for batch in file.iter_batches(max(1, min(MOST_BYTES // longest, 65536))):
                batches.append(batch)
                if (room := room - batch.nbytes) < 0:
                    raise ValueError(f"more than {MOST_BYTES >> 20} MiB of values")
            table = pa.Table.from_batches(batches, file.schema_arrow)  # also of no batch
        for column in table.schema:
            if not fits.get(column.name, is_value)(column.type):
                raise ValueError(f"a column has the wrong type: {column.name} is {column.type}")
        for name in ("id", *WHOLE_COLUMNS, *TRUTH_COLUMNS):
            if name in table.column_names and table[name].null_count:
                raise ValueError(f"a row has no {name}")
        return table.to_pydict()
    except (
        pa.ArrowException,
        OSError,
        ValueError,
        MemoryError,
    ) as error:  # ValueError: invalid UTF-8
        reason = first_line(error)
        raise RunError(
            f"{path}: not readable ({reason}); score the run again (qa-arch evaluate --run) or copy it again"
        ) from error


def _plain(value: Any) -> Any:
    """Convert a record to JSON values; below the top level, fields at their default are omitted."""
    if is_dataclass(value) and not isinstance(value, type):
        return {
            f.name: _plain(getattr(value, f.name))
            for f in fields(value)
            # A field without a default has MISSING here, which no value equals.
            if getattr(value, f.name) != (f.default if f.default_factory is MISSING else f.default_factory())
        }
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value
