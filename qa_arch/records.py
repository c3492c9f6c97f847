"""The record of a run: ``run.json`` and ``questions.parquet``, typed, written whole and read back.

A run is scored on sets of questions, called splits (``dev``, ``calibration``, the name of another set), and
on each of them at one or several operating points. Every table reads these files and nothing else; they hold
no text of a data set. A record is written when the run starts (``running``), after each epoch and at its end.
"""

from __future__ import annotations

import glob
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from qa_arch.config.check import read, suggest
from qa_arch.config.files import is_unfinished, read_json, replacing, write_json
from qa_arch.errors import ConfigError, RunError
from qa_arch.system.lock import LOCK, holder
from qa_arch.types.text import QuestionSet

SCHEMA = 2
SELECTION = "selection"
"""The protocol of answer selection and of classification: candidates are ranked."""
LANGUAGE = ("masked_lm", "causal_lm", "masked_spans")
"""What the protocols of pre-training begin with: tokens are predicted. Behind a colon is a hash of what the
scores depend on beside text and model: tokenizer, length of blocks, noise."""
DEV, CALIBRATION, TRAIN = "dev", "calibration", "train"

MARGIN_0 = "margin_0"
"""Null threshold 0."""
CALIBRATED = "calibrated"
"""The null threshold that was fitted on the calibration split."""
GIVEN = "given"
"""The null threshold that ``qa-arch evaluate --null-threshold`` named; of an adopted run, its answers as they
are."""
NEVER_NULL = "never_null"
""""No answer" is never given: the scores of the spans alone, and the only point of SQuAD 1.1."""
ORACLE = "oracle"
"""The null threshold that fits the scored set best: a bound, no result."""
RANKED = "ranked"
"""Candidates are ranked, there is no threshold."""
TOKENS = "tokens"
"""Tokens are predicted, there is no threshold."""
COMPARED = (CALIBRATED, GIVEN, NEVER_NULL, RANKED, TOKENS)
"""The operating point that runs are compared at: the first of these that a split was scored at."""


_HEADLINE = {"exact": "EM", "f1": "F1", "accuracy": "top-1", "mrr": "MRR", "perplexity": "perplexity"}
"""Scores by which a record is told in a line, of any task."""


def is_language(protocol: str | None) -> bool:
    """Whether a protocol is that of pre-training."""
    return protocol is not None and protocol.partition(":")[0] in LANGUAGE


def is_of_spans(protocol: str | None) -> bool:
    """Whether a protocol is SQuAD's, by which spans are scored."""
    return protocol != SELECTION and not is_language(protocol)


Status = Literal["running", "ok", "oom", "failed", "killed"]
Number = int | Annotated[float, "measured"]
"""A result of a run: it may be infinite or NaN."""
T = TypeVar("T", bound="_Open")


class _Open:
    """A record with known fields and a mapping for further values of a task."""

    __slots__ = ()
    OPEN = "metrics"

    @classmethod
    def nest(cls, flat: Any) -> Any:
        """``flat``, if it is a mapping, with everything that is no field moved into the open one."""
        if not isinstance(flat, Mapping):
            return flat
        known = {f.name for f in fields(cls)} - {cls.OPEN}  # type: ignore[arg-type]
        own = {key: value for key, value in flat.items() if key in known}
        return {**own, cls.OPEN: {key: value for key, value in flat.items() if key not in known}}

    @classmethod
    def from_flat(cls: type[T], flat: Mapping[str, Any]) -> T:
        """The record of a flat mapping, as metrics and callbacks make them."""
        nested = cls.nest(flat)
        return cls(
            **{key: tuple(value) if isinstance(value, list) else value for key, value in nested.items()}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitFacts(_Open):
    """Facts of a split; None for what a task does not have."""

    OPEN = "extra"

    name: str | None = None
    fingerprint: str | None = None
    """SHA-256 over the content of the questions."""
    protocol: str | None = None
    questions: int | None = None
    unanswerable: int | None = None
    titles: tuple[str, ...] = ()
    """The articles, which show whether a set that is scored later was trained on."""
    windows: int | None = None
    truncated_questions: int | None = None
    """Questions longer than the encoder is given."""
    lost_answers: int | None = None
    """Gold answers that no window holds."""
    skipped: int | None = None
    """Faulty records that were left out."""
    candidates: float | None = None
    """The mean number of candidates of a question, in answer selection."""
    answers: int | None = None
    left_out: int | None = None
    """The number of questions with nothing to select, in answer selection."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Facts that only one kind of run has; ``language`` where answers are not English."""

    @classmethod
    def of(cls, questions: QuestionSet) -> SplitFacts:
        """The facts that a set of questions about passages has by itself, without titles."""
        return cls(
            name=questions.name,
            fingerprint=questions.fingerprint,
            protocol=questions.protocol,
            questions=len(questions),
            unanswerable=sum(not example.answerable for example in questions.examples),
            skipped=len(questions.skipped),
            extra=questions.other_language,
        )

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of ``extra``."""
        return {key: value for key, value in self.extra.items() if isinstance(value, int)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point(_Open):
    """The scores of one split at one operating point; rates in percent."""

    threshold: Number | None = None
    """Null odds above it made the answer "no answer"; None where no threshold applies."""
    protocol: str
    metric_version: str
    overlap: tuple[str, ...] = ()
    """Articles that the split shares with the run's training data."""
    engine: str | None = None
    """What computed the logits, and in which precision: ``torch fp32``, ``onnx int8 as u8u8``, where that is
    not the fastest product (``nn.processor``). None: not recorded."""
    metrics: Mapping[str, Number | None]
    """By the keys of the official evaluation (``HasAns_f1``), then ours."""

    def metric(self, key: str) -> Number | None:
        """A score by its official key, None where the point has none; ``exact`` serves both protocols."""
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
        about: dict[str, Any] = {"threshold": self.threshold} if is_of_spans(self.protocol) else {}
        about |= {"protocol": self.protocol, "metric_version": self.metric_version}
        about |= {"overlap": list(self.overlap)} if self.overlap else {}
        return {**self.metrics, **about, **({"engine": self.engine} if self.engine else {})}


Points = Mapping[str, Point]
"""By the name of the operating point, or of the heuristic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch(_Open):
    """One epoch of training; seconds are those of training and of validation, apart."""

    epoch: int | None = None
    """From 0."""
    step: int | None = None
    """Optimizer steps so far."""
    train_loss: Number | None = None
    train_seconds: float | None = None
    validation_seconds: float | None = None
    windows: int | None = None
    windows_per_second: float | None = None
    lr: Number | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """Scores of the calibration split, ``calibration_loss`` among them."""

    def value(self, key: str) -> Number | None:
        """A field or a metric by its name; None where the epoch has no such number."""
        value = self.metrics.get(key, getattr(self, key, None))
        return value if isinstance(value, int | float) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    kind: str | None = None
    """``cpu`` or ``cuda``."""
    name: str | None = None
    cores: int | None = None
    threads: int | None = None
    memory_gb: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSizes:
    """Windows (questions, pairs) of a micro batch, and what they are multiplied by for an optimizer step."""

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
    """Fixed, and not part of the total."""
    nonzero: int | None = None
    """The number that are not zero, of the total; None where nothing was pruned or quantised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """The run that a smaller one was made of."""

    run: str
    """Name of its folder, or of the checkpoint."""
    config_hash: str
    revision: str | None = None
    """The hub's commit of a downloaded checkpoint, or the hash over its files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of asking a run on a CPU, in turn with another run (``benchmarks.compression``)."""

    baseline: str
    """Folder and config hash of that run; ratios are to its figures."""
    engine: Literal["torch", "onnx"]
    precision: str
    processor: str
    threads: int
    questions: int
    """Asked one at a time, ``repeats`` times, in turn with the baseline."""
    repeats: int
    latency_ms: float
    """Median of a repeat's mean time for a question."""
    latency_ratio: float
    """Median over neighbouring repeats; below 1 is faster than the baseline."""
    memory_mb: float
    """Private memory in MiB that model and reading took at most, in a process of its own."""
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

    value: Number | None
    """None: "no answer" is never given."""
    fitted_on: str
    """A split, or ``nothing``."""
    prior: Number | None = None
    """The share that unanswerable questions counted as in the fit; None: that which they had in the split."""

    @property
    def limit(self) -> float:
        """The value, ``inf`` where "no answer" is never given."""
        return math.inf if self.value is None else float(self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answerability:
    """P(answerable) = 1 / (1 + exp(-(``intercept`` + ``slope`` * null odds)))."""

    slope: float
    intercept: float
    fitted_on: str
    prior: Number | None = None
    """As in ``Threshold``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confidence:
    """How scores become the probability that an answer is right (``metrics.confidence``)."""

    method: Literal["temperature"]
    value: float
    fitted_on: str
    """A split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderRun:
    """The pre-training run that a run took its encoder from."""

    model: str
    seed: int
    config_hash: str
    system: str
    """The same hash without the seed: equal of runs that differ in nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherFacts:
    """The model that a distilled one learned from, in whatever folder it was."""

    name: str
    """The name of its run folder, or of the checkpoint."""
    config_hash: str
    fingerprint: str
    """SHA-256 over its files."""
    precision: str
    """In which it was read."""
    titles: tuple[str, ...] = ()
    """Articles that it was trained or calibrated on and the student was not."""


@dataclass(frozen=True, order=True)
class Measure:
    """The set and the metric of a figure; figures of different measures do not compare."""

    fingerprint: str
    protocol: str
    metric_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A run: its settings, data, machine, cost and scores."""

    schema: int = SCHEMA
    status: Status
    name: str
    """The experiment."""
    model: str
    seed: int
    config: Mapping[str, Any]
    config_hash: str
    commit: str | None = None
    dirty: bool | None = None
    """Whether the checkout had changes that ``commit`` does not hold; None outside a checkout."""
    created: str = ""
    data: Mapping[str, SplitFacts] = field(default_factory=dict)
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
    """None where the task has no null, or the run no scores yet."""
    confidence: Confidence | None = None
    """None where nothing was fitted: without a calibration split, or in older records."""
    answerability: Answerability | None = None
    """None where nothing was fitted: no null, no calibration split, or questions of a single kind there."""
    references: Mapping[str, Points] = field(default_factory=dict)
    """By split, then by heuristic: what needs no learning scores on the same questions."""
    scores: Mapping[str, Points] = field(default_factory=dict)
    """By split, then by operating point."""
    error: str | None = None
    members: tuple[str, ...] = ()
    """The runs, each with its config hash, that an ensemble or another decoding is made of."""
    strategy: str | None = None
    """``single``, ``ddp``, ``ddp_spawn``, ``fsdp``, ``deepspeed``: how the devices trained together."""
    precision: str | None = None
    """What the products were computed in, where the config leaves it to the machine as well."""
    optimizer_bits: int | None = None
    encoder: EncoderRun | None = None
    """None where ``encoder.name`` names no pre-training run."""
    weights_bytes: int | None = None
    """On disk, of the files with the model's weights; None in older records."""
    parent: Parent | None = None
    """None for a run that was trained from its own beginning."""
    cost: Cost | None = None
    """None where it was not measured."""
    teacher: TeacherFacts | None = None
    """None where nothing was distilled; such a record does not name the field."""

    def __repr__(self) -> str:
        return f"RunRecord({self.brief})"

    @property
    def brief(self) -> str:
        """One line: model, seed, how it ended, and the headline scores of dev, else of calibration."""
        split = DEV if DEV in self.scores else CALIBRATION
        point = self.compared_point(split)
        values = {} if point is None else {name: point.metric(key) for key, name in _HEADLINE.items()}
        scores = ", ".join(f"{name} {value:.1f}" for name, value in values.items() if value is not None)
        return f"{self.model}, seed {self.seed}, {self.status}" + (f": {split} {scores}" if scores else "")

    def facts(self, split: str) -> SplitFacts:
        """The facts of a split; none where the record does not name it."""
        return self.data.get(split, SplitFacts())

    def fingerprint(self, split: str) -> str | None:
        return self.facts(split).fingerprint

    def split_of(self, fingerprint: str) -> str | None:
        """The name of the scored set with this fingerprint; None where the run was not scored on it."""
        return next((split for split in self.scores if self.fingerprint(split) == fingerprint), None)

    @property
    def trained_titles(self) -> frozenset[str]:
        """Articles that the run, or its teacher, was trained or calibrated on."""
        own = frozenset(title for facts in self.data.values() for title in facts.titles)
        return own | frozenset(self.teacher.titles if self.teacher else ())

    def point(self, split: str, name: str) -> Point | None:
        return self.scores.get(split, {}).get(name)

    def compared_point(self, split: str) -> Point | None:
        """The operating point that runs are compared at; None where the split was not scored."""
        points = self.scores.get(split, {})
        return next((points[name] for name in COMPARED if name in points), None)

    def spans_f1(self, split: str) -> Number | None:
        """F1 on the answerable questions where "no answer" is never given; of SQuAD 1.1 that is F1."""
        point = self.point(split, NEVER_NULL)
        if point is None:
            return None
        value = point.metric("HasAns_f1")
        return point.f1 if value is None and point.protocol == "1.1" else value

    def measure(self, split: str) -> Measure | None:
        """None where the record has no scores of the split."""
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
        """By which scores are divided before they become confidences; 1 where nothing was fitted."""
        return self.confidence.value if self.confidence else 1.0

    @property
    def selects(self) -> bool:
        """Whether the run ranks candidates, as the data say that it read: it has no spans."""
        return any(facts.protocol == SELECTION for facts in self.data.values())

    @property
    def adopted(self) -> bool:
        """Whether the run is the answers of another system (``qa-arch adopt``): it has no weights."""
        return "predictions" in self.config

    @property
    def pretrains(self) -> bool:
        """Whether the run is a pre-training run, which predicts tokens and finds no spans."""
        return any(is_language(facts.protocol) for facts in self.data.values())

    def setting(self, section: str, key: str) -> Any:
        """``section.key`` of the config; None where the run's config has no such setting."""
        return self.config.get(section, {}).get(key)


RECORD = "run.json"
CHECKPOINTS = "checkpoints"
"""The experiment of downloaded checkpoints that were not trained here."""
ADOPTED = "adopted"
"""The experiment of systems of which only the answers are here (``qa-arch adopt``)."""
NO_SPANS, SCORED_EMPTY = "answers_not_in_passage", "questions_scored_as_empty"
"""Extra facts of the set that such a system answered."""
QUESTIONS = "questions.parquet"
RECORDS = "records"
"""The folder of an experiment's committed runs."""
MODEL = "model"
"""The folder of a run's weights, its encoder and its tokenizer; what is published has none."""
PRETRAINED = "encoder"
"""The folder within ``MODEL`` of a pre-training run's encoder and tokenizer, as transformers opens them."""
TOKENIZER, VECTORS = "tokenizer", "vectors"
"""The folders within ``MODEL`` of tokenizer and word vectors."""
SECTIONS = frozenset(
    (
        *("data", "features", "encoder", "glove", "model", "optim", "trainer", "decode"),
        *("selection", "calibration", "pretraining", "distillation"),
    )
)
"""The sections of a record's config that are mappings, if they are there."""
ONNX, GRAPH = "onnx", "model.onnx"
"""The folder of a run's graph for ONNX Runtime, if ``qa-arch export`` wrote one, and the graph within it; the
record is the run's."""
Runs = Sequence[tuple[Path, RunRecord]]
"""Run folders with their records."""
Globs = str | Sequence[str]
"""One or several folders or globs below ``records/``."""


def write_record(folder: str | Path, record: RunRecord) -> Path:
    """``run.json`` in the folder, written whole or not at all."""
    top = {f.name: _plain(getattr(record, f.name)) for f in fields(record)}
    if record.teacher is None:
        del top["teacher"]
    return write_json(Path(folder) / RECORD, top)


def read_record(folder: str | Path) -> RunRecord:
    """The record in a run folder (or a path to the file itself), of this schema or of the one before.

    A run that no longer holds its lock is ``killed``. RunError names the file, the field and the remedy where
    the record cannot be used.
    """
    path = Path(folder)
    path = path / RECORD if path.is_dir() else path
    if not path.exists():
        raise RunError(_no_run(Path(folder)))
    record = parse_record(read_json(path, "run it again or delete the folder"), path)
    stale = record.status == "running" and (path.parent / LOCK).exists() and not holder(path.parent)
    return replace(record, status="killed") if stale else record


def _no_run(folder: Path) -> str:
    """A message about a folder without a record: the runs in it, else the most similar one near it."""
    inside, siblings = (_records_below(place, f"*/{RECORD}") for place in (folder, folder.parent))
    near = inside or {*siblings, *_records_below(Path("runs"), f"**/{RECORD}")}
    hint = suggest("" if inside else str(folder), (str(path.parent) for path in near), most=5)
    return f"{folder}: {f'holds no {RECORD}' if folder.is_dir() else 'no such run folder'}{hint}"


def read_trained(folder: str | Path) -> RunRecord:
    """The record of a run that was trained; RunError where only its answers are here."""
    record = read_record(folder)
    if record.adopted:
        raise RunError(f"{folder}: adopted from a prediction file: it has no weights; name a trained run")
    return record


def read_finished(folder: str | Path) -> RunRecord:
    """The record of a run that can answer; RunError where the run is not finished, or has no weights."""
    record = read_trained(folder)
    if record.status != "ok":
        raise RunError(
            f"{folder}: the run's status is '{record.status}', only a finished one can answer;"
            f" go on with it: qa-arch train --config-from {folder} --folder {folder} --resume"
        )
    return record


def parse_record(raw: Any, path: str | Path = RECORD) -> RunRecord:
    """JSON as a record, checked at every depth; ``path`` is named where it is none."""
    if not isinstance(raw, Mapping) or "schema" not in raw:
        raise RunError(f"{path}: not a run record (it has no 'schema')")
    if raw["schema"] not in (1, SCHEMA) or isinstance(raw["schema"], bool):
        raise RunError(
            f"{path}: record of schema {raw['schema']!r}, this version reads {SCHEMA} and 1;"
            " use the qa_arch version that wrote it"
        )
    try:
        record = read(RunRecord, _upgraded(raw) if raw["schema"] == 1 else raw)
        for section in SECTIONS & record.config.keys():
            if not isinstance(record.config[section], Mapping):
                raise ConfigError(f"config.{section}: expected a mapping")
        limit = record.threshold.value if record.threshold else None
        if limit is not None and not math.isfinite(limit):
            raise ConfigError("threshold.value: expected a finite number, or null")
    except ConfigError as error:
        raise RunError(f"{path}: {error}; score the run again or copy it anew") from None
    _check_names(record, path)
    return record


def _check_names(record: RunRecord, path: str | Path) -> None:
    """Raise RunError where a name of the record, which becomes a part of paths, leads out of its folder.

    A set is a single folder; an experiment may be one within another.
    """
    experiments = {record.name, str(record.config.get("name", record.name))}
    sets = {*record.data, *record.scores, *record.references}
    split = [name for name in sets if "/" in name]
    if wrong := split + [
        name for name in experiments | sets if "\0" in name or {"", ".", ".."} & {*name.split("/")}
    ]:
        raise RunError(f"{path}: {min(wrong)!r} cannot be the name of a folder; do not use this record")


def find_runs(
    patterns: Sequence[str | Path], *, unreadable: list[str] | None = None
) -> list[tuple[Path, RunRecord]]:
    """Every run at or below paths and globs (``runs/bert-s*``), in the order of paths, each once.

    RunError where a pattern matches nothing, where no run is found, and for a record that cannot be read;
    with ``unreadable`` the last is added to that list and goes on, as long as one record can be read.
    """
    paths: list[Path] = []
    for pattern in map(str, patterns):
        named = Path(pattern).exists()
        matches = [pattern] if named else sorted(glob.glob(pattern))  # noqa: PTH207
        if not matches:
            raise RunError(f"{pattern}: no such run, folder or pattern that matches one")
        for match in map(Path, matches):
            if match.is_dir():
                paths += _records_below(match, f"**/{RECORD}")
            elif named or match.name == RECORD:  # a pattern also matches what lies beside the runs
                paths.append(match)
    runs = []
    for path in dict.fromkeys(paths):
        try:
            runs.append((path.parent, read_record(path)))
        except RunError as error:
            if unreadable is None:
                raise
            unreadable.append(str(error))
    if not runs:
        nothing = f"{', '.join(map(str, patterns))}: holds no {RECORD}; train a model first (qa-arch train)"
        raise RunError("; ".join(unreadable or [nothing]))
    return runs


def recorded(folder: Path, records: Globs) -> Runs:
    """The committed runs of the experiment in ``folder``, in path order, by their place in it."""
    globs = [records] if isinstance(records, str) else records
    patterns = [f"{glob.rstrip('/')}/**/{RECORD}" for glob in globs]
    paths = {path for pattern in patterns for path in _records_below(folder / RECORDS, pattern)}
    return [(path.parent.relative_to(folder), read_record(path)) for path in sorted(paths)]


def _records_below(top: Path, pattern: str) -> list[Path]:
    """The records of runs, in the order of paths. Not those that a model holds, as of the classifier whose
    classes it reads, and not what is being copied."""

    def is_part(folder: Path) -> bool:
        return is_unfinished(folder) or (folder.name == MODEL and (top / folder.parent / RECORD).is_file())

    paths = sorted(top.glob(pattern))
    return [path for path in paths if not any(map(is_part, path.relative_to(top).parents))]


def questions_folder(run: Path, split: str = DEV) -> Path:
    """Where a run keeps the rows of a scored set: dev beside the record, others below ``sets``."""
    return run if split == DEV else run / "sets" / split


def write_questions(folder: str | Path, columns: Mapping[str, Sequence[Any]]) -> Path:
    """One row a question (id, kind, scores, offsets, null odds, windows), compressed, no text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({name: pa.array(values) for name, values in columns.items()})
    target = Path(folder) / QUESTIONS
    with replacing(target) as path:
        pq.write_table(table, path, compression="zstd")
    return target


def read_questions(folder: str | Path) -> dict[str, list[Any]]:
    """The columns that ``write_questions`` wrote; RunError where the file is missing or damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(folder) / QUESTIONS
    if not path.is_file():
        raise RunError(f"{path}: missing; the run did not finish scoring")
    try:
        return pq.read_table(path).to_pydict()
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise RunError(
            f"{path}: not readable ({reason}); score the run again (qa-arch evaluate --run) or copy it anew"
        ) from error


def _plain(value: Any) -> Any:
    """A record as JSON has it: below the top, fields that hold their default are left out."""
    if is_dataclass(value) and not isinstance(value, type):
        return {
            f.name: _plain(getattr(value, f.name))
            for f in fields(value)
            if getattr(value, f.name) != (f.default if f.default_factory is MISSING else f.default_factory())
        }
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value


def _upgraded(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A record of schema 1, where points, epochs and splits were flat mappings and the threshold a margin."""
    new = {**raw, "schema": SCHEMA}
    margin = new.pop("margin", {})
    if not isinstance(margin, Mapping):
        raise ConfigError("margin: expected a mapping")
    new |= {"threshold": margin} if margin else {}
    if isinstance(raw.get("batch"), Mapping):
        new["batch"] = {"global_size" if key == "global" else key: size for key, size in raw["batch"].items()}
    if isinstance(raw.get("epochs"), list):
        new["epochs"] = [Epoch.nest(epoch) for epoch in raw["epochs"]]
    if isinstance(raw.get("data"), Mapping):
        new["data"] = {split: SplitFacts.nest(facts) for split, facts in raw["data"].items()}
    for key in ("scores", "references"):
        if isinstance(raw.get(key), Mapping):
            new[key] = {
                split: {name: Point.nest(point) for name, point in points.items()}
                if isinstance(points, Mapping)
                else points
                for split, points in raw[key].items()
            }
    return new
