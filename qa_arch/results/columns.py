"""The columns of every table: what a figure is called, how it is computed from a run and how it is printed.

A figure of runs is one entry of ``COLUMNS``. The terminal, Markdown, LaTeX, CSV and JSON, the report page,
dot plots and sorting read it there and nowhere else. Tables of other things (counts of a data set, effects)
are made of the same ``Column``, whose figures the table's maker computes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

from qa_arch.config.check import suggest
from qa_arch.errors import ConfigError, RunError
from qa_arch.metrics.answerability import Logistic, answerable_probability
from qa_arch.metrics.curves import auroc, reliability
from qa_arch.results.question_rows import Questions, load_questions
from qa_arch.types.records import (
    MARGIN_0,
    NEVER_NULL,
    ORACLE,
    SELECTION,
    TRAIN,
    Point,
    RunRecord,
    is_language,
    is_of_spans,
)

NOTHING = "–"
"""What stands in a cell without a figure."""


@dataclass(frozen=True)
class Scored:
    """A run, or a heuristic, on one split: what a column computes its figure from."""

    model: str
    split: str
    point: Point | None
    """The compared operating point; None where the split was not scored."""
    record: RunRecord | None = None
    """None for a heuristic, which is no run."""
    folder: Path | None = None
    root: Path | None = None
    """Where ``folder`` counts from, where that is not the working folder."""

    @cached_property
    def rows(self) -> Questions | None:
        """The rows of single questions, read when a column first asks; None where there are none."""
        if self.record is None or self.folder is None:
            return None
        try:
            return load_questions((self.root or Path()) / self.folder, self.record, self.split)
        except RunError:
            return None

    @property
    def run(self) -> RunRecord:
        """The record, for the columns of runs alone."""
        assert self.record is not None
        return self.record

    @property
    def has_spans(self) -> bool:
        return self.point is not None and is_of_spans(self.point.protocol)

    @property
    def has_ranks(self) -> bool:
        return self.point is not None and self.point.protocol == SELECTION

    @property
    def has_tokens(self) -> bool:
        return self.point is not None and is_language(self.point.protocol)


def plain(value: Any) -> str:
    """As readers of the field print it: scores to one decimal, counts with separators."""
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


@dataclass(frozen=True)
class Column:
    """One column: its key in the row of a program, its heading and its text for people."""

    key: str
    heading: str
    value: Callable[[Scored], Any] | None = None
    """The figure of a run; None where the maker of the table computes it."""
    applies: Callable[[Scored], bool] = lambda scored: True
    """The rows of programs (CSV, JSON) hold the figure where this is true."""
    left: bool = False
    """Text, aligned to the left."""
    format: Callable[..., str] = plain
    parts: tuple[str, ...] = ()
    """The figures of a row that the text is made of, where it is not ``key`` alone."""
    on_request: bool = False
    """Computed only in tables that show it; otherwise programs are given it in every row."""
    says_status: bool = False
    """Where a run did not end well, this cell says how it ended."""
    weight: int = 0
    """On a terminal that is too narrow for a table the lightest column is left out first, of equal ones the
    last."""
    mark: tuple[str, str] | None = None
    """Colour and marker of its panel in a dot plot; None for what is no percentage. The colours are those of
    Okabe & Ito 2008, told apart by every kind of colour vision."""

    def text(self, row: Mapping[str, Any]) -> str:
        """What people read of the row, a dash where there is nothing."""
        if self.says_status and row.get("status", "ok") != "ok":
            return str(row["status"]).upper()
        values = [row.get(key) for key in self.parts or (self.key,)]
        return NOTHING if values[0] is None else self.format(*values)


@dataclass(frozen=True)
class Table:
    """Rows for people and programs: people see ``columns``, programs every figure of a row."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Any]]
    notes: Sequence[str] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(column.key for column in self.columns)

    def __repr__(self) -> str:
        from qa_arch.results.render import markdown  # which imports this module

        return markdown(self)

    def _repr_html_(self) -> str:
        from qa_arch.results.render import html  # which imports this module

        return html(self)

    def as_dict(self) -> dict[str, Any]:
        return {"title": self.title, "rows": [dict(row) for row in self.rows], "notes": list(self.notes)}


def text(key: str, heading: str, *, weight: int = 0) -> Column:
    """A column of words, of a table whose maker fills it."""
    return Column(key, heading, left=True, weight=weight)


def number(
    key: str,
    heading: str,
    format: Callable[..., str] = plain,
    parts: tuple[str, ...] = (),
    *,
    weight: int = 0,
) -> Column:
    """A column of figures, of a table whose maker fills it."""
    return Column(key, heading, format=format, parts=parts, weight=weight)


def two_decimals(value: float) -> str:
    return f"{value:.2f}"


def three_decimals(value: float) -> str:
    return f"{value:.3f}"


def named(keys: Iterable[str], where: str = "columns") -> list[Column]:
    """The columns of runs with these keys; ConfigError for an unknown one."""
    keys = list(keys)
    for key in keys:
        if key not in COLUMNS:
            raise ConfigError(f"{where}: unknown column '{key}'{suggest(key, COLUMNS)}")
    return [COLUMNS[key] for key in keys]


def figures(scored: Scored, requested: Collection[str] = ()) -> dict[str, Any]:
    """The row of a run or heuristic: key -> figure of every column that applies or is ``requested``."""
    return {
        key: column.value(scored)
        for key, column in COLUMNS.items()
        if column.value and column.applies(scored) and (key in requested or not column.on_request)
    }


def _is_run(scored: Scored) -> bool:
    return scored.record is not None


def _is_scored_run(scored: Scored) -> bool:
    return scored.record is not None and scored.point is not None


def _run(key: str, heading: str, value: Callable[[RunRecord], Any], **options: Any) -> Column:
    """A figure of the run whatever it was scored on."""
    return Column(key, heading, lambda scored: value(scored.run), _is_run, **options)


def _small(key: str, heading: str, value: Callable[[RunRecord], Any], **options: Any) -> Column:
    """What a run takes on disk, in memory and in time to ask, in tables that ask for it."""
    return _run(key, heading, value, on_request=True, **options)


def _spans(key: str, heading: str, metric: str | None = None, **options: Any) -> Column:
    """A score of runs that find spans, at the compared operating point, by its official key."""
    return Column(key, heading, _metric(metric or key), lambda scored: scored.has_spans, **options)


def _ranks(key: str, heading: str, **options: Any) -> Column:
    """A score of runs that rank candidates; absent where it was not measured."""

    def applies(scored: Scored) -> bool:
        return scored.has_ranks and scored.point is not None and key in scored.point.metrics

    return Column(key, heading, _metric(key), applies, **options)


def _tokens(key: str, heading: str, metric: str | None = None, **options: Any) -> Column:
    """A score of pre-training runs; absent where it was not measured."""

    def applies(scored: Scored) -> bool:
        return scored.has_tokens and scored.point is not None and (metric or key) in scored.point.metrics

    return Column(key, heading, _metric(metric or key), applies, **options)


def _other(key: str, heading: str, value: Callable[[RunRecord, str], Any], **options: Any) -> Column:
    """A score at another operating point than the compared one."""
    return Column(key, heading, lambda scored: value(scored.run, scored.split), _is_scored_run, **options)


def _rows(key: str, heading: str, value: Callable[[Questions], float | None], **options: Any) -> Column:
    """A figure of the rows of single questions, in tables that ask for it."""

    def of_rows(scored: Scored) -> float | None:
        return None if scored.rows is None else value(scored.rows)

    return Column(key, heading, of_rows, _is_scored_run, on_request=True, **options)


def _metric(key: str) -> Callable[[Scored], Any]:
    return lambda scored: None if scored.point is None else scored.point.metric(key)


def _f1_at(name: str) -> Callable[[RunRecord, str], Any]:
    def value(record: RunRecord, split: str) -> Any:
        point = record.point(split, name)
        return None if point is None else point.f1

    return value


def _spans_f1(record: RunRecord, split: str) -> Any:
    """F1 on the answerable questions where "no answer" is never given; of SQuAD 1.1 that is F1."""
    point, compared = record.point(split, NEVER_NULL), record.compared_point(split)
    if point is None or compared is None:
        return None
    value = point.metric("HasAns_f1")
    return point.f1 if value is None and compared.protocol == "1.1" else value


def _encoder(record: RunRecord) -> str | None:
    """The pre-training run that the encoder is from, else its name, else its family."""
    if record.encoder:
        return f"{record.encoder.model}, seed {record.encoder.seed}"
    name, family = (record.setting("encoder", key) for key in ("name", "family"))
    return name if record.setting("encoder", "init") == "pretrained" else family and f"random {family}"


def _cost(key: str) -> Callable[[RunRecord], Any]:
    return lambda record: record.cost and getattr(record.cost, key)


def _batch(key: str) -> Callable[[RunRecord], Any]:
    """A size of the batch; as the config states it where the run ended before it was noted."""
    return lambda record: _batch_sizes(record)[key]


def _batch_sizes(record: RunRecord) -> dict[str, Any]:
    trainer, batch = record.config.get("trainer", {}), record.batch
    size = trainer.get("batch_size") if trainer.get("token_budget") is None else None
    stated = {"micro": size, "accumulate": trainer.get("accumulate"), "devices": trainer.get("devices")}
    sizes = {key: value if (own := getattr(batch, key)) is None else own for key, value in stated.items()}
    product = batch.global_size
    if product is None and all(isinstance(value, int) for value in sizes.values()):
        product = prod(sizes.values())
    return {"batch": product, **sizes}


def _auroc(rows: Questions) -> float | None:
    value = auroc(-rows.null_odds, rows.answerable)
    return None if value is None else 100 * value


def _answerable_ece(scored: Scored) -> float | None:
    """Of the probability that a question is answerable, by the logistic function in the record."""
    fitted = scored.run.answerability
    if scored.rows is None or fitted is None:
        return None
    logistic = Logistic(fitted.slope, fitted.intercept)
    probability = answerable_probability(scored.rows.null_odds, logistic)
    return 100 * reliability(probability, scored.rows.answerable).ece


def _ece(rows: Questions) -> float | None:
    if rows.probability is None or rows.span_exact is None:
        return None
    return 100 * reliability(rows.probability, rows.span_exact > 0).ece


def _fitted_ece(rows: Questions) -> float | None:
    if rows.confidence is None:
        return None
    return 100 * reliability(rows.confidence, rows.exact > 0).ece


_ENTRIES = (
    Column("model", "model", lambda scored: scored.model, left=True),
    _run("seed", "seed", lambda record: record.seed, format=str),
    _run("status", "status", lambda record: record.status),
    Column("split", "split", lambda scored: scored.split, left=True),
    Column("run", "run", lambda scored: str(scored.folder), _is_run, left=True),
    _spans("exact", "EM", says_status=True, mark=("#0072B2", "o")),
    _spans("f1", "F1", mark=("#D55E00", "s")),
    _spans("HasAns_exact", "HasAns EM", mark=("#0072B2", "p")),
    _spans("HasAns_f1", "HasAns F1", mark=("#009E73", "^")),
    _spans("NoAns_exact", "NoAns EM", mark=("#D55E00", "h")),
    _spans("NoAns_f1", "NoAns F1", mark=("#CC79A7", "D")),
    _spans("recall", "recall", "token_recall"),
    _spans("precision", "precision", "token_precision"),
    _spans("answerable_ap", "AP, answerable", "pr_oracle_ap", mark=("#E69F00", "P")),
    _spans("answerable_precision", "answered P", on_request=True),
    _spans("answerable_recall", "answered R", on_request=True),
    Column(
        "null_threshold",
        "null threshold",
        lambda scored: scored.point and scored.point.threshold,
        lambda scored: scored.has_spans,
        format=two_decimals,
    ),
    _ranks("accuracy", "top-1", says_status=True),
    _ranks("main_accuracy", "top-1, main class"),
    _ranks("mrr", "MRR"),
    _tokens("token_accuracy", "token accuracy", says_status=True),
    _tokens("perplexity", "perplexity", format=two_decimals),
    _tokens("bits_per_byte", "bits/byte", format=three_decimals),
    _tokens("sentence_accuracy", "NSP/SOP accuracy"),
    _tokens("sentence_f1", "NSP/SOP F1"),
    Column("insuranceqa_dev", "published: InsuranceQA validation"),
    Column("insuranceqa_test1", "published: test 1"),
    Column("insuranceqa_test2", "published: test 2"),
    Column(
        "protocol",
        "protocol",
        lambda scored: scored.point and scored.point.protocol,
        lambda scored: scored.point is not None,
    ),
    _other("f1_at_0", "F1 at threshold 0", _f1_at(MARGIN_0)),
    _other("f1_oracle", "F1 oracle", _f1_at(ORACLE)),
    _other("spans_f1", "HasAns F1, never null", _spans_f1, mark=("#56B4E9", "v")),
    _run("encoder", "encoder", _encoder, left=True, on_request=True),
    _run("parameters", "parameters", lambda record: record.parameters.total),
    _small("nonzero", "not zero", lambda record: record.parameters.nonzero or record.parameters.total),
    _small("weights_mb", "MB on disk", lambda r: r.weights_bytes and r.weights_bytes / 1e6),
    _small("engine", "engine", _cost("engine")),
    _small("read_in", "read in", _cost("precision")),
    _small("latency_ms", "ms a question", _cost("latency_ms")),
    _small("latency_ratio", "× latency", _cost("latency_ratio"), format=two_decimals),
    _small("memory_mb", "MB in memory", _cost("memory_mb")),
    _small("memory_ratio", "× memory", _cost("memory_ratio"), format=two_decimals),
    _run("train_questions", "training questions", lambda record: record.facts(TRAIN).questions),
    _run("epochs", "epochs", lambda record: len(record.epochs) or None),
    _run("seconds", "seconds", lambda record: record.seconds.fit),
    _run("predict_seconds", "seconds to predict", lambda record: record.seconds.predict),
    _run("batch", "global batch", _batch("batch")),
    _run("micro", "micro batch", _batch("micro")),
    _run("accumulate", "accumulated", _batch("accumulate")),
    _run("devices", "devices", _batch("devices")),
    _run("strategy", "strategy", lambda record: record.strategy),
    _run("arithmetic", "computed in", lambda r: r.precision or r.setting("trainer", "precision")),
    _run("steps", "optimizer steps", lambda r: r.epochs[-1].step if r.epochs else None),
    _run("examples_per_second", "windows/s", lambda record: record.examples_per_second),
    _run("peak_memory_mb", "peak MB", lambda record: record.peak_memory_mb),
    _rows("auroc", "AUROC, answerable", _auroc, mark=("#0072B2", "X")),
    _rows("ece", "ECE, spans", _ece, mark=("#D55E00", "d")),
    _rows("ece_fitted", "ECE, fitted", _fitted_ece, mark=("#009E73", "d")),
    Column("answerable_ece", "ECE, answerable", _answerable_ece, _is_scored_run, on_request=True),
)
COLUMNS: dict[str, Column] = {column.key: column for column in _ENTRIES}
"""Every column of runs by its key, in the order in which programs are given the figures."""
