"""The contents of ``run.json`` as frozen dataclasses: settings, provenance and results of a run.

``results.record`` reads and writes the file. A run is scored on sets of questions, called splits (``dev``,
``calibration``, or the name of another set), and on each of them at one or several operating points.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal, TypeVar

SCHEMA = 2
SELECTION = "selection"
"""The protocol of answer selection and of classification: candidates are ranked."""
LANGUAGE = ("masked_lm", "causal_lm", "denoising")
"""What the protocols of pre-training begin with: tokens are predicted. Behind a colon is a hash of what the
scores depend on beside text and model: tokenizer, length of blocks, noise."""
DEV, CALIBRATION, TRAIN = "dev", "calibration", "train"

MARGIN_0 = "margin_0"
"""Null threshold 0."""
CALIBRATED = "calibrated"
"""The null threshold that was fitted on the calibration split."""
GIVEN = "given"
"""The null threshold that ``qa-arch evaluate --margin`` named."""
NEVER_NULL = "never_null"
""""No answer" is never given: the scores of the spans alone, and the only point of SQuAD 1.1."""
ORACLE = "oracle"
"""The null threshold that fits the scored set best: a bound, no result."""
RANKED = "ranked"
"""Candidates are ranked, there is no threshold."""
TOKENS = "tokens"
"""Tokens are predicted, there is no threshold."""
COMPARED = (CALIBRATED, NEVER_NULL, RANKED, TOKENS)
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
"""What came out of a run: it may be infinite or NaN."""
T = TypeVar("T", bound="_Open")


class _Open:
    """A record with known fields and a mapping for further values of a task."""

    __slots__ = ()
    OPEN = "metrics"

    @classmethod
    def nest(cls, flat: Mapping[str, Any]) -> dict[str, Any]:
        """``flat`` with everything that is no field moved into the open mapping."""
        known = {f.name for f in fields(cls)} - {cls.OPEN}  # type: ignore[arg-type]
        own = {key: value for key, value in flat.items() if key in known}
        return {**own, cls.OPEN: {key: value for key, value in flat.items() if key not in known}}

    @classmethod
    def from_flat(cls: type[T], flat: Mapping[str, Any]) -> T:
        """The record of a flat mapping, as metrics and callbacks make them."""
        return cls(**{key: _frozen(value) for key, value in cls.nest(flat).items()})


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
    """Articles, by which a set that is scored later is known to have been trained on."""
    windows: int | None = None
    truncated_questions: int | None = None
    """Questions longer than the encoder is given."""
    lost_answers: int | None = None
    """Gold answers that no window holds."""
    skipped: int | None = None
    """Faulty records that were left out."""
    candidates: float | None = None
    """Of answer selection: candidates of a question, on average."""
    answers: int | None = None
    left_out: int | None = None
    """Of answer selection: questions with nothing to select."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Facts that only one kind of run has."""


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
    """What computed the logits, and in which precision: ``torch fp32``, ``onnx int8``. None: not recorded."""
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

    @property
    def accuracy(self) -> Number | None:
        """Top-1 accuracy of answer selection and classification."""
        return self.metric("accuracy")

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
    """Windows (questions, pairs) of a micro batch, and what they are multiplied by for an optimizer step.

    Under a token budget ``tokens`` is that of a micro batch, and ``micro`` and ``global_size``, which vary,
    are None.
    """

    micro: int | None = None
    accumulate: int | None = None
    devices: int | None = None
    global_size: int | None = None
    """The product of the three."""
    tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    total: int | None = None
    trainable: int | None = None
    blocks: Mapping[str, int] = field(default_factory=dict)
    word_vectors: int | None = None
    """Fixed, and not part of the total."""
    nonzero: int | None = None
    """Of the total, those that are not zero; None where nothing was pruned or quantised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """The run that a smaller one was made of."""

    run: str
    """Name of its folder, or of the checkpoint."""
    config_hash: str
    revision: str | None = None
    """Of a downloaded checkpoint: the hub's commit, or the hash over its files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What asking a run costs on a CPU, in turn with another run (``benchmarks.compression``)."""

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
    """The model that a distilled one learned from, wherever it lay."""

    name: str
    """Of its run folder, or of the checkpoint."""
    config_hash: str
    fingerprint: str
    """SHA-256 over its files."""
    precision: str
    """In which it was read."""
    titles: tuple[str, ...] = ()
    """Articles that it was trained or calibrated on and the student was not."""


@dataclass(frozen=True, order=True)
class Measure:
    """What a figure was measured on and by; figures of different measures do not compare."""

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
    """None where nothing was fitted: without a calibration split, or in records of before."""
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
    """On disk, of the files with the model's weights; None in records of before."""
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
        """What is known of a split; nothing where the record does not name it."""
        return self.data.get(split, SplitFacts())

    def fingerprint(self, split: str) -> str | None:
        return self.facts(split).fingerprint

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

    def measure(self, split: str) -> Measure | None:
        """None where the record has no scores of the split."""
        point, facts = self.compared_point(split), self.facts(split)
        if point is None:
            return None
        return Measure(str(facts.fingerprint), facts.protocol or point.protocol, point.metric_version)

    @property
    def null_threshold(self) -> float:
        """Null odds above it mean "no answer"; ``inf``: never given, 0: nothing was fitted."""
        if self.threshold is None:
            return 0.0
        return math.inf if self.threshold.value is None else float(self.threshold.value)

    @property
    def temperature(self) -> float:
        """By which scores are divided before they become confidences; 1 where nothing was fitted."""
        return self.confidence.value if self.confidence else 1.0

    @property
    def selects(self) -> bool:
        """Whether the run ranks candidates, as the data say that it read: it has no spans."""
        return any(facts.protocol == SELECTION for facts in self.data.values())

    @property
    def pretrains(self) -> bool:
        """Whether the run is a pre-training run, which predicts tokens and finds no spans."""
        return any(is_language(facts.protocol) for facts in self.data.values())

    def setting(self, section: str, key: str) -> Any:
        """``section.key`` of the config; None where the run's config has no such setting."""
        return self.config.get(section, {}).get(key)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
