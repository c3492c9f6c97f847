"""Summary of one run for a screen: settings, facts, scores, learning curves, mistakes and provenance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

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
    is_squad,
)
from qa_arch.results.columns import COLUMNS, EPOCH, Scored, row_of, select_columns
from qa_arch.results.errors import OUTCOMES, Mistakes, mistakes
from qa_arch.results.questions import load_questions
from qa_arch.results.systems import settings
from qa_arch.results.tables import Table, text
from qa_arch.types.text import QuestionSet

POINTS = {
    CALIBRATED: "calibrated",
    MARGIN_0: "threshold 0",
    GIVEN: "given",
    NEVER_NULL: "forced answer",
    ORACLE: "oracle (upper bound)",
    RANKED: "none",
    TOKENS: "none",
}
SCORES = (
    *("exact", "f1", "HasAns_exact", "HasAns_f1", "NoAns_exact"),
    *("answerable_precision", "answerable_recall", "accuracy", "main_accuracy", "mrr"),
    *("token_accuracy", "perplexity", "bits_per_byte", "sentence_accuracy", "sentence_f1"),
)
"""Columns shown for every set and operating point."""
RUN = (
    *("seed", "encoder", "parameters", "nonzero", "weights_mb", "batch", "micro", "accumulate", "devices"),
    *("strategy", "arithmetic", "epochs", "steps", "seconds", "predict_seconds", "examples_per_second"),
    *("peak_memory_mb", "engine", "read_in", "latency_ms", "latency_ratio", "memory_mb", "memory_ratio"),
)
"""Columns shown for the run as a whole."""
SETTINGS = (
    *("encoder.layers", "encoder.width", "optim.lr", "optim.head_lr", "optim.schedule", "trainer.epochs"),
    *("features.max_length", "features.stride", "decode.search"),
)
"""Settings shown besides those of the model, compression and distillation."""
_BARS = "▁▂▃▄▅▆▇█"
_CURVES = (
    *("train_loss", "train_labels", "train_soft_targets", "calibration_loss", "calibration_exact"),
    *("calibration_f1", "calibration_perplexity", "calibration_token_accuracy"),
)


@dataclass(frozen=True)
class Summary:
    """Output of ``qa-arch show``; ``facts`` maps headings to lists of (name, value)."""

    title: str
    record: RunRecord
    facts: Mapping[str, Sequence[tuple[str, str]]]
    scores: Table
    """One row per scored set and operating point."""
    curves: Sequence[tuple[str, str, Sequence[float | None]]]
    """Name, sparkline and values by epoch."""
    mistakes: Mistakes | None
    """None if the run has no question rows."""
    note: str | None
    """Why the question rows are missing."""

    def as_dict(self) -> dict[str, Any]:
        result = self.mistakes
        errors = {} if result is None else result.figures()["outcomes"]
        return {
            "title": self.title,
            "status": self.record.status,
            "error": self.record.error,
            "facts": {head: dict(pairs) for head, pairs in self.facts.items()},
            "scores": self.scores.as_dict()["rows"],
            "curves": {name: list(map(finite, values)) for name, _, values in self.curves},
            "best_epoch": self.record.best_epoch,
            "errors": {OUTCOMES[outcome]: number for outcome, number in errors.items()} or None,
            "mistakes": None if result is None else result.as_dict(),
            "note": self.note,
        }


def summarise(
    folder: Path, record: RunRecord, split: str = "dev", questions: QuestionSet | None = None
) -> Summary:
    """Summarise a run from its record and, if available, its question rows, judged with ``questions``.

    ``questions`` must be the set that ``split`` was scored on, else DataError.
    """
    result, note = None, None
    measure = record.measure(split)
    if measure is not None and is_squad(measure.protocol):
        try:
            result = mistakes(load_questions(folder, record, split), questions)
        except RunError as error:
            note = str(error)
    return Summary(
        title=f"{record.name} / {folder.resolve().name}",
        record=record,
        facts={"settings": _settings(record), "run": _run(record), "provenance": _provenance(record)},
        scores=scores_table(record),
        curves=_curves(record.epochs),
        mistakes=result,
        note=note,
    )


def sparkline(values: Sequence[float | None]) -> str:
    """One bar per value, scaled from the lowest to the highest; a blank if missing or not finite."""
    shown = [finite(value) for value in values]
    known = [value for value in shown if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    step = (high - low) / (len(_BARS) - 1) or 1.0
    return "".join(" " if value is None else _BARS[round((value - low) / step)] for value in shown)


def finite(value: Any) -> float | None:
    """``value`` if it is a finite number, else None: JSON has neither NaN nor infinity."""
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def _settings(record: RunRecord) -> list[tuple[str, str]]:
    usual, not_read = defaults(), ("encoder.", "features.", "decode.") if record.selects else ()
    return [
        (key, str(value))
        for key, value in settings(record).items()
        if (key in SETTINGS and value is not None and not key.startswith(not_read))
        or (key.startswith(("model.", "compression.")) and key not in ("model.task", "model.name"))
        or (key.startswith("distillation.") and value != usual.get(key))
    ]


def _run(record: RunRecord) -> list[tuple[str, str]]:
    row = row_of(Scored(record.model, "", None, record), RUN)
    if record.selects:
        del row["encoder"]  # its section is not read
    if record.parameters.nonzero is None:
        del row["nonzero"]  # equals the total: nothing was pruned
    shown = [(COLUMNS[key].heading, COLUMNS[key].text(row)) for key in RUN if row.get(key) is not None]
    shown += [(f"{split} set", _split_size(facts)) for split, facts in record.data.items()]
    blocks = ", ".join(f"{name} {count:,}" for name, count in record.parameters.blocks.items())
    if blocks:
        shown.append(("parameters by block", blocks))
    if parent := record.parent:
        shown.append(("compressed from", f"{parent.run} (run hash {parent.run_hash[:12]})"))
    if threshold := record.threshold:
        value = "none, always answers" if threshold.value is None else f"{threshold.value:.3f}"
        shown.append(("null threshold", f"{value}, fitted on {threshold.fitted_on}"))
    if confidence := record.confidence:
        shown.append(("confidence", f"{confidence.method} {confidence.value:.2f}, on {confidence.fitted_on}"))
    return shown


def _split_size(facts: SplitFacts) -> str:
    """Size of a split: questions and how many are unanswerable, or tokens."""
    if is_language(facts.protocol):
        sizes = [f"{facts.extra.get(name) or 0:,} {name}" for name in ("documents", "tokens", "bytes")]
        return ", ".join([*sizes, f"{facts.windows or 0:,} blocks"])
    questions = f"{facts.questions or 0:,} questions"
    if facts.protocol == SELECTION:
        return f"{questions}, {facts.candidates or 0:,.1f} candidates each"
    counts = {key: value for key, value in facts.extra.items() if isinstance(value, int | float)}
    extra = "".join(f", {count:,} {key.replace('_', ' ')}" for key, count in counts.items()) + facts.rules
    return f"{questions} ({facts.unanswerable or 0:,} unanswerable), SQuAD {facts.protocol or '?'}{extra}"


def _provenance(record: RunRecord) -> list[tuple[str, str]]:
    dirty = ", with uncommitted changes" if record.dirty else ""
    device = ", ".join(f"{key} {value}" for key, value in asdict(record.device).items() if value is not None)
    hashes = {f"{split} hash": facts.fingerprint for split, facts in record.data.items()}
    return [
        ("created", record.created or "unknown"),
        ("commit", f"{record.commit[:12]}{dirty}" if record.commit else "none (not a checkout)"),
        ("hashes", f"run {record.run_hash[:12]}, settings {record.settings_hash[:12]}"),
        ("device", device or "unknown"),
        ("versions", ", ".join(f"{name} {version}" for name, version in record.versions.items())),
        *((name, (fingerprint or "unknown")[:12]) for name, fingerprint in hashes.items()),
    ]


def scores_table(record: RunRecord) -> Table:
    """Table with one row per scored set and operating point."""
    rows = []
    unfitted = record.threshold is not None and record.threshold.fitted_on == "nothing"
    for split, points in record.scores.items():
        for key in POINTS:
            if key in points and not (key == CALIBRATED and unfitted):  # repeats threshold 0
                point = points[key]
                place = {"model": split, "run": POINTS[key], "margin": key}
                scores = {**point.flat(), "exact": point.exact}
                rows.append({**place, **scores, "null_threshold": point.threshold})
    shown = [c for c in select_columns(SCORES) if any(row.get(c.key) is not None for row in rows)]
    (threshold,) = select_columns(["null_threshold"])
    columns = [text("model", "set"), text("run", "null threshold"), *shown, replace(threshold, heading="at")]
    if rows and all(row["run"] == "none" for row in rows):  # a task without a null
        columns = [columns[0], *shown]
    notes = [f"{split}{rules}" for split in record.scores if (rules := record.facts(split).rules)]
    return Table("", columns, rows, notes)


def _curves(epochs: Sequence[Epoch]) -> list[tuple[str, str, list[float | None]]]:
    curves = []
    for key in _CURVES:
        values = [epoch.value(key) for epoch in epochs]
        if any(value is not None for value in values):
            curves.append((EPOCH[key], sparkline(values), values))
    return curves
