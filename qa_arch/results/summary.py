"""One run as sections for a screen: what it was, how it went, what came out, where it comes from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from qa_arch.config.retired import upgrade
from qa_arch.config.schema import defaults
from qa_arch.errors import RunError
from qa_arch.records import (
    CALIBRATED,
    GIVEN,
    MARGIN_0,
    NEVER_NULL,
    ORACLE,
    RANKED,
    SELECTION,
    TOKENS,
    Epoch,
    RunRecord,
    SplitFacts,
    is_language,
    is_of_spans,
)
from qa_arch.results.columns import named
from qa_arch.results.questions import NAMES, UNTYPED, Mistakes, Questions, load_questions, mistakes
from qa_arch.results.tables import Table, number, text
from qa_arch.types.text import QuestionSet

HIGHLIGHTS = (
    "encoder.name",
    "encoder.init",
    "encoder.layers",
    "encoder.width",
    "optim.lr",
    "optim.head_lr",
    "optim.schedule",
    "trainer.epochs",
    "trainer.precision",
    "trainer.token_budget",
    "features.max_length",
    "features.stride",
    "decode.search",
)
"""Settings that are shown; the model's own are all shown."""
OF_SPANS = ("encoder", "features", "decode")
"""Sections that models which select something do not read."""

POINTS = {
    CALIBRATED: "calibrated",
    MARGIN_0: "threshold 0",
    GIVEN: "given",
    NEVER_NULL: "never null",
    ORACLE: "oracle (a bound)",
    RANKED: "none",
    TOKENS: "none",
}
SCORES = (
    *("exact", "f1", "HasAns_exact", "HasAns_f1", "NoAns_exact"),
    *("answerable_precision", "answerable_recall", "accuracy", "main_accuracy", "mrr"),
    *("token_accuracy", "perplexity", "bits_per_byte", "sentence_accuracy", "sentence_f1"),
)
"""Columns that are shown of every set and operating point."""
_BARS = "▁▂▃▄▅▆▇█"
_CURVES = {
    "train_loss": "training loss",
    "train_labels": "loss of labels",
    "train_soft_targets": "loss of soft targets",
    "calibration_loss": "calibration loss",
    "calibration_exact": "calibration EM",
    "calibration_f1": "calibration F1",
    "calibration_perplexity": "calibration perplexity",
    "calibration_token_accuracy": "calibration token accuracy",
}


@dataclass(frozen=True)
class Summary:
    """What ``qa-arch show`` shows; ``facts`` are headed lists of name and value."""

    title: str
    status: str
    error: str | None
    facts: Mapping[str, Sequence[tuple[str, str]]]
    scores: Table
    """A row for each scored set and margin."""
    curves: Sequence[tuple[str, str, Sequence[float | None]]]
    """Name, sparkline and the value of each epoch."""
    best_epoch: int | None
    mistakes: Mistakes | None
    """Every question judged; None where the run has no rows of questions."""
    note: str | None
    """Why there is no error split."""
    types: Table | None = None
    """Scores and errors by the main class of the question, where classes were given."""

    def as_dict(self) -> dict[str, Any]:
        result = self.mistakes
        return {
            "title": self.title,
            "status": self.status,
            "error": self.error,
            "facts": {head: dict(pairs) for head, pairs in self.facts.items()},
            "scores": [dict(row) for row in self.scores.rows],
            "curves": {name: list(values) for name, _, values in self.curves},
            "best_epoch": self.best_epoch,
            "errors": None if result is None else result.named,
            "mistakes": None if result is None else result.as_dict(),
            "note": self.note,
            "types": None if self.types is None else [dict(row) for row in self.types.rows],
        }


def summarise(
    folder: Path,
    record: RunRecord,
    split: str = "dev",
    questions: QuestionSet | None = None,
    *,
    types: Mapping[str, str] | None = None,
) -> Summary:
    """Read the run's record and, where they are, its rows of questions, judged beside ``questions``.

    ``questions`` are the set that ``split`` was scored on; DataError where they are not. ``types`` are
    classes of the questions by id; RunError where these are of other questions.
    """
    result, note, rows = None, None, None
    measure = record.measure(split)
    if measure is not None and is_of_spans(measure.protocol):
        try:
            rows = load_questions(folder, record, split)
            result = mistakes(rows, questions)
        except RunError as error:
            note = str(error)
    if types is not None and (rows is None or types.keys().isdisjoint(rows.ids)):
        raise RunError(note or f"--types: its questions are none of those of {folder} that {split} has")
    return Summary(
        title=f"{record.name} / {folder.resolve().name}",
        status=record.status,
        error=record.error,
        facts={"settings": _settings(record), "run": _run(record), "provenance": _provenance(record)},
        scores=scores_table(record),
        curves=_curves(record.epochs),
        best_epoch=record.best_epoch,
        mistakes=result,
        note=note,
        types=by_type(rows, result, types) if rows and result and types is not None else None,
    )


def by_type(rows: Questions, result: Mistakes, types: Mapping[str, str]) -> Table:
    """A row for each main class, those of most questions first: EM, F1 and shares of errors in percent."""
    mains = np.array([types.get(id_, UNTYPED).partition(":")[0] for id_ in rows.ids])
    outcomes = np.array([row.outcome for row in result.judged])
    errors = {NAMES[name]: outcomes == name for name in result.outcomes(result.counts) if name != "right"}
    names, counts = np.unique(mains, return_counts=True)
    table: list[dict[str, Any]] = []
    for name, count in sorted(zip(names.tolist(), counts.tolist(), strict=True), key=lambda pair: -pair[1]):
        own = mains == name
        figures = {"exact": rows.exact, "f1": rows.f1, **errors}
        shares = {key: 100 * float(values[own].mean()) for key, values in figures.items()}
        table.append({"kind": name, "questions": count, **shares})
    columns = [text("kind", "class"), number("questions", "questions"), *named(("exact", "f1"))]
    return Table("by predicted class, %", [*columns, *(number(name, name) for name in errors)], table)


def sparkline(values: Sequence[float | None]) -> str:
    """One bar a value between the lowest and the highest; a blank where there is none, or no number."""
    shown = [finite(value) for value in values]
    known = [value for value in shown if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    step = (high - low) / (len(_BARS) - 1) or 1.0
    return "".join(" " if value is None else _BARS[round((value - low) / step)] for value in shown)


def finite(value: Any) -> float | None:
    """None for what is no number, and for the loss of a training that has run away: JSON has neither NaN
    nor infinity."""
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def _settings(record: RunRecord) -> list[tuple[str, str]]:
    shown = []
    for key in HIGHLIGHTS:
        section, _, name = key.partition(".")
        if record.selects and section in OF_SPANS:
            continue
        value = record.setting(section, name)
        label = key == "encoder.name" and record.setting("encoder", "init") == "random"
        if value is not None and not label:  # a checkpoint of that name was not loaded
            shown.append((key, str(value)))
    if encoder := record.encoder:
        shown.append(("pre-trained by", f"{encoder.model} seed {encoder.seed} ({encoder.config_hash[:8]})"))
    own = record.config.get("model", {})
    shown += [(f"model.{key}", str(value)) for key, value in own.items() if key not in ("task", "name")]
    return [*shown, *_teaching(record)]


def _teaching(record: RunRecord) -> list[tuple[str, str]]:
    """The teacher, and the settings of its section that are not their defaults; empty without one."""
    if record.teacher is None:
        return []
    given = dict(upgrade(record.config)["distillation"])
    given["teacher"] = f"{record.teacher.name} (config {record.teacher.config_hash[:8]})"
    keys = (key for key, value in given.items() if value != defaults().get(f"distillation.{key}"))
    return [(f"distillation.{key}", str(given[key])) for key in keys]


def _run(record: RunRecord) -> list[tuple[str, str]]:
    batch = record.batch
    shown = [("seed", str(record.seed))]
    for split, facts in record.data.items():
        shown.append((f"{split} set", _about(facts)))
    if batch.devices is not None:
        times = f"× {batch.accumulate} × {batch.devices}"
        windows = f"{batch.global_size} ({batch.micro} {times})"
        shown.append(("batch", windows if batch.tokens is None else f"{batch.tokens:,} tokens {times}"))
    if record.parameters.total is not None:
        blocks = ", ".join(f"{k} {v:,}" for k, v in record.parameters.blocks.items())
        shown.append(("parameters", f"{record.parameters.total:,} ({blocks})"))
    if record.parameters.nonzero is not None:
        shown.append(("not zero", f"{record.parameters.nonzero:,}"))
    if record.weights_bytes is not None:
        shown.append(("weights on disk", f"{record.weights_bytes / 1e6:,.1f} MB"))
    if parent := record.parent:
        shown.append(("made of", f"{parent.run} (config {parent.config_hash[:12]})"))
    for step in record.config.get("compression") or ():
        own = ", ".join(f"{k} {v}" for k, v in step.items() if k != "method" and v is not None)
        shown.append((f"made smaller by {step['method']}", own))
    if cost := record.cost:
        times = f"{cost.latency_ms:,.1f} ms a question, {cost.latency_ratio:.2f} × that of {cost.baseline}"
        shown.append((f"latency, {cost.engine} in {cost.precision} on {cost.threads} threads", times))
        shown.append(("memory", f"{cost.memory_mb:,.0f} MB, {cost.memory_ratio:.2f} ×"))
    seconds = asdict(record.seconds).items()
    shown += [(f"seconds, {name}", f"{value:,.1f}") for name, value in seconds if value is not None]
    if record.examples_per_second is not None:
        shown.append(("windows a second", f"{record.examples_per_second:,.1f}"))
    if record.peak_memory_mb is not None:
        shown.append(("peak memory", f"{record.peak_memory_mb:,.0f} MB"))
    if threshold := record.threshold:
        value = "never null" if threshold.value is None else f"{threshold.value:.3f}"
        shown.append(("null threshold", f"{value}, fitted on {threshold.fitted_on}"))
    if confidence := record.confidence:
        shown.append(("confidence", f"{confidence.method} {confidence.value:.2f}, on {confidence.fitted_on}"))
    return shown


def _about(facts: SplitFacts) -> str:
    """How large a split is."""
    if is_language(facts.protocol):
        counts = {name: facts.extra.get(name) or 0 for name in ("documents", "tokens", "bytes")}
        return f"{', '.join(f'{count:,} {name}' for name, count in counts.items())}, {facts.windows:,} blocks"
    about = f"{facts.questions or 0:,} questions"
    if facts.protocol == SELECTION:
        return f"{about}, {facts.candidates or 0:,.1f} candidates each"
    return f"{about} ({facts.unanswerable or 0:,} unanswerable), SQuAD {facts.protocol or '?'}"


def _provenance(record: RunRecord) -> list[tuple[str, str]]:
    dirty = {True: ", with changes that it does not hold", False: "", None: ""}[record.dirty]
    device = ", ".join(f"{key} {value}" for key, value in asdict(record.device).items() if value is not None)
    shown = [
        ("created", record.created or "unknown"),
        ("commit", f"{record.commit[:12]}{dirty}" if record.commit else "none (not a checkout)"),
        ("config", record.config_hash[:12]),
        ("device", device or "unknown"),
        ("versions", ", ".join(f"{name} {version}" for name, version in record.versions.items())),
    ]
    for split, facts in record.data.items():
        shown.append((f"{split} hash", (facts.fingerprint or "unknown")[:12]))
    return shown


def scores_table(record: RunRecord) -> Table:
    rows = []
    for split, points in record.scores.items():
        for key in POINTS:
            if key in points:
                point = points[key]
                place = {"model": split, "run": POINTS[key], "margin": key}
                figures = {**point.flat(), "exact": point.exact}
                rows.append({**place, **figures, "null_threshold": point.threshold})
    shown = [c for c in named(SCORES) if any(row.get(c.key) is not None for row in rows)]
    (threshold,) = named(["null_threshold"])
    columns = [text("model", "set"), text("run", "margin"), *shown, replace(threshold, heading="at")]
    return Table("", columns, rows)


def _curves(epochs: Sequence[Epoch]) -> list[tuple[str, str, list[float | None]]]:
    curves = []
    for key, name in _CURVES.items():
        values = [epoch.value(key) for epoch in epochs]
        if any(value is not None for value in values):
            curves.append((name, sparkline(values), values))
    return curves
